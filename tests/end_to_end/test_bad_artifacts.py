"""Artifacts of another model or plan, damaged or missing: refused in one line, nothing changed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.end_to_end.command import Case, refused, snapshot, taglio
from tests.models import conv_relu_chain, pyramid, saved
from tests.support.artifacts import rewritten

PLAN = ("plan", "--max-error", "0.1")
READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "setup.json": (("error",), PLAN, ("build",), ("run",), ("report",)),
    "profile.json": (("error",), PLAN, ("build",), ("run",), ("report",)),
    "error.json": (PLAN, ("report",)),
    "plan.json": (("build",), ("run",), ("report",)),
    "components/manifest.json": (("run",), ("report",)),
    "run.json": (("report",),),
}


def refuse_it(name: str, workspace: Path, *words: str, unless: str = "") -> None:
    """Every command that reads an artifact refuses it, and changes nothing."""
    before = snapshot(workspace)
    for command, *options in READERS[name]:
        if command != unless:
            refused(taglio(command, workspace, *options), "BadArtifact", Path(name).name, *words)
    assert snapshot(workspace) == before


@pytest.mark.parametrize("name", READERS)
def test_an_artifact_of_another_model(name: str, workspace: Path) -> None:
    path = workspace / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_sha256": "0" * 64}))
    # A profile is what says which model a report is of.
    refuse_it(name, workspace, "another model", "000000000000", unless="report" if name == "profile.json" else "")


@pytest.mark.parametrize("name", ["setup.json", "profile.json", "components/manifest.json"])
def test_an_artifact_that_is_missing(name: str, workspace: Path) -> None:
    (workspace / name).unlink()
    refuse_it(name, workspace, "no such file", "run taglio", unless="" if name == "profile.json" else "report")


@pytest.mark.parametrize("command", [("error",), ("plan", "--max-error", "1%"), ("build",), ("run",), ("report",)])
def test_a_stage_before_the_first(command: tuple[str, ...], tmp_path: Path) -> None:
    ran = taglio(command[0], tmp_path / "out", *command[1:])
    refused(ran, "BadArtifact", str(tmp_path / "out"), "run taglio profile")
    assert not (tmp_path / "out").exists()


def test_a_component_that_was_changed(workspace: Path) -> None:
    path = workspace / "components" / "model.onnx"
    path.write_bytes(path.read_bytes() + b"\0")
    refused(taglio("run", workspace), "BadArtifact", "model.onnx", "changed", "build")
    path.unlink()
    refused(taglio("run", workspace), "BadArtifact", "model.onnx", "missing", "build")


def set_up(workspace: Path, **changes: object) -> None:
    """Let the workspace's model or data lie elsewhere."""
    rewritten(workspace / "setup.json", lambda body: body.update({name: str(value) for name, value in changes.items()}))


def test_a_model_that_changed_since(tmp_path: Path, workspace: Path) -> None:
    model = saved(pyramid(), tmp_path)
    set_up(workspace, model=model)
    assert taglio("build", workspace).code == 0
    saved(conv_relu_chain(), tmp_path)
    before = snapshot(workspace)
    refused(taglio("error", workspace), "BadArtifact", "another model")
    model.unlink()
    refused(taglio("error", workspace), "BadArtifact", "setup.json: its model", "is no longer there: put it back")
    assert snapshot(workspace) == before


def test_data_that_is_gone(tmp_path: Path, workspace: Path, tiny: Case) -> None:
    data = Path(shutil.copy(tiny.data, tmp_path))
    set_up(workspace, data=data)
    assert taglio("build", workspace).code == 0
    data.unlink()
    refused(taglio("error", workspace), "BadArtifact", "setup.json: its data", data.name, "profile again")


def test_an_error_model_and_a_plan_of_another_scheme(workspace: Path, tiny: Case) -> None:
    plan, other = (workspace / "plan.json").read_bytes(), ("--scheme", "qdq-s8s8-sym-pc", "--effort", 0.01)
    assert taglio("profile", *tiny.arguments(), *other, "-o", workspace).code == 0
    refused(taglio("plan", workspace, "--max-error", 0.1), "BadArtifact", "error.json", "scheme", "taglio error")
    assert not (workspace / "plan.json").exists()  # it was made from the profile that is no more
    (workspace / "plan.json").write_bytes(plan)
    for command in ("build", "run"):
        refused(taglio(command, workspace), "BadArtifact", "plan.json", "scheme", "taglio plan")


def test_an_error_model_of_other_data(workspace: Path, tmp_path: Path) -> None:
    data = np.random.default_rng(1).standard_normal((10, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "other.npy", data)
    set_up(workspace, data=tmp_path / "other.npy")
    refused(taglio("plan", workspace, "--max-error", 0.1), "BadArtifact", "error.json", "has data", "taglio error")


def at(body: Any, path: str) -> tuple[Any, Any]:
    """The container and the key of a place such as runs.0.wall."""
    *inner, last = (int(each) if each.isdigit() else each for each in path.split("."))
    for each in inner:
        body = body[each]
    return body, last


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        ("profile", "glue", None, 'missing required field "glue"'),
        ("profile", "blocks.0.block", "other", "does not fit the model"),
        ("setup", "threads", 100000, "threads"),
        ("setup", "runtime", "abacus", "abacus: use auto or onnxruntime"),
        ("components/manifest", "pieces.0.file", "../model.onnx", "outside"),
        ("components/manifest", "pieces.0.inputs.0.name", "other", "reads other"),
    ],
)
def test_an_artifact_whose_content_makes_no_sense(
    name: str, path: str, value: object, said: str, workspace: Path
) -> None:
    """Through every command that reads it."""
    file = workspace / f"{name}.json"

    def change(body: Any) -> None:
        container, key = at(body, path)
        if value is None:
            del container[key]
        else:
            container[key] = value

    rewritten(file, change)
    refuse_it(f"{name}.json", workspace, said)


def test_components_of_another_plan(workspace: Path) -> None:
    built = json.loads((workspace / "plan.json").read_text())["body"]["placements"]
    pin = "--keep-float" if any(each["precision"] != "float32" for each in built) else "--force-int8"
    assert taglio("plan", workspace, "--max-error", 0.5, "--effort", 0.01, pin, "*").code == 0
    refused(taglio("run", workspace), "BadArtifact", "taglio build")
