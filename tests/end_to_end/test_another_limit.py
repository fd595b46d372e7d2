"""A finished workspace is built again for another limit: by the command line, from what optimize measured."""

import shutil
from pathlib import Path

import pytest

from taglio import artifact
from taglio.flow.outcome import Outcome
from tests.conftest import Optimized
from tests.end_to_end.command import Case, quick, refused, snapshot, taglio


@pytest.fixture
def out(optimized: Optimized, tmp_path: Path) -> Path:
    """A copy of the embedded model's workspace, which was optimised for 1 %."""
    return Path(shutil.copytree(optimized.folder, tmp_path / "optimized"))


def outcome(folder: Path) -> Outcome:
    return artifact.load(folder / "outcome.json", "outcome", Outcome)


@pytest.mark.usefixtures("gain_confirmed")
def test_a_looser_limit_is_built_confirmed_and_written_as_optimize_writes(out: Path) -> None:
    """And the plan of the first limit comes back with its limit."""
    before, files, plan = outcome(out), snapshot(out), (out / "plan.json").read_bytes()
    printed = taglio("build", out, "--max-error", "60%", "--json").json()
    after = outcome(out)
    assert printed["plan"]["max_error"] == after.max_error == 0.6
    assert printed["plan"]["error"] == after.plan.error <= 0.6
    assert after.speedup is None or printed["speedup"] == after.speedup.ratio
    assert set(files) <= set(snapshot(out))
    assert taglio("check", out, "--json").json()["verdict"] != "broken"
    assert taglio("run", out, "--runs", 3, "--json").json()["plan"]["runs"] == 3
    assert (out / "plan.json").read_bytes() != plan
    again = taglio("build", out, "--max-error", 0.01, "--json").json()
    assert again["plan"]["error"] <= 0.01
    assert {(point.name, point.runtime) for point in before.points} <= {
        (point.name, point.runtime) for point in outcome(out).points
    }


def test_a_limit_that_only_float_keeps_delivers_float(out: Path) -> None:
    ran = taglio("build", out, "--max-error", "0.00001%")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("float32 stays: ")
    assert outcome(out).plan.int8_blocks == 0


def test_every_point_of_the_front_names_a_limit_that_it_keeps(optimized: Optimized) -> None:
    front = optimized.printed["front"]
    assert len(front) <= 5
    for point in front:
        flag, limit = point["limit"].split()
        assert flag == "--max-error" and point["error"] < float(limit.rstrip("%")) / 100
        assert point["about_speedup"] > 1.0


def test_a_limit_that_nothing_keeps_leaves_the_workspace_as_it_was(tiny: Case, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert quick(tiny, out, "--max-error", "90%", "--force-int8", "*", "--json").code == 0
    files = snapshot(out)
    refused(taglio("build", out, "--max-error", "0.0001%"), "keeps the error at most 0.0001%: the best has", code=3)
    assert snapshot(out) == files


def test_what_another_limit_cannot_be_built_from_is_refused(out: Path, workspace: Path) -> None:
    refused(taglio("build", workspace, "--max-error", "3%"), "outcome.json: is missing", "taglio plan")
    files = snapshot(out)
    refused(taglio("build", out, "--max-drop", "top1=1%"), "limits top1, which was not measured: limit relative-l2")
    refused(taglio("build", out, "--min-score", "30"), "relative-l2 is an error")
    assert snapshot(out) == files
