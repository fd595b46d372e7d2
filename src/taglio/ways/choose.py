"""Choose the fastest way among delivered models by measuring them under load. Confirms nothing."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from taglio.confirm.bench import Bench, Burst
from taglio.deploy.write import write_in_way
from taglio.errors import MeasurementFailed
from taglio.progress import Progress
from taglio.runtimes.way import Way
from taglio.ways.climb import Choice, Sides, best_of, climb
from taglio.ways.replay import KEPT, PERCENTILE, ServiceTimes, highest_rate, waits
from taglio.ways.result import TriedWay


def burst_of(run_s: float) -> float:
    """Seconds of a burst of runs of `run_s`: those of four runs, but never so few that ways cannot be compared."""
    return min(0.6, max(0.12, 4 * run_s))


@dataclass(frozen=True, slots=True)
class Contender:
    """A model that takes part in the search, in deploy/'s format in `folder`. `name` is that of its plan, `runtime`
    runs it, and `sides` says what may change in its way. `alone` says why requests are not joined, or ""."""

    name: str
    runtime: str
    folder: Path
    sides: Sides
    is_float: bool
    alone: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """The aim of the search: the highest capacity, or with `max_latency_s` the highest rate within that limit. A run
    has at most `threads` threads (None: one per core)."""

    max_latency_s: float | None = None
    threads: int | None = None


@dataclass(slots=True)
class Tries:
    """The ways that were measured. The process of `bench` holds them open, each from a folder of its own below `root`.
    The search takes `seconds`, a burst `burst_s`. A way whose open model takes more than `memory_bytes` (None: no
    limit) has the value 0. `progress` is called with the percentage of the time that has passed."""

    bench: Bench
    models: Mapping[str, Contender]
    root: Path
    goal: Goal
    seconds: float
    burst_s: float
    memory_bytes: int | None = None
    progress: Progress | None = None
    folders: dict[Choice, Path] = field(default_factory=dict)
    memory: dict[Choice, int] = field(default_factory=dict)
    bursts: dict[Choice, list[Burst]] = field(default_factory=dict)
    refused: dict[Choice, MeasurementFailed] = field(default_factory=dict)

    def folder(self, choice: Choice) -> Path:
        """The folder of a model in a way."""
        if choice not in self.folders:
            self.folders[choice] = self.root / f"way-{len(self.folders)}"
            write_in_way(self.folders[choice], self.models[choice.model].folder, choice.way)
        return self.folders[choice]

    def measure(self, choices: Sequence[Choice]) -> dict[Choice, float]:
        """The values of choices that are measured side by side."""
        for choice in choices:
            if choice not in self.memory and choice not in self.refused:
                self._open(choice)
        able = [choice for choice in choices if choice not in self.refused]
        folders = [self.folder(choice) for choice in able]
        bursts = self.bench.closed_loop(folders, self.burst_s, 4)
        self.bursts |= dict(zip(able, bursts, strict=True))
        return {choice: self.value(choice) if choice in self.bursts else 0.0 for choice in choices}

    def _open(self, choice: Choice) -> None:
        try:
            (self.memory[choice],) = self.bench.open([self.folder(choice)])
        except MeasurementFailed as error:
            self.refused[choice] = error
            if len(self.refused) > 3 and not self.memory:
                raise

    def value(self, choice: Choice) -> float:
        """Items or requests per second; 0 if the choice breaks a limit."""
        if self.is_too_large(choice):
            return 0.0
        limit_s = self.goal.max_latency_s
        if limit_s is None:
            return self.capacity(choice)
        service = self.service(choice)
        # A full run breaks the limit. Ways that join fewer items are measured as choices of their own.
        if service.median_s(choice.way.joined) > KEPT * limit_s:
            return 0.0
        return highest_rate(service, choice.way, limit_s)

    def is_too_large(self, choice: Choice) -> bool:
        """Whether an open model took more memory than it may."""
        return self.memory_bytes is not None and self.memory[choice] > self.memory_bytes

    def capacity(self, choice: Choice) -> float:
        """Items per second."""
        return median(burst.per_s for burst in self.bursts[choice])

    def service(self, choice: Choice) -> ServiceTimes:
        """The runs of a choice, and of the same way with fewer items joined where that was measured."""
        size = choice.way.joined
        return ServiceTimes({
            other.way.joined: [run for burst in bursts for run in burst.runs]
            for other, bursts in self.bursts.items()
            if other.way.joined <= size and Choice(other.model, replace(other.way, joined=size)) == choice
        })  # fmt: skip

    def tried(self) -> list[TriedWay]:
        """The ways that were measured."""
        return [self._tried(choice) for choice in self.bursts]

    def _tried(self, choice: Choice) -> TriedWay:
        latencies_s = np.asarray([run for burst in self.bursts[choice] for run in burst.runs])
        rate = None if self.goal.max_latency_s is None else self.value(choice)
        if rate:
            latencies_s = waits(self.service(choice), choice.way, rate)
        runtime, capacity = self.models[choice.model].runtime, self.capacity(choice)
        p95_s = float(np.percentile(latencies_s, PERCENTILE))
        return TriedWay(choice.model, runtime, choice.way, capacity, rate, p95_s, self.memory[choice])


def choose(tries: Tries) -> list[Choice]:
    """The choices that keep the limits, best first. First the ways of the float models are searched; then the plans are
    tried in the best of these ways, and the search goes on from there."""
    end_s = time.perf_counter() + tries.seconds
    sides = {name: model.sides for name, model in tries.models.items()}

    def measure(choices: Sequence[Choice]) -> dict[Choice, float]:
        left_s = end_s - time.perf_counter()
        if tries.bursts and left_s <= 0.0:
            return {}
        if tries.progress is not None:
            tries.progress("ways", int(100 * (1.0 - max(0.0, left_s) / tries.seconds)), 100)
        return tries.measure(choices)

    floats = [model for model in tries.models.values() if model.is_float]
    plans = [model for model in tries.models.values() if not model.is_float]
    value_of: dict[Choice, float] = {}
    if floats:
        # At most half of the time, so that enough is left for the models that may be faster.
        end_s -= 0.5 * tries.seconds if plans else 0.0
        value_of = climb([Choice(model.name, way) for model in floats for way in model.sides.starts()], measure, sides)
        end_s += 0.5 * tries.seconds if plans else 0.0
    starts = [Choice(model.name, way) for model in plans for way in _ways_for(model, value_of, tries.models)]
    if plans:
        value_of = climb(starts, measure, sides, value_of)
    return [choice for choice in best_of(value_of, len(value_of)) if value_of[choice] > 0.0]


def _ways_for(model: Contender, value_of: Mapping[Choice, float], models: Mapping[str, Contender]) -> list[Way]:
    """The best ways of float in the model's runtime, or in any runtime if float has none there."""
    same = {choice: value for choice, value in value_of.items() if models[choice.model].runtime == model.runtime}
    ranked = best_of(same or value_of, len(value_of))
    ways = [choice.way for choice in ranked if choice.way.joined == 1 or model.sides.joined]
    return ways[:3] or model.sides.starts()
