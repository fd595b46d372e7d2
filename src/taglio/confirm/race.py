"""Race delivered folders in a process without taglio, opening after opening. Decides nothing about plans."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from taglio.confirm import opening
from taglio.confirm.speedup import DOUBT, Speedup, log_ratio, speedup
from taglio.errors import MeasurementFailed, one_line

# A child that is silent for so long beyond its budget hangs.
_HANGS_S = 600.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a race may take. It ends at a half-width of `half_width`, but not before `openings`, or after `seconds`
    (`slow_seconds` where a run takes longer than `slow_run_s`). Candidates are chosen by `choosing` openings. An
    opening times from `least_pairs` to `most_pairs`; where it takes so long that `openings` do not fit, there are
    `fewest`. `doubt` is that of the lower end at which a plan replaces float."""

    openings: int = 8
    choosing: int = 3
    fewest: int = 3
    half_width: float = 0.02
    seconds: float = 20.0
    slow_seconds: float = 60.0
    slow_run_s: float = 0.03
    least_pairs: int = 3
    most_pairs: int = 30
    doubt: float = DOUBT

    def seconds_for(self, run_s: float) -> float:
        """How long the race of a model with runs of `run_s` may take."""
        return self.slow_seconds if run_s > self.slow_run_s else self.seconds

    @property
    def pairs(self) -> tuple[int, int]:
        """The least and the most pairs of an opening."""
        return self.least_pairs, self.most_pairs


USUAL = Patience()


class Race:
    """A process that opens the same folders again and again. A context manager: the process ends with it."""

    def __init__(self, verify: Path, samples: Path) -> None:
        """`verify` is the path of a delivered verify.py, `samples` a folder that write_samples wrote."""
        self._samples, self._count = samples, 0
        # Isolated from the environment, the user's packages and this checkout, but not from the environment's packages.
        command = [sys.executable, "-I", str(opening.__file__), str(verify)]
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

    def open(self, folders: Sequence[Path], seconds: float, pairs: tuple[int, int]) -> list[list[float]]:
        """The seconds of timed runs, a list for each of `folders`, in one opening of each. Which is opened first
        alternates. Raises MeasurementFailed if one cannot be opened or run."""
        turn = self._count % len(folders)
        order = [*range(turn, len(folders)), *range(turn)]
        request = {
            "folders": [str(folders[index]) for index in order],
            "samples": str(self._samples),
            "seconds": seconds,
            "pairs": pairs,
            "seed": self._count,
        }
        self._count += 1
        answer = json.loads(self._asked(json.dumps(request)))
        if "problem" in answer:
            raise MeasurementFailed(f"the race without taglio failed: {one_line(answer['problem'], 300)}")
        by_index = dict(zip(order, answer["seconds"], strict=True))
        return [by_index[index] for index in range(len(folders))]

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
            raise MeasurementFailed(f"the race without taglio {ended}: {one_line(last or 'it said nothing', 300)}")
        return answer


def compared(race: Race, base: Path, folders: Sequence[Path], patience: Patience | None = None) -> list[Speedup]:
    """The speed-up of each of `folders` over `base`, over a few openings of all. Its figures select, so they are not
    reported as results, and slow models get no more time than others."""
    patience = patience or USUAL
    budget_s = patience.seconds / (2 * patience.openings)
    openings = [race.open([base, *folders], budget_s, patience.pairs) for _ in range(patience.choosing)]
    results = []
    for index in range(1, len(folders) + 1):
        logs = [log_ratio(seconds[0], seconds[index]) for seconds in openings]
        results.append(speedup(logs, *(median(map(median, (s[which] for s in openings))) for which in (0, index))))
    return results


def confirm(
    race: Race,
    base: Path,
    plan: Path,
    run_s: float,
    patience: Patience | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Speedup:
    """The speed-up of `plan` over `base`. A run of `base` takes about `run_s` seconds. `progress` gets two numbers: the
    openings so far and the expected ones."""
    patience = patience or USUAL
    budget_s, start = patience.seconds_for(run_s), time.monotonic()
    logs, medians = [], [list[float](), list[float]()]
    while True:
        seconds = race.open([base, plan], budget_s / (2 * patience.openings), patience.pairs)
        logs.append(log_ratio(*seconds))
        for known, values in zip(medians, seconds, strict=True):
            known.append(median(values))
        float_s, plan_s = map(median, medians)
        result = speedup(logs, float_s, plan_s, patience.doubt)
        if progress is not None:
            progress(len(logs), patience.openings)
        spent_s = time.monotonic() - start
        late = spent_s + spent_s / len(logs) > budget_s
        if len(logs) >= patience.openings:
            if late or result.half_width <= patience.half_width:
                return result
        elif late and len(logs) >= patience.fewest:
            return result
