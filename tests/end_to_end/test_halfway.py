"""A full disk, an impatient user, a killed process: what was there stays, and the next run succeeds."""

import errno
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from taglio import artifact, transaction
from tests.conftest import Staged
from tests.end_to_end.command import SCHEME, Case, begun, quick, refused, snapshot, taglio
from tests.models import conv_relu_chain, saved

SOME = ("--scheme", SCHEME, "--runtime", "onnxruntime")


def commands_that_write(case: Case, out: Path) -> list[tuple[object, ...]]:
    return [
        ("profile", *case.arguments(), *SOME, "--effort", 0.01, "-o", out),
        ("error", out, "--effort", 0.01),
        ("plan", out, "--max-error", 0.05, "--effort", 0.01),
        ("build", out),
        ("run", out, "--runs", 3),
        ("report", out),
        ("quantize", *case.arguments(), "-o", out / "components" / "model.onnx"),
    ]


def test_a_disk_that_is_full(workspace: Path, tiny: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write beside the artifacts fails halfway, as on a full disk."""
    before, write = snapshot(workspace), Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if workspace in self.parents:
            write(self, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    for command in commands_that_write(tiny, workspace):
        refused(taglio(*command), "BadArtifact", str(workspace), "the disk is full")
        assert snapshot(workspace) == before


def test_a_folder_that_cannot_be_made(tiny: Case, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    options = ("--scheme", SCHEME, "--effort", 0.01)
    refused(taglio("profile", *tiny.arguments(), *options, "-o", tmp_path / "file"), "file", "-o")
    refused(taglio("profile", *tiny.arguments(), *options, "-o", tmp_path / "file" / "out"), "file", "-o")
    assert (tmp_path / "file").read_text() == "here first"


@pytest.fixture
def other(tiny: Case, tmp_path: Path) -> Case:
    """Another model that takes the tiny one's data."""
    return Case(saved(conv_relu_chain(), tmp_path), tiny.data)


def optimizing(case: Case, out: Path) -> "subprocess.Popen[str]":
    """An optimisation that works in a copy of `out`, and will for seconds."""
    process = begun("optimize", *case.arguments(), "--max-error", 0.01, *SOME, "--effort", 0.2, "-o", out, "--json")
    until = time.monotonic() + 300
    while not [*out.glob(".taglio-new/*/profile.json")] and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_stopped_halfway(how: signal.Signals, other: Case, workspace: Path) -> None:
    """Over the workspace of another model, which no other command may use meanwhile: it stays as it was, and the next
    run replaces it."""
    before = snapshot(workspace)
    process = optimizing(other, workspace)
    second = ("optimize", *other.arguments(), "--max-error", 0.01, "-o", workspace)
    others = () if how is signal.SIGINT else (second, *commands_that_write(other, workspace)[:6])
    try:
        for command in others:  # an interrupt comes at once: later there is something to deliver
            refused(taglio(*command), "Busy", workspace, "in use by another taglio")
    finally:
        process.send_signal(how)
    printed, said = process.communicate(timeout=300)
    assert printed == ""
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert len(said.splitlines()) == 1
        assert said.startswith("taglio: stopped")
        assert snapshot(workspace) == before
    else:
        assert process.returncode == -signal.SIGKILL
    assert taglio("run", workspace, "--runs", 3).code == 0
    assert {name for name in snapshot(workspace) if snapshot(workspace)[name] != before.get(name)} == {"run.json"}
    assert quick(other, workspace, "--max-error", 0.01, "--json").json()["plan"]["error"] <= 0.01
    assert not [*workspace.rglob(".*")]


def test_other_folders_of_a_workspace_are_read_and_stay(workspace: Path) -> None:
    (workspace / "mine").mkdir()
    (workspace / "mine" / "far.json").write_text("1")
    with transaction.changing(workspace) as staged:
        assert (staged / "mine" / "far.json").read_text() == "1"
        artifact.write_bytes(staged / "profiles" / "near.json", b"2")
    assert (workspace / "mine" / "far.json").read_text() == "1" and not (workspace / "mine").is_symlink()
    assert (workspace / "profiles" / "near.json").read_text() == "2"
    with transaction.changing(workspace) as staged:
        transaction.drop(staged, "profiles")
    assert not (workspace / "profiles").exists()


def test_a_workspace_is_not_changed_by_reading_it(tiny_staged: Staged, workspace: Path) -> None:
    assert snapshot(workspace) == snapshot(tiny_staged.folder)
    again, before = taglio("build", workspace, "--json").json(), dict(tiny_staged.printed["build"])
    assert again.pop("deploy")["proof"]["distance"] == before.pop("deploy")["proof"]["distance"] == 0.0
    assert again == before
    changed = {name for name, digest in snapshot(workspace).items() if snapshot(tiny_staged.folder)[name] != digest}
    assert changed <= {"deploy/README.md", "delivered.json"}  # they hold the memory that the proof took
