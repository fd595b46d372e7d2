"""Confirm a way: its capacity and its rate over fresh openings, beside the source model in ONNX Runtime with default
options. Selects nothing."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean, median, stdev

import numpy as np

from taglio.confirm.bench import Bench, Burst
from taglio.confirm.race import USUAL
from taglio.confirm.speedup import COVERAGE
from taglio.progress import Progress
from taglio.runtimes.way import Way
from taglio.student import t_quantile
from taglio.ways.loaded import loaded
from taglio.ways.replay import KEPT, PERCENTILE, ServiceTimes, highest_rate
from taglio.ways.result import Figure, Load

# Shares of the capacity at which latencies are reported. At higher shares, a few requests say little about latency.
LOADS = (0.5, 0.7, 0.8)
# A rate that breaks the limit is lowered to this share of it, or by two such steps if latencies are so many times as
# long as they may be.
_STEP, _FAR = 0.93, 1.3


@dataclass(frozen=True, slots=True)
class Sized:
    """A model in a way. `folders` has, by the number of items joined in a run, the folder of the model that joins so
    many. The largest number is that of the way."""

    way: Way
    folders: dict[int, Path]

    @property
    def folder(self) -> Path:
        """The folder for as many items as the way joins."""
        return self.folders[self.way.joined]


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """One opening of some `models`, and their `bursts`, a dict for each model: by the number of items joined, the
    bursts in the order of the rounds."""

    models: Sequence[Sized]
    bursts: tuple[dict[int, list[Burst]], ...]

    def rates(self, model: int) -> list[float]:
        """Items per second of a model in its way, round by round."""
        return [burst.per_s for burst in self.bursts[model][self.models[model].way.joined]]

    def ratio(self, model: int, other: int) -> float:
        """The capacity of a model divided by that of another, by rounds that ran side by side."""
        return exp(median(log(one / two) for one, two in zip(self.rates(model), self.rates(other), strict=True)))

    def highest_rate(self, model: int, limit_s: float, seed: int) -> float:
        """The highest rate of a model within a limit on latency, by replaying arrivals over its runs."""
        runs = {items: [run for burst in own for run in burst.runs] for items, own in self.bursts[model].items()}
        return highest_rate(ServiceTimes(runs), self.models[model].way, limit_s, seed)


def opening(bench: Bench, models: Sequence[Sized], burst_s: float, rounds: int = 3) -> Opening:
    """Open all models afresh, and measure each of them in a burst of `burst_s` a round."""
    bench.close()
    folders = [(index, items, folder) for index, model in enumerate(models) for items, folder in model.folders.items()]
    bench.open([folder for _, _, folder in folders])
    by_folder = bench.closed_loop([folder for _, _, folder in folders], burst_s, rounds)
    bursts: tuple[dict[int, list[Burst]], ...] = tuple({} for _ in models)
    for (index, items, _), of_folder in zip(folders, by_folder, strict=True):
        bursts[index][items] = of_folder
    return Opening(models, bursts)


def openings(
    bench: Bench, models: Sequence[Sized], burst_s: float, seconds: float, progress: Progress | None = None
) -> list[Opening]:
    """As many openings as begin within so many `seconds`, between the fewest and the most of a race."""
    until, opened = time.perf_counter() + seconds, list[Opening]()
    while len(opened) < USUAL.fewest or (len(opened) < USUAL.openings and time.perf_counter() < until):
        if progress is not None:
            progress("confirm", len(opened), USUAL.openings)
        opened.append(opening(bench, models, burst_s))
    return opened


def figure(values: Sequence[float]) -> Figure:
    """The geometric mean with the ends of its interval, by Student's t over openings."""
    logs = [log(value) for value in values]
    middle, count = fmean(logs), len(logs)
    reach = t_quantile(0.5 * (1.0 + COVERAGE), count - 1) * stdev(logs) / count**0.5
    return Figure(exp(middle), exp(middle - reach), exp(middle + reach))


@dataclass(frozen=True, slots=True)
class ConfirmedRate:
    """The rate that a load confirmed, and the latency of 19 of 20 requests at that rate. `p95_s` is None if the rate
    was not confirmed, for the reason `why`."""

    rate: Figure
    p95_s: float | None
    why: str = ""


def rate_of(opened: Sequence[Opening], model: int, limit_s: float) -> Figure | None:
    """The highest rate of a model within a limit on latency, over all openings; None if a single run breaks the
    limit."""
    rates = [fresh.highest_rate(model, limit_s, seed) for seed, fresh in enumerate(opened)]
    return None if min(rates) <= 0.0 else figure(rates)


def kept_rate(
    bench: Bench, folder: Path, replayed: Figure, limit_s: float, seconds: float, *, loads: int = 3
) -> ConfirmedRate:
    """The rate that a real load confirms within `seconds`, from the `replayed` one. Requests arrive at random, and the
    rate is lowered until 19 of 20 requests are answered within 0.9 of the limit.

    So many `loads` in a row, at 1.05 times the rate, confirm it: near the capacity, the queue grows when the machine
    pauses for a moment. A load has at least a thousand requests, enough for the 95th percentile, and lasts at least
    three seconds, long enough for a growing queue to show.
    """
    rate, until, latencies_s = replayed, time.perf_counter() + seconds, list[float]()
    while True:
        per_s = 1.05 * rate.value
        count = max(1000, int(3.0 * per_s))
        if count / per_s > until - time.perf_counter():
            if latencies_s:  # a slow model has no time for three loads
                return ConfirmedRate(rate, max(latencies_s))
            return ConfirmedRate(
                rate, None, f"the rate under a real load: {count:,} requests take {count / per_s:.0f} s"
            )
        p95_s = float(np.percentile(bench.open_loop(folder, per_s, count), PERCENTILE))
        latencies_s.append(p95_s)
        if p95_s > KEPT * limit_s:
            latencies_s.clear()
            step = _STEP if p95_s <= _FAR * KEPT * limit_s else _STEP**2
            rate = Figure(step * rate.value, step * rate.low, step * rate.high)
        elif len(latencies_s) == loads:
            return ConfirmedRate(rate, max(latencies_s))


def under_loads(bench: Bench, folder: Path, capacity_per_s: float, seconds: float) -> tuple[tuple[Load, ...], str]:
    """Latencies at shares of a capacity that was measured just before, and a line that names the shares for which no
    time was left, or ""."""
    until, loads = time.perf_counter() + seconds, list[Load]()
    for index, share in enumerate(LOADS):
        left_s = (until - time.perf_counter()) / (len(LOADS) - index)
        per_s = share * capacity_per_s
        if per_s * left_s < 100:
            return tuple(loads), f"latency under load: {per_s:.3g} requests/s are too few in {left_s:.0f} s"
        loads.append(loaded(bench, folder, per_s, share, left_s))
    return tuple(loads), ""
