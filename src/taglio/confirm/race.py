"""Race delivered folders in a process without taglio, opening after opening. Decides nothing about plans."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median

from taglio.confirm.bench import Bench
from taglio.confirm.speedup import DOUBT, Speedup, log_ratio, speedup
from taglio.profile.busy import PATIENCE, QUIET, kept
from taglio.progress import Progress


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a race may take.

    It ends after at least `openings` openings, once the half-width is at most `half_width` or the time is up. The time
    is `seconds` (`slow_seconds` if a run takes more than 30 ms), twice that if other programs disturb the race, and
    never more than `most_seconds`. If `openings` do not fit into the time, a race has at least `fewest`.

    An opening times from three to `most_pairs` pairs of runs, which a quiet machine needs; on a noisy one, openings are
    added. `choosing` openings compare candidates before the race. `doubt` is the chance of error at the lower end that
    decides whether a plan replaces float."""

    openings: int = 8
    choosing: int = 3
    fewest: int = 3
    half_width: float = 0.038
    seconds: float = 12.0
    slow_seconds: float = 60.0
    most_seconds: float = inf
    most_pairs: int = 15
    doubt: float = DOUBT

    def seconds_for(self, run_s: float) -> float:
        """How long the race of a model with runs of `run_s` may take."""
        return self.slow_seconds if run_s > 0.03 else self.seconds

    @property
    def pairs(self) -> tuple[int, int]:
        """The least and the most pairs of an opening."""
        return 3, self.most_pairs


USUAL = Patience()


def compared(race: Bench, base: Path, folders: Sequence[Path], patience: Patience | None = None) -> list[Speedup]:
    """The speed-up of each of `folders` over `base`, from a few openings of all. These figures select a plan, so they
    are not reported. Slow models get no more time than fast ones."""
    patience = patience or USUAL
    budget_s = patience.seconds / (2 * patience.openings)
    openings = [race.opening([base, *folders], budget_s, patience.pairs) for _ in range(patience.choosing)]
    speedups = []
    for index in range(1, len(folders) + 1):
        logs = [log_ratio(seconds[0], seconds[index]) for seconds in openings]
        base_s, folder_s = (median(median(seconds[model]) for seconds in openings) for model in (0, index))
        speedups.append(speedup(logs, base_s, folder_s))
    return speedups


def confirm(
    race: Bench,
    base: Path,
    plan: Path,
    run_s: float,
    patience: Patience | None = None,
    progress: Progress | None = None,
) -> Speedup:
    """The speed-up of `plan` over `base`. A run of `base` takes about `run_s` seconds.

    Openings that other programs disturbed are repeated, as far as `patience` allows, and only the quietest count. While
    other programs used one of two processors, a plan that is 3.7 × as fast was measured at 3.0 to 3.8 ×.
    """
    patience = patience or USUAL
    budget_s, start = patience.seconds_for(run_s), time.monotonic()
    openings, watch = list[list[list[float]]](), race.watch()
    while True:
        openings.append(race.opening([base, plan], budget_s / (2 * patience.openings), patience.pairs))
        watch.look(len(openings), last=True)
        if progress is not None:
            progress("confirm", min(len(openings), patience.openings), patience.openings)
        so_far = _over([openings[index] for index in kept(watch.windows, patience.openings)], patience.doubt)
        is_quiet = sum(window.others <= QUIET for window in watch.windows) >= min(len(openings), patience.openings)
        spent_s = time.monotonic() - start
        end_s = min(patience.most_seconds, budget_s * (1 if is_quiet else PATIENCE))
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
