"""Artifacts of another version, model or plan, damaged or missing: refused in one line, nothing changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.command import SCHEME, Case, refused, snapshot, taglio
from tests.models import conv_relu_chain, pyramid, saved

READERS: dict[str, list[tuple[str, ...]]] = {
    "setup.json": [("error",), ("plan", "--max-error", "0.1"), ("build",), ("run",)],
    "profile.json": [("error",), ("plan", "--max-error", "0.1"), ("build",), ("run",)],
    "error.json": [("plan", "--max-error", "0.1")],
    "plan.json": [("build",), ("run",)],
    "components/manifest.json": [("run",)],
}
PAIRS = [(name, command) for name, commands in READERS.items() for command in commands]
each_reader = pytest.mark.parametrize(("name", "command"), PAIRS, ids=[f"{c[0]} reads {n}" for n, c in PAIRS])


def edit(path: Path, **fields: object) -> None:
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | fields))


def another_version(path: Path) -> tuple[str, ...]:
    edit(path, format_version=99)
    return ("format version 99",)


def another_model(path: Path) -> tuple[str, ...]:
    edit(path, model_sha256="0" * 64)
    return ("another model", "000000000000")


def another_kind(path: Path) -> tuple[str, ...]:
    edit(path, kind="holiday")
    return ("holiday",)


def cut_in_half(path: Path) -> tuple[str, ...]:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return ("again",)


def not_json(path: Path) -> tuple[str, ...]:
    path.write_bytes(b"\x80\x81 binary \x00")
    return ("again",)


def another_body(path: Path) -> tuple[str, ...]:
    edit(path, body={"model_sha256": 3})
    return ("damaged", "again")


def deleted(path: Path) -> tuple[str, ...]:
    path.unlink()
    return ("no such file", "run taglio")


@each_reader
@pytest.mark.parametrize(
    "damage", [another_version, another_model, another_kind, cut_in_half, not_json, another_body, deleted]
)
def test_an_artifact_that_cannot_be_used(
    damage: Callable[[Path], tuple[str, ...]], name: str, command: tuple[str, ...], workspace: Path
) -> None:
    words = damage(workspace / name)
    before = snapshot(workspace)
    refused(taglio(command[0], workspace, *command[1:]), "BadArtifact", Path(name).name, *words)
    assert snapshot(workspace) == before


@pytest.mark.parametrize("command", [("error",), ("plan", "--max-error", "1%"), ("build",), ("run",), ("report",)])
def test_a_stage_before_the_first(command: tuple[str, ...], tmp_path: Path) -> None:
    ran = taglio(command[0], tmp_path / "out", *command[1:])
    refused(ran, "BadArtifact", str(tmp_path / "out"), "run taglio profile")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", [another_version, another_kind, cut_in_half, not_json, another_body, deleted])
def test_a_report_needs_the_profile(damage: Callable[[Path], tuple[str, ...]], workspace: Path) -> None:
    words = damage(workspace / "profile.json")
    before = snapshot(workspace)
    refused(taglio("report", workspace), "BadArtifact", "profile.json", *words)
    assert snapshot(workspace) == before


@pytest.mark.parametrize("damage", [another_version, another_model, cut_in_half, deleted])
@pytest.mark.parametrize("stage", ["error", "plan", "run"])
def test_a_report_says_what_it_leaves_out(
    damage: Callable[[Path], tuple[str, ...]], stage: str, workspace: Path
) -> None:
    damage(workspace / f"{stage}.json")
    assert taglio("report", workspace).code == 0
    assert f"taglio {stage} {workspace}" in (workspace / "report.html").read_text()


def test_a_component_that_was_changed(workspace: Path) -> None:
    path = workspace / "components" / "model.onnx"
    path.write_bytes(path.read_bytes() + b"\0")
    refused(taglio("run", workspace), "BadArtifact", "model.onnx", "changed", "build")
    path.unlink()
    refused(taglio("run", workspace), "BadArtifact", "model.onnx", "missing", "build")


def test_a_model_that_changed_since(tmp_path: Path, tiny: Case) -> None:
    case, out = Case(saved(pyramid(), tmp_path), tiny.data), tmp_path / "out"
    assert taglio("profile", *case.arguments(), "--scheme", SCHEME, "--effort", 0.01, "-o", out).code == 0
    saved(conv_relu_chain(), tmp_path)
    before = snapshot(out)
    refused(taglio("error", out), "BadArtifact", "another model")
    case.model.unlink()
    refused(taglio("error", out), "BadModel", "no such file")
    assert snapshot(out) == before


def test_data_that_is_gone(tmp_path: Path, tiny: Case) -> None:
    case, out = Case(tiny.model, Path(shutil.copy(tiny.data, tmp_path))), tmp_path / "out"
    assert taglio("profile", *case.arguments(), "--scheme", SCHEME, "--effort", 0.01, "-o", out).code == 0
    case.data.unlink()
    refused(taglio("error", out), "BadData", case.data.name)


def test_an_error_model_of_another_scheme(workspace: Path, tiny: Case) -> None:
    other = ("--scheme", "qdq-s8s8-sym-pt", "--effort", 0.01, "-o", workspace)
    assert taglio("profile", *tiny.arguments(), *other).code == 0
    refused(taglio("plan", workspace, "--max-error", 0.1), "BadArtifact", "error.json", "scheme", "taglio error")


def test_a_plan_of_another_scheme(workspace: Path, tiny: Case) -> None:
    other = ("--scheme", f"{SCHEME}-percentile", "--effort", 0.01, "-o", workspace)
    assert taglio("profile", *tiny.arguments(), *other).code == 0
    for command in ("build", "run"):
        refused(taglio(command, workspace), "BadArtifact", "plan.json", "scheme", "taglio plan")


def test_components_of_another_plan(workspace: Path) -> None:
    built = json.loads((workspace / "plan.json").read_text())["body"]["placements"]
    pin = "--keep-float" if any(each["precision"] != "float32" for each in built) else "--force-int8"
    assert taglio("plan", workspace, "--max-error", 0.5, pin, "*").code == 0
    refused(taglio("run", workspace), "BadArtifact", "taglio build")
