"""What one stage leaves for the next: whole or not at all, and only for the version, kind and model it is of."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from taglio import artifact
from taglio.components.build import Manifest
from taglio.error.model import ErrorModel
from taglio.errors import BadArtifact
from taglio.flow.outcome import Outcome
from taglio.flow.workspace import Calibrated
from taglio.lab.setup import Setup
from taglio.plan.result import Plan
from taglio.profile.result import Profile
from taglio.run.in_process import RunReport
from tests.conftest import Optimized, Staged
from tests.end_to_end.command import snapshot

MODEL = "a" * 64
KINDS: dict[str, tuple[str, type[Any]]] = {
    "setup.json": ("setup", Setup),
    "calibrated.json": ("calibrated", Calibrated),
    "profile.json": ("profile", Profile),
    "error.json": ("error", ErrorModel),
    "plan.json": ("plan", Plan),
    "components/manifest.json": ("manifest", Manifest),
    "outcome.json": ("outcome", Outcome),
    "run.json": ("run", RunReport),
}


@dataclass(frozen=True, slots=True)
class Value:
    """Something to keep."""

    name: str
    numbers: tuple[float, ...]
    inner: dict[str, tuple[int, int]]


KEPT = Value("ünï", (0.1, 1e-300, 1e-7, 1 / 3, -0.0, 5e20), {"a": (1, 2)})


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "value.json"
    artifact.save(path, "value", MODEL, KEPT)
    return path


@pytest.mark.parametrize("name", KINDS)
def test_what_stages_leave_comes_back_the_same(
    name: str, optimized: Optimized, tiny_staged: Staged, tmp_path: Path
) -> None:
    path, copy = (tiny_staged if name == "run.json" else optimized).folder / name, tmp_path / "again.json"
    kind, expected = KINDS[name]
    sha256 = json.loads(path.read_text())["model_sha256"]
    value = artifact.load(path, kind, expected, model_sha256=sha256)
    assert type(value) is expected
    artifact.save(copy, kind, sha256, value)
    assert artifact.load(copy, kind, expected) == value
    assert copy.read_bytes() == path.read_bytes()


def test_an_optimisation_leaves_these_files_and_no_others(optimized: Optimized) -> None:
    expected = {*KINDS, "graph.json", "float32.onnx", "components/model.onnx", "report.html"} - {"run.json"}
    expected |= {f"deploy/{name}" for name in ("README.md", "deploy.json", "model.onnx", "session.json", "verify.py")}
    samples = [f"{number}-{kind}-0.npy" for number in range(2) for kind in ("inputs", "outputs")]
    expected.add("delivered.json")
    expected |= {f"deploy/samples/{name}" for name in (*samples, "samples.json")}
    assert set(snapshot(optimized.folder)) == expected


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o002, 0o664)])
def test_files_are_readable_by_whom_the_umask_lets(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        artifact.write_bytes(tmp_path / "file", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_another_kind_or_version_is_refused(kept: Path) -> None:
    with pytest.raises(BadArtifact, match="its kind is value, not plan: run `taglio plan` again"):
        artifact.load(kept, "plan", Plan)
    whole = json.loads(kept.read_text())
    for version in (0, artifact.FORMAT_VERSION + 1, 10**6):
        kept.write_text(json.dumps(whole | {"format_version": version}))
        with pytest.raises(BadArtifact, match=f"version {version}, but this taglio reads {artifact.FORMAT_VERSION}"):
            artifact.load(kept, "value", Value)


def test_a_value_that_was_changed_is_damage(kept: Path) -> None:
    kept.write_text(kept.read_text().replace("0.1,", "0.2,"))
    with pytest.raises(BadArtifact, match=r"it was changed after it was written\): make it again"):
        artifact.load(kept, "value", Value)


def test_another_program_may_format_a_file_anew(kept: Path) -> None:
    other = json.dumps(json.loads(kept.read_text()))
    assert "1e-07" in other and "1e-7," in kept.read_text()
    kept.write_text(other)
    assert artifact.load(kept, "value", Value) == KEPT


@pytest.mark.parametrize("deep", ["[" * 200_000, '{"a":' * 200_000], ids=["lists", "objects"])
def test_nesting_without_end_is_damage(deep: str, kept: Path) -> None:
    whole = kept.read_text()
    for damaged in (deep, whole.replace('"ünï"', deep), whole.replace('"body"', f'"x": {deep}, "body"')):
        kept.write_text(damaged)
        with pytest.raises(BadArtifact, match="make it again"):
            artifact.load(kept, "value", Value)


def test_pipes_and_devices_are_neither_read_nor_replaced(tmp_path: Path) -> None:
    """Reading could wait forever, and a file that takes the place of /dev/null breaks the machine."""
    pipe = tmp_path / "value.json"
    os.mkfifo(pipe)
    with pytest.raises(BadArtifact, match="not a regular file"):
        artifact.load(pipe, "value", Value)
    with pytest.raises(BadArtifact, match="not a regular file: choose another name"):
        artifact.save(pipe, "value", MODEL, KEPT)
    assert pipe.is_fifo()
    with pytest.raises(OSError, match="not a regular file"):
        artifact.read_bytes(Path("/dev/zero"))


@pytest.mark.parametrize(
    "content",
    [b"[]", b"\xff\xfe\x00", b'{"kind": "value"}'],
    ids=["a list", "binary", "a field"],
)
def test_what_is_no_artifact_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(content)
    with pytest.raises(BadArtifact, match=r"value\.json") as caught:
        artifact.load(path, "value", Value)
    assert "\n" not in str(caught.value)


@contextmanager
def failing(where: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(where, refuse)
        yield


@pytest.mark.parametrize(
    "where", ["pathlib.Path.touch", "pathlib.Path.write_bytes", "os.fsync", "pathlib.Path.replace"]
)
def test_a_write_that_fails_changes_nothing(where: str, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(kept.parent)
    with failing(where, monkeypatch), pytest.raises(BadArtifact, match=r"value\.json: the disk is full"):
        artifact.save(kept, "value", MODEL, Value("other", (), {}))
    assert snapshot(kept.parent) == before


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_a_write_that_is_stopped_changes_nothing(stop: type[BaseException], kept: Path) -> None:
    before = snapshot(kept.parent)
    with pytest.raises(stop), artifact.replacing(kept) as temporary:  # noqa: PT012 - the block is what is tested
        temporary.write_bytes(b"half of")
        raise stop
    assert snapshot(kept.parent) == before
