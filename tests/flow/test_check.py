"""`taglio check` on a real workspace: what holds, and each way in which a promise breaks."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from taglio import artifact
from taglio.artifact import replacing
from taglio.errors import BadOption
from taglio.flow.check import check
from taglio.flow.outcome import Outcome
from taglio.flow.promise import Checked, Promise, Verdict
from taglio.profile.machine import describe
from taglio.report import terminal
from taglio.runtimes.way import Way
from taglio.ways.result import Figure, Rate
from taglio.weights import sha256
from tests.end_to_end.command import Case, quick, taglio
from tests.support.artifacts import rewritten

HOLDS, BROKEN, UNKNOWN, REPORTED = Verdict.HOLDS, Verdict.BROKEN, Verdict.UNKNOWN, Verdict.REPORTED


@pytest.fixture(scope="module")
def finished(tiny: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose plan has int8 blocks, however busy the machine is: they are forced."""
    folder = tmp_path_factory.mktemp("finished") / "out"
    ran = quick(tiny, folder, "--max-error", "5%", "--force-int8", "conv*")
    assert ran.code == 0, ran.err
    return folder


@pytest.fixture(scope="module")
def unchanged(finished: Path) -> Checked:
    """What is found where nothing changed."""
    return check(finished)


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished workspace, to damage."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def row(result: Checked, name: str) -> Promise:
    """The promise of that name."""
    return next(promise for promise in result.promises if promise.name == name)


