"""Run the command line and keep what it says; what a refusal must look like. Knows no scenario."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import taglio as package
from taglio.cli import main

ROOT = Path(__file__).parents[2]
# Weights of 7 bits: the same errors on every processor.
SCHEME = "qdq-u8s8-asym-pc-rr"
# A process of its own finds the package where this one did.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(str(package.__file__)).parents[1])}


@dataclass(frozen=True)
class Ran:
    """What a command left: its exit code, standard output and standard error (what C++ wrote there included)."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one object on standard output of a command that succeeded."""
        assert self.code == 0, self.err
        assert self.err == ""
        assert len(self.out.splitlines()) == 1, self.out
        return json.loads(self.out)


@dataclass(frozen=True)
class Case:
    """A model with data that fits it."""

    model: Path
    data: Path

    def arguments(self) -> list[object]:
        """Both, as a command takes them."""
        return [self.model, "--data", self.data]


def taglio(*arguments: object) -> Ran:
    """Run one command."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryFile() as low:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(low.fileno(), 2)
        try:
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    code = main([str(each) for each in arguments])
                except SystemExit as stop:  # argparse
                    code = stop.code if isinstance(stop.code, int) else 1
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        low.seek(0)
        below = low.read().decode(errors="replace")
    return Ran(code, out.getvalue(), below + err.getvalue())


def begun(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """A command in a process of its own; `options` are Popen's."""
    command = [sys.executable, "-m", "taglio", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **{**pipes, "env": ENVIRONMENT, **options})


def quick(case: Case, out: Path, *options: object) -> Ran:
    """An optimisation with little effort, in ONNX Runtime unless another is asked for: tests compare with it. With one
    thread, since tests run beside others."""
    scheme = () if "--scheme" in options else ("--scheme", SCHEME)
    runtime = () if "--runtime" in options else ("--runtime", "onnxruntime")
    return taglio(
        "optimize", *case.arguments(), *scheme, *runtime, "--threads", 1, "--effort", 0.01, "-o", out, *options
    )


def refused(ran: Ran, *words: object, code: int = 2) -> str:
    """The line of a refusal, which must be the only one and hold all `words`."""
    assert ran.code == code, (ran.code, ran.out[-300:], ran.err)
    assert "Traceback" not in ran.err
    assert ran.out == ""
    before = ("taglio: memory: ", "after ")  # remarks, and progress of what takes half a minute
    lines = [line for line in ran.err.splitlines() if not line.startswith(before)]
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("taglio: ")
    missing = [word for word in words if str(word) not in lines[0]]
    assert not missing, f"{missing} not in: {lines[0]}"
    return lines[0]


def snapshot(folder: Path) -> dict[str, str]:
    """Hash of every file below `folder`, hidden ones included, so a temporary file left behind shows."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
