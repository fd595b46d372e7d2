"""Where back ends are found, and what is said of those that are missing or of another version."""

import json
import os
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from taglio.compare import environments
from taglio.compare.environments import BACKENDS, ENVIRONMENTS, find, installed
from taglio.errors import BadEnvironment
from tests.end_to_end.command import ROOT


def pretend(folder: Path, name: str, versions: dict[str, str | None]) -> Path:
    """An environment whose interpreter says that it has `versions`."""
    path = folder / name / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{json.dumps(versions)}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_core_is_always_there() -> None:
    assert find("onnxruntime").interpreter == Path(sys.executable)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if BACKENDS[name] != "core"])
def test_what_is_missing_comes_with_how_to_get_it(backend: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(pretend(folder, "bare", {})))  # nothing is installed beside taglio
    found = find(backend)
    assert found.status == "missing"
    name = BACKENDS[backend]
    assert found.reason.endswith(f"not installed: run taglio backends add {name}")


def test_an_environment_of_its_own_is_found(folder: Path) -> None:
    python = pretend(folder, "openvino", {"openvino": "2026.4.1"})
    found = find("openvino")
    assert (found.interpreter, found.versions) == (python, {"openvino": "2026.4.1"})


@pytest.mark.parametrize("other", ["2024.6.0", "2027.0.0"])
def test_another_version_is_named_with_what_is_wanted(folder: Path, other: str) -> None:
    pretend(folder, "openvino", {"openvino": other})
    found = find("openvino")
    assert (found.interpreter, found.status) == (None, "wrong version")
    assert f"openvino {other}, needs >=2026.4,<2027" in found.reason


def test_half_an_environment_is_missing_the_other_half(folder: Path) -> None:
    pretend(folder, "torch", {"torch": "2.13.0+cpu", "torchao": None})
    found = find("pytorch")
    assert found.status == "missing"
    assert "torchao, onnx2torch, onnxscript, transformers, onnx not installed" in found.reason


def test_an_interpreter_that_does_not_run_has_nothing(folder: Path) -> None:
    pretend(folder, "openvino", {}).write_text("no program")
    assert find("openvino").status == "missing"


def test_versions_of_this_environment() -> None:
    assert installed(Path(sys.executable), ["numpy", "no-such-thing"]) == {"numpy": version("numpy")}


def test_the_runtime_of_plans_is_the_back_end_of_compare() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    openvino = next(each for each in ENVIRONMENTS if each.name == "openvino")
    assert extras["openvino"] == [f"{name}{versions}" for name, versions in openvino.packages.items()]


def test_environments_lie_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environments.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert environments.folder() == Path("/somewhere/taglio/backends")


def test_a_user_without_a_home_names_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", environments.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    with pytest.raises(BadEnvironment, match="no home directory: set XDG_CACHE_HOME"):
        environments.folder()
