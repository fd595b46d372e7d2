"""Temporary folders do not outlive the processes that made them, however those ended."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from taglio import scratch as module
from taglio.scratch import scratch
from tests.end_to_end.command import ENVIRONMENT

_HOLD = """
from taglio.scratch import scratch
with scratch() as folder:
    print(folder, flush=True)
    input()
"""


def test_what_a_killed_process_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_YOUNG_S", 0.0)
    processes, folders = [], []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**ENVIRONMENT, "TMPDIR": str(tmp_path)},
        )
        assert process.stdout is not None
        processes.append(process)
        folders.append(Path(process.stdout.readline().strip()))
    dead, alive = folders
    (dead / "model.onnx").write_bytes(b"half")
    processes[0].kill()
    processes[0].communicate()
    os.utime(dead, (time.time() - 1.0,) * 2)
    with scratch() as own:
        assert own.is_dir()
        assert not dead.exists()
        assert alive.is_dir()  # its process lives
    assert not own.exists()
    processes[1].kill()
    processes[1].communicate()


def test_a_clock_that_was_set_back_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{module.PREFIX}left"
    left.mkdir()
    os.utime(left, (time.time() + 1e6,) * 2)
    with scratch():
        assert not left.exists()
