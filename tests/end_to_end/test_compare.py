"""`taglio compare` from the command line: ONNX Runtime's rows, what is missing, what is refused."""

import json
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taglio import artifact
from taglio.compare.environments import VARIABLE
from taglio.compare.result import COMPARISON, Comparison
from tests.conftest import once
from tests.end_to_end.command import Case, begun, taglio

# OpenVINO runs where it is installed beside taglio; the others need environments of their own.
ABSENT = {"nncf", "onnxsim", "litert", "pytorch", "qkeras", "keras"} | (
    set() if find_spec("openvino") else {"openvino"}
)


@pytest.fixture(scope="session")
def nothing_installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("no-backends")


@pytest.fixture(scope="session")
def compared(tiny: Case, tmp_path_factory: pytest.TempPathFactory, nothing_installed: Path) -> tuple[Path, Any]:
    """Every back end asked for, ONNX Runtime alone there."""
    asked = (*tiny.arguments(), "--effort", "0.01", "--max-error", "10%")

    def make(folder: Path) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, str(nothing_installed))
            return taglio("compare", *asked, "-o", folder / "out", "--json").json()

    folder, result = once(tmp_path_factory, "compared", make)
    return folder / "out", result


def rows(result: Any, backend: str) -> dict[str, Any]:
    return {row["wanted"]["id"].partition("/")[2]: row for row in result["rows"] if row["wanted"]["backend"] == backend}


def test_every_row_is_measured_or_says_why_not(compared: tuple[Path, Any]) -> None:
    _, result = compared
    for row in result["rows"]:
        assert (row["latency"] is not None) == (row["status"] == "measured")
        assert bool(row["reason"]) == (row["status"] != "measured"), row


def test_onnx_runtime_is_measured(compared: tuple[Path, Any]) -> None:
    _, result = compared
    found = rows(result, "onnxruntime")
    measured = {name for name, row in found.items() if row["status"] == "measured"}
    assert {
        "float32",
        "float16",
        "qdq-u8s8-asym-pc",
        "qdq-s8s8-sym-pc",
    } <= measured
    for name in measured:
        checked, latency = found[name]["checked"], found[name]["latency"]
        assert latency["reference_s"] == latency["baseline_s"]  # the same model in the same rounds
        assert checked["size_bytes"] > 0
        saturates = any("saturate" in note for note in checked["notes"])
        assert checked["error_to_original"] < 0.1 or saturates, name
        assert sum(checked["operators"].values()) > 0
        if name.startswith("qdq"):
            assert sum(checked["int8_operators"].values()) > 0, name
        if name.startswith("float32"):
            assert checked["int8_operators"] == {}
            assert checked["error_to_original"] < 1e-5


def test_a_back_end_that_is_missing_costs_its_rows_and_says_how_to_get_it(compared: tuple[Path, Any]) -> None:
    _, result = compared
    for backend in ABSENT & {"openvino", "nncf", "onnxsim", "litert", "pytorch", "qkeras"}:
        reasons = {row["reason"] for row in rows(result, backend).values() if row["status"] == "missing"}
        assert len(reasons) == 1
        assert "run taglio backends add" in reasons.pop()


def test_a_stopped_comparison_keeps_its_finished_rows(tiny: Case, tmp_path: Path) -> None:
    """After one that was killed. What lay in the folder before stays."""
    out = tmp_path / "out"
    (out / "work").mkdir(parents=True)
    (out / "work" / "mine.txt").write_text("here first")
    asked = ("compare", *tiny.arguments(), "--backends", "onnxruntime", "--effort", "0.01")
    for number in (signal.SIGKILL, signal.SIGINT):
        earlier = set(out.glob("compare-work/onnxruntime/tmp*"))
        # At full effort, so that it cannot end before the signal.
        running = begun(*asked, "--effort", "1", "-o", out, "--json")
        while set(out.glob("compare-work/onnxruntime/tmp*")) <= earlier and running.poll() is None:
            time.sleep(0.002)  # until the kernels of a row are recorded; all rows take a second
        running.send_signal(number)
        printed, complaint = running.communicate(timeout=120)
    assert running.returncode == 130, complaint
    result = json.loads(printed)
    assert result["stopped"] and "stopped" in {row["status"] for row in result["rows"]}
    stored = artifact.load(out / f"{COMPARISON}.json", COMPARISON, Comparison)
    assert json.loads(msgspec.json.encode(stored.rows)) == result["rows"]
    assert "stopped before the last row" in (out / "comparison.html").read_text()
    ran = taglio(*asked, "-o", out)  # measured anew, and shown on the terminal
    assert ran.code == 0, ran.err
    assert "stopped before" not in ran.out
    assert "qdq-u8s8-asym-pc" in ran.out
    assert (out / "work" / "mine.txt").read_text() == "here first" and not [*out.glob(".*")]