def test_nothing_is_broken_where_nothing_changed(unchanged: Checked, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("files", "onnxruntime", "processor", "settings", "samples", "error"):
        assert row(unchanged, name).verdict is HOLDS, row(unchanged, name)
    assert row(unchanged, "error").now in row(unchanged, "error").then
    assert "×" in row(unchanged, "speed-up").now
    terminal.checked(unchanged)
    table = capsys.readouterr().out
    assert "unchanged" in table
    assert table.splitlines()[-1].startswith(
        ("every promise", "a promise is broken", "no promise is broken")
    )  # of speed, on a busy machine


def test_where_float_was_delivered_nothing_is_raced(out: Path) -> None:
    outcome = artifact.load(out / "outcome.json", "outcome", Outcome)
    artifact.save(out / "outcome.json", "outcome", outcome.model_sha256, replace(outcome, speedup=None))
    promise = row(check(out), "speed-up")
    assert (promise.then, promise.now, promise.verdict) == ("none promised", "not raced", REPORTED)


def test_a_changed_file_is_named_and_nothing_is_run(out: Path) -> None:
    with (out / "deploy" / "model.onnx").open("ab") as file:
        file.write(b"\0")
    ran = taglio("check", out, "--json")
    assert ran.code == 5
    printed = json.loads(ran.out)
    assert printed["verdict"] == BROKEN
    broken = [promise for promise in printed["promises"] if promise["verdict"] == BROKEN]
    assert [promise["name"] for promise in broken] == ["files"]
    assert "model.onnx" in broken[0]["now"]
    assert "speed-up" not in {promise["name"] for promise in printed["promises"]}


def test_an_exchanged_model_with_its_own_hash_gives_other_answers(out: Path) -> None:
    deploy = out / "deploy"
    with replacing(deploy / "model.onnx") as target:
        shutil.copyfile(out / "float32.onnx", target)
    manifest = json.loads((deploy / "deploy.json").read_text())
    manifest["sha256"]["model.onnx"] = sha256(deploy / "model.onnx")
    (deploy / "deploy.json").write_text(json.dumps(manifest))
    result = check(out)
    assert result.exit_code == 5
    assert row(result, "samples").verdict is BROKEN
    assert row(result, "error").verdict is BROKEN
    assert "a file was replaced" in row(result, "error").detail


def test_inputs_that_break_the_limit_are_told_from_those_that_keep_it(out: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal((48, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "noise.npy", 50.0 * noise)
    result = check(out, tmp_path / "noise.npy")
    assert row(result, "error on new data").verdict is BROKEN
    assert result.exit_code == 5


@pytest.fixture(scope="module")
def elsewhere(finished: Path, tiny: Case, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """What is found with one input, on another processor."""
    data = tmp_path_factory.mktemp("one") / "one.npy"
    np.save(data, np.load(tiny.data)[:1])
    other = replace(describe(), processor="another", instructions=("avx2", "avx512_vnni", "avx512_bf16"))
    return check(finished, data, machine=other)


def test_one_input_is_judged_by_the_parts_of_the_data_of_then(elsewhere: Checked) -> None:
    """Of one input every logit has a scale of its own; a logit near 0 was reported as 205 % off."""
    now = row(elsewhere, "error on new data").now
    assert float(now.partition("%")[0]) < 10.0, now


def test_another_processor_is_reported_and_its_speed_is_not_judged(elsewhere: Checked) -> None:
    assert row(elsewhere, "processor").verdict is REPORTED
    assert row(elsewhere, "speed-up").verdict is REPORTED


@pytest.mark.parametrize("content", ["[]", "{", '{"sha256": {}}'])
def test_a_damaged_description_is_one_line(out: Path, content: str) -> None:
    (out / "deploy" / "deploy.json").unlink()
    (out / "deploy" / "deploy.json").write_text(content)
    ran = taglio("check", out)
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert "deploy.json: damaged" in ran.err
    verified = subprocess.run(
        [sys.executable, "-I", out / "deploy" / "verify.py"], capture_output=True, text=True, check=False
    )
    assert verified.returncode == 5
    assert "deploy.json is damaged" in verified.stdout
    assert verified.stderr == ""


def test_a_description_that_does_not_fit_the_model_is_a_broken_promise(out: Path) -> None:
    path = out / "deploy" / "deploy.json"
    manifest = json.loads(path.read_text())
    manifest["outputs"] = ["no such output"]
    path.unlink()
    path.write_text(json.dumps(manifest))
    result = check(out)
    assert row(result, "error").verdict is BROKEN
    assert "cannot be run" in row(result, "error").now
    assert result.exit_code == 5


def test_files_without_hashes_are_not_said_to_be_unchanged(out: Path) -> None:
    path = out / "deploy" / "deploy.json"
    manifest = json.loads(path.read_text()) | {"sha256": {}}
    path.unlink()
    path.write_text(json.dumps(manifest))
    assert "has no hash" in taglio("check", out).err


def test_a_runtime_that_is_not_installed_cannot_be_judged(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(runtime: str) -> str:
        raise BadOption(f"{runtime} is not installed")

    monkeypatch.setattr("taglio.flow.check.runtime_version", absent)
    result = check(out)
    assert row(result, "onnxruntime").verdict is UNKNOWN
    assert row(result, "onnxruntime").detail.startswith("pip install onnxruntime==")
    assert result.exit_code == 6


def test_without_its_data_the_error_cannot_be_said_and_the_speed_is_still_judged(out: Path, tmp_path: Path) -> None:
    setup = json.loads((out / "setup.json").read_text())
    assert Path(setup["body"]["data"]).exists()
    gone = shutil.copytree(out, tmp_path / "gone")
    rewritten(gone / "setup.json", lambda body: body.update(data=str(tmp_path / "no such data.npz")))
    result = check(gone)
    error = row(result, "error")
    assert error.verdict is UNKNOWN
    assert "no such data.npz is gone: give data with --data" in error.detail
    assert row(result, "speed-up").now.count("×") == 1
    assert result.exit_code in (5, 6)  # the speed of a busy machine may break its own promise


def test_where_the_way_was_chosen_for_a_rate_the_capacity_is_judged(out: Path) -> None:
    promise_rate(out, Figure(500.0, 400.0, 600.0))
    result = check(out)
    assert row(result, "capacity").verdict is BROKEN, row(result, "capacity")
    assert "speed-up" not in {promise.name for promise in result.promises}
    assert "× " in row(result, "capacity").now


def promise_rate(out: Path, over_one: Figure) -> None:
    """Add a rate to the outcome of a workspace."""
    outcome = artifact.load(out / "outcome.json", "outcome", Outcome)
    figure = Figure(1.0, 1.0, 1.0)
    rate = Rate("float32", "onnxruntime", Way(1), figure, over_one, figure, callers=1, openings=8, memory_bytes=0)
    artifact.save(out / "outcome.json", "outcome", outcome.model_sha256, replace(outcome, rate=rate))


def test_a_processor_that_lacks_what_the_plan_was_made_for_is_named_before_anything_runs(out: Path) -> None:
    """A plan with 8-bit weights, made with VNNI and checked without: both processors are values."""
    wide = json.loads((out / "plan.json").read_text().replace('"reduced_range": true', '"reduced_range": false'))
    rewritten(out / "plan.json", lambda body: body.update(wide["body"]))
    instructions = {"instructions": ["avx2", "avx512_vnni"]}
    rewritten(out / "profile.json", lambda body: body["conditions"]["machine"].update(instructions))
    result = check(out, machine=replace(describe(), instructions=("avx2",)))
    assert row(result, "processor").verdict is BROKEN
    assert "lacks VNNI" in row(result, "processor").detail
    assert "optimise here" in row(result, "processor").detail
    assert {promise.name for promise in result.promises} == {"files", "onnxruntime", "processor"}
