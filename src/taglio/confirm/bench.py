"""Measure delivered folders in a process without taglio, opened afresh side by side or under load. Compares nothing."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from taglio.confirm import answering
from taglio.data.dataset import Sample
from taglio.deploy import verify
from taglio.deploy.write import Answered, write_samples
from taglio.errors import MeasurementFailed, one_line
from taglio.profile.busy import BusyWatch
from taglio.scratch import scratch

# A process that has not answered a request for so long is assumed to hang.
_HANGS_S = 600.0


@dataclass(frozen=True, slots=True)
class Burst:
    """A closed loop's items per second, and the seconds of each run."""

    per_s: float
    runs: tuple[float, ...]


class Bench:
    """A process that opens delivered folders and runs them on `inputs` (answering.py). A context manager: the process
    ends with it."""

    def __init__(self, inputs: Sequence[Sample]) -> None:
        self._count, self._worked_s = 0, 0.0
        with ExitStack() as stack:
            samples = stack.enter_context(scratch())
            write_samples(samples, [Answered(sample, {}) for sample in inputs])
            # Isolated from the environment, the user's packages and this checkout, but not from the environment's
            # packages.
            command = [sys.executable, "-I", str(answering.__file__), str(verify.__file__), str(samples)]
            # A file, not a pipe: ONNX Runtime warns of some models in every opening, and a full pipe would stop it.
            self._said = stack.enter_context(tempfile.TemporaryFile())
            self._process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said)
            )
            stack.callback(self._process.kill)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def opening(self, folders: Sequence[Path], seconds: float, pairs: tuple[int, int]) -> list[list[float]]:
        """The seconds of timed runs, a list for each of `folders`, in one opening of each. The folder that is opened
        first changes from opening to opening. Raises MeasurementFailed if one cannot be opened or run."""
        turn = self._count % len(folders)
        order = [*range(turn, len(folders)), *range(turn)]
        paths = [str(folders[index]) for index in order]
        answer = self._ask({"do": "opening", "folders": paths, "seconds": seconds, "pairs": pairs})
        self._worked_s = answer["worked"]
        by_index = dict(zip(order, answer["seconds"], strict=True))
        return [by_index[index] for index in range(len(folders))]

    def watch(self) -> BusyWatch:
        """A watch of how much of the processors other programs use, besides this process and that of the bench."""
        return BusyWatch(child_s=lambda: self._worked_s)

    def open(self, folders: Sequence[Path]) -> list[int]:
        """Open folders beside those that are open; the bytes of memory that each took. Raises MeasurementFailed if one
        cannot be opened or run."""
        memory: list[int] = self._ask({"do": "open", "folders": [str(folder) for folder in folders]})["memory"]
        return memory

    def close(self) -> None:
        """Close all folders."""
        self._ask({"do": "close"})

    def closed_loop(self, folders: Sequence[Path], seconds: float, rounds: int) -> list[list[Burst]]:
        """The bursts of each open folder, one a round, of `seconds` each. Folders take turns, so that the burst of a
        round can be compared with that of another folder in it."""
        paths = [str(folder) for folder in folders]
        results = self._ask({"do": "closed", "folders": paths, "seconds": seconds, "rounds": rounds})["results"]
        return [
            [Burst(per_s, tuple(runs)) for per_s, runs in zip(of_folder["per_s"], of_folder["runs"], strict=True)]
            for of_folder in results
        ]

    def open_loop(self, folder: Path, per_s: float, count: int) -> list[float]:
        """Seconds from arrival to answer of `count` requests that arrive at random, `per_s` on average."""
        request = {"do": "open_loop", "folder": str(folder), "per_s": per_s, "count": count}
        seconds: list[float] = self._ask(request)["seconds"]
        return seconds

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises MeasurementFailed if it is a problem, or if the process ends."""
        self._count += 1
        answer: dict[str, Any] = json.loads(self._answered(json.dumps({**request, "seed": self._count})))
        if "problem" in answer:
            raise MeasurementFailed(
                f"the measuring process, which runs without taglio, failed: {one_line(answer['problem'], 300)}"
            )
        return answer

    def _answered(self, line: str) -> bytes:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        guard = threading.Timer(_HANGS_S, self._process.kill)
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
            self._process.kill()
            code = self._process.wait()
            self._said.seek(0)
            last = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
            killed = f"was killed: it gave no answer for {_HANGS_S:.0f} s, or memory ran out"
            ended = killed if code == -signal.SIGKILL else f"ended with exit code {code}"
            raise MeasurementFailed(
                f"the measuring process, which runs without taglio, {ended}: {one_line(last or 'it said nothing', 300)}"
            )
        return answer
