"""Race delivered folders in a process without taglio, opening after opening. Decides nothing about plans."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median

from taglio.confirm import opening
from taglio.confirm.child import Child
from taglio.confirm.speedup import DOUBT, Speedup, log_ratio, speedup
from taglio.data.dataset import Sample
from taglio.deploy import verify
from taglio.deploy.write import Answered, write_samples
from taglio.profile.busy import QUIET, BusyWatch, quietest
from taglio.progress import Progress
from taglio.scratch import scratch


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a race may take. It ends after at least `openings` once the half-width is at most `half_width`, or after
    `seconds` (`slow_seconds` where a run takes longer than `slow_run_s`), or twice that where other programs disturb
    it, but never after more than `most_seconds`. Candidates are chosen by `choosing` openings.
    An opening times from `least_pairs` to `most_pairs`: as many as a quiet machine needs; on a noisy one, openings are
    added. Where openings take so long that `openings` do not fit, a race has at least `fewest`. `doubt` is that of the
    lower end at which a plan replaces float."""

    openings: int = 8
    choosing: int = 3
    fewest: int = 3
    half_width: float = 0.026
    seconds: float = 12.0
    slow_seconds: float = 60.0
    slow_run_s: float = 0.03
    most_seconds: float = inf
    least_pairs: int = 3
    most_pairs: int = 15
    doubt: float = DOUBT

    def seconds_for(self, run_s: float) -> float:
        """How long the race of a model with runs of `run_s` may take."""
        return self.slow_seconds if run_s > self.slow_run_s else self.seconds

    @property
    def pairs(self) -> tuple[int, int]:
        """The least and the most pairs of an opening."""
        return self.least_pairs, self.most_pairs


USUAL = Patience()


class Race(Child):
    """A process that opens the same folders again and again and runs `inputs`. A context manager: the process ends with
    it."""

    def __init__(self, inputs: Sequence[Sample]) -> None:
        with ExitStack() as stack:
            self._samples, self._count, self._worked_s = stack.enter_context(scratch()), 0, 0.0
            write_samples(self._samples, [Answered(sample, {}) for sample in inputs])
            super().__init__(Path(opening.__file__), Path(verify.__file__))
            self._stack.push(stack.pop_all())

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
        answer = self.ask(request)
        self._worked_s = answer["worked"]
        by_index = dict(zip(order, answer["seconds"], strict=True))
        return [by_index[index] for index in range(len(folders))]

    def watch(self) -> BusyWatch:
        """A watch of what programs other than this process and the race use of the processors."""
        return BusyWatch(child_s=lambda: self._worked_s)


def compared(race: Race, base: Path, folders: Sequence[Path], patience: Patience | None = None) -> list[Speedup]:
    """The speed-up of each of `folders` over `base`, over a few openings of all. These figures select, so they are not
    reported. Slow models get no more time than fast ones."""
    patience = patience or USUAL
    budget_s = patience.seconds / (2 * patience.openings)
    openings = [race.open([base, *folders], budget_s, patience.pairs) for _ in range(patience.choosing)]
    speedups = []
    for index in range(1, len(folders) + 1):
        logs = [log_ratio(seconds[0], seconds[index]) for seconds in openings]
        base_s, folder_s = (median(median(seconds[model]) for seconds in openings) for model in (0, index))
        speedups.append(speedup(logs, base_s, folder_s))
    return speedups


def confirm(
    race: Race,
    base: Path,
    plan: Path,
    run_s: float,
    patience: Patience | None = None,
    progress: Progress | None = None,
) -> Speedup:
    """The speed-up of `plan` over `base`. A run of `base` takes about `run_s` seconds.

    Openings that other programs disturbed are repeated, as far as `patience` allows, and the quietest count: while
    other programs used one of two processors, a plan of 3.7 × was between 3.0 and 3.8.
    """
    patience = patience or USUAL
    budget_s, start = patience.seconds_for(run_s), time.monotonic()
    openings, watch = list[list[list[float]]](), race.watch()
    while True:
        openings.append(race.open([base, plan], budget_s / (2 * patience.openings), patience.pairs))
        watch.look()
        if progress is not None:
            progress("confirm", min(len(openings), patience.openings), patience.openings)
        so_far = _over([openings[index] for index in quietest(watch.shares, patience.openings)], patience.doubt)
        is_quiet = sum(share <= QUIET for share in watch.shares) >= min(len(openings), patience.openings)
        spent_s = time.monotonic() - start
        end_s = min(patience.most_seconds, budget_s * (1 if is_quiet else 2))
        late = spent_s + spent_s / len(openings) > end_s
        if len(openings) >= patience.openings:
            if late or (is_quiet and so_far.half_width <= patience.half_width):
                return so_far
        elif late and len(openings) >= patience.fewest:
            return so_far


def _over(openings: Sequence[Sequence[Sequence[float]]], doubt: float) -> Speedup:
    """The speed-up from the seconds of runs by opening and model, float first."""
    logs = [log_ratio(*seconds) for seconds in openings]
    float_s, plan_s = (median(median(seconds[model]) for seconds in openings) for model in (0, 1))
    return speedup(logs, float_s, plan_s, doubt)
