"""A process without taglio that answers requests, one JSON object a line, until it is closed. Knows no request."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from taglio.confirm import answering
from taglio.errors import MeasurementFailed, one_line

# A child that is silent for so long beyond its budget hangs.
_HANGS_S = 600.0


class Child:
    """The process that answers requests as `script` does with a delivered verify.py (answering.py). A context manager:
    the process ends with it."""

    def __init__(self, script: Path, verify: Path) -> None:
        # Isolated from the environment, the user's packages and this checkout, but not from the environment's packages.
        command = [sys.executable, "-I", str(answering.__file__), str(verify), str(script)]
        with ExitStack() as stack:
            # A file, not a pipe: ONNX Runtime warns of some models in every opening, and a full pipe would stop it.
            self._said = stack.enter_context(tempfile.TemporaryFile())
            self._child = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said)
            )
            stack.callback(self._child.kill)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises MeasurementFailed if it is a problem, or if the process ends."""
        answer: dict[str, Any] = json.loads(self._asked(json.dumps(request)))
        if "problem" in answer:
            raise MeasurementFailed(
                f"the measuring process, which runs without taglio, failed: {one_line(answer['problem'], 300)}"
            )
        return answer

    def _asked(self, line: str) -> bytes:
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        guard = threading.Timer(_HANGS_S, self._child.kill)
        guard.daemon = True
        guard.start()
        try:
            stdin.write(line.encode() + b"\n")
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            guard.cancel()
        if not answer:
            self._child.kill()
            code = self._child.wait()
            self._said.seek(0)
            last = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
            killed = f"was killed: it gave no answer for {_HANGS_S:.0f} s, or memory ran out"
            ended = killed if code == -signal.SIGKILL else f"ended with exit code {code}"
            raise MeasurementFailed(
                f"the measuring process, which runs without taglio, {ended}: {one_line(last or 'it said nothing', 300)}"
            )
        return answer
