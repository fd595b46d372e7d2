"""A limit on memory changes where things wait, and no result; a model of many weights goes the whole way."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio import artifact, weights
from taglio.cli import main
from taglio.error.measure import ErrorMeter
from taglio.error.switchable import Switchable
from taglio.errors import BadOption
from taglio.flow import workspace
from taglio.flow.opening import open_work
from taglio.lab.setup import Setup
from taglio.plan.result import Interval, Limits, Plan, placements
from taglio.quantize.precision import FLOAT32
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.search.answers import answers
from tests.components.cases import CHOICES, INT8
from tests.models import Sketch


def products(count: int = 3) -> onnx.ModelProto:
    g = Sketch(3)
    x = g.input("x", 1, 64)
    for _ in range(count):
        x = g.op("Relu", g.op("MatMul", x, g.weight(64, 64, gain=1.4)))
    return g.model(x)


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model be one whose weights are many."""
    monkeypatch.setattr(weights, "IN_FILES_BYTES", 1)
    monkeypatch.setattr(weights, "ONE_FILE_BYTES", 1)


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, Path]:
    model, data = tmp_path / "model.onnx", tmp_path / "data.npy"
    onnx.save(products(), model, save_as_external_data=True, location="model.onnx.data", size_threshold=1024)
    np.save(data, np.random.default_rng(0).standard_normal((24, 1, 64)).astype(np.float32))
    return model, data


def setup(model: Path, data: Path) -> Setup:
    return Setup(str(model), {}, str(data), "", 0, 1, "all", DEFAULT_SCHEME)


@pytest.mark.whole
@pytest.mark.usefixtures("in_files")
def test_a_model_of_many_weights_goes_the_whole_way(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = given
    out = tmp_path / "out"
    scheme = ["--scheme", str(DEFAULT_SCHEME), "--runtime", "onnxruntime", "--effort", "0.01", "--threads", "1"]
    assert main(["inspect", str(model)]) == 0
    assert main(["profile", str(model), "--data", str(data), "-o", str(out), *scheme, "--memory-limit", "4GB"]) == 0
    assert "memory: estimated need" in capsys.readouterr().err
    assert main(["error", str(out), "--effort", "0.05"]) == 0
    assert main(["plan", str(out), "--max-error", "0.5", "--effort", "0.05"]) == 0
    assert main(["build", str(out)]) == 0
    assert main(["run", str(out), "--runs", "3"]) == 0
    assert main(["report", str(out)]) == 0
    built = out / "components" / "model.onnx"
    assert built.stat().st_size < 64 * 64 < built.with_name("model.onnx.data").stat().st_size
    onnx.checker.check_model(built)
    onnx.checker.check_model(out / "float32.onnx")
    with built.with_name("model.onnx.data").open("rb+") as file:
        file.write(b"changed")
    capsys.readouterr()
    assert main(["run", str(out), "--runs", "3"]) == 2
    assert "model.onnx.data: component 0-local was changed" in capsys.readouterr().err


@pytest.mark.whole
@pytest.mark.usefixtures("in_files")
def test_it_is_optimised_and_quantised_in_one_go_too(given: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = given
    out = tmp_path / "out"
    common = [str(model), "--data", str(data), "--scheme", str(DEFAULT_SCHEME)]
    how = ["--max-error", "0.5", "--runtime", "onnxruntime", "--effort", "0.01", "--threads", "1", "-o", str(out)]
    assert main(["optimize", *common, *how]) == 0
    onnx.checker.check_model(out / "components" / "model.onnx")
    for method in ("static", "float16"):
        chosen = common[:3] if method != "static" else common
        assert main(["quantize", *chosen, "--method", method, "-o", str(tmp_path / f"{method}.onnx")]) == 0
        onnx.checker.check_model(tmp_path / f"{method}.onnx")


def test_a_small_built_model_is_one_file(
    given: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "IN_FILES_BYTES", 1)
    model = open_work(setup(*given)).model
    assert len(artifact.write_model(tmp_path / "float32.onnx", model.proto)) == 1
    assert (tmp_path / "float32.onnx").stat().st_size > 3 * 4 * 64 * 64
    assert not (tmp_path / "float32.onnx.data").exists()


def test_a_limit_that_is_too_small_says_what_is_needed(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = given
    common = ["profile", str(model), "--data", str(data), "-o", str(tmp_path / "out")]
    assert main([*common, "--memory-limit", "10MB"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("taglio: BadOption: --memory-limit 10 MB: model needs ")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
    needed = re.search(r"needs an estimated (\d+) MB or more", said)
    assert main(["inspect", str(model)]) == 0
    told = re.search(r"memory: optimize needs an estimated (\d+) MB or more", capsys.readouterr().out)
    assert needed and told
    assert int(told[1]) == pytest.approx(int(needed[1]), rel=0.1)
    for wrong in ("0", "-1GB", "much", "1e400GB"):
        assert main([*common, f"--memory-limit={wrong}"]) == 2
        assert "is not a size: give 8GB or 500MB" in capsys.readouterr().err


def test_the_limit_is_kept_from_stage_to_stage(given: tuple[Path, Path], tmp_path: Path) -> None:
    small = replace(setup(*given), memory_bytes=2**40)
    work = open_work(small)
    known = workspace.calibrated(work)
    workspace.begin(tmp_path / "out", work.model.sha256, small, work.model.proto, work.graph, known)
    assert workspace.reopen(tmp_path / "out").memory_bytes == 2**40
    with pytest.raises(BadOption, match=r"needs an estimated .* or more"):
        open_work(replace(small, memory_bytes=1))


@pytest.mark.whole
def test_answers_and_errors_are_the_same_without_room(given: tuple[Path, Path]) -> None:
    work = open_work(setup(*given))
    builder = work.builder(DEFAULT_SCHEME)
    assignment = {block.name: INT8 for block in work.graph.candidates()}
    placed = placements(work.graph, assignment)
    none = Interval(1.0, 1.0, 1.0)
    plan = Plan(work.model.sha256, DEFAULT_SCHEME, (FLOAT32, INT8), Limits(0.5), placed, "optimal", 0.0, none, none)
    wide, narrow = (answers(work.but(memory_bytes=limit), plan, Limits(0.5)) for limit in (None, 8))
    assert wide == narrow
    switchable = Switchable(work.graph, builder, CHOICES, SessionOptions(1))
    held, filed = (
        ErrorMeter(switchable, work.data.held_out.samples, work.parts, memory_bytes=limit) for limit in (None, 8)
    )
    one, other = held.read(assignment), filed.read(assignment)
    np.testing.assert_array_equal(one.l2, other.l2)
