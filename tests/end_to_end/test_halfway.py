"""A full disk, an impatient user, a killed process: what was there stays, and the next run succeeds."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Staged
from tests.end_to_end.command import ENVIRONMENT, SCHEME, Case, quick, refused, snapshot, taglio


def commands_that_write(case: Case, out: Path) -> list[tuple[object, ...]]:
    return [
        ("profile", *case.arguments(), "--scheme", SCHEME, "--effort", 0.01, "-o", out),
        ("error", out, "--effort", 0.01),
        ("plan", out, "--max-error", 0.05),
        ("build", out),
        ("run", out, "--runs", 3),
        ("report", out),
        ("quantize", *case.arguments(), "-o", out / "components" / "model.onnx"),
    ]


@pytest.mark.parametrize("index", range(7), ids=["profile", "error", "plan", "build", "run", "report", "quantize"])
def test_a_disk_that_is_full(index: int, workspace: Path, tiny: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write beside the artifacts fails halfway, as on a full disk."""
    before, write = snapshot(workspace), Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if workspace in self.parents:
            write(self, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    refused(taglio(*commands_that_write(tiny, workspace)[index]), "BadArtifact", str(workspace), "the disk is full")
    assert snapshot(workspace) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if sys.platform != "linux" or os.geteuid() != 0 or mount is None or unmount is None:
        pytest.skip("mounting a small file system takes root on Linux")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no small file system here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([unmount, str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def test_a_real_disk_that_is_full(small_disk: Path, workspace: Path, tiny: Case) -> None:
    out = Path(shutil.copytree(workspace, small_disk / "out"))
    fill(small_disk / "filler")
    before = snapshot(out)
    for command in commands_that_write(tiny, out):
        refused(taglio(*command), "the disk is full")
        assert snapshot(out) == before
    (small_disk / "filler").unlink()
    assert taglio("build", out).code == 0


def test_a_folder_that_cannot_be_made(tiny: Case, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    options = ("--scheme", SCHEME, "--effort", 0.01)
    refused(taglio("profile", *tiny.arguments(), *options, "-o", tmp_path / "file"), "file", "-o")
    refused(taglio("profile", *tiny.arguments(), *options, "-o", tmp_path / "file" / "out"), "file", "-o")
    assert (tmp_path / "file").read_text() == "here first"


def started(case: Case, out: Path) -> subprocess.Popen[str]:
    """An optimisation in a process of its own, its profile just written."""
    options = ("--max-error", "0.01", "--scheme", SCHEME, "--effort", "0.02", "-o", out, "--json")
    command = [sys.executable, "-m", "taglio.cli", "optimize", *case.arguments(), *options]
    process = subprocess.Popen(
        [str(each) for each in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    until = time.monotonic() + 300
    while not (out / "profile.json").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_stopped_halfway(how: signal.Signals, few_digits: Case, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = started(few_digits, out)
    process.send_signal(how)
    printed, said = process.communicate(timeout=300)
    assert printed == ""
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert len(said.splitlines()) == 1
        assert said.startswith("taglio: stopped")
        assert not [path for path in out.rglob(".*") if path.is_file()]
    else:
        assert process.returncode == -signal.SIGKILL
    assert not (out / "plan.json").exists()
    assert not (out / "outcome.json").exists()
    # What was written is whole: the next stage reads it, and the whole flow runs over it.
    assert taglio("error", out, "--effort", 0.01, "--json").json()["evaluations"] > 0
    assert quick(few_digits, out, "--max-error", 0.01, "--json").json()["plan"]["error"] <= 0.01


def test_an_interrupted_run_over_an_old_one(workspace: Path, tiny: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("taglio.flow.error.study", impatient)
    before = snapshot(workspace)
    ran = quick(tiny, workspace, "--max-error", 0.05)
    refused(ran, "stopped", "intact", code=130)
    assert set(snapshot(workspace)) == set(before)
    assert snapshot(workspace)["plan.json"] == before["plan.json"]


def test_standard_output_that_closes(digits: Case) -> None:
    """`taglio inspect | head -1` says nothing about it."""
    command = [sys.executable, "-m", "taglio.cli", "inspect", str(digits.model)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_a_workspace_is_not_changed_by_reading_it(tiny_staged: Staged, workspace: Path) -> None:
    assert snapshot(workspace) == snapshot(tiny_staged.folder)
    assert taglio("build", workspace, "--json").json() == tiny_staged.printed["build"]
    changed = {name for name, digest in snapshot(workspace).items() if snapshot(tiny_staged.folder)[name] != digest}
    assert not changed
