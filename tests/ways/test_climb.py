"""The search over ways on made-up machines, whose best way is known."""

import random
from collections.abc import Mapping, Sequence
from itertools import product

from taglio.runtimes.way import Way
from taglio.ways.climb import Choice, Sides, best_of, climb


class Machine:
    """A made-up machine and model: Amdahl's law for threads, cores that are shared once they are all taken, memory that
    slows down with the threads that use it, and a run of several items that costs a fixed part and one for each item,
    which grows once they no longer fit into the cache."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.cores = draw.choice([1, 2, 4, 6, 8, 16, 32, 64])
        self._parallel = draw.uniform(0.3, 0.98)
        self._memory = draw.uniform(0.0, 0.6)
        self._fixed = draw.uniform(0.0, 0.6)
        self._cached = draw.choice([1, 2, 4, 8, 16, 32])
        self._spill = draw.uniform(0.0, 0.3)
        self._spin = draw.uniform(0.9, 1.1)
        self._noise = random.Random(seed + 1)
        self.sides = Sides(self.cores, self.cores, joined=draw.random() < 0.5, pools=draw.random() < 0.5)
        self.measured = 0

    def per_s(self, way: Way) -> float:
        """Items per second, without noise."""
        used = way.used_threads
        crowded = max(1.0, used / self.cores) * (1.03 if used > self.cores else 1.0)
        shared = 1.0 + self._memory * (min(used, self.cores) - 1) / max(1, self.cores - 1)
        amdahl = 1.0 - self._parallel + self._parallel / way.threads
        items = self._fixed + (1.0 - self._fixed) * way.joined
        spilled = 1.0 + self._spill * max(0, way.joined - self._cached) / self._cached
        spin = (self._spin if way.spinning else 1.0) * (0.9 if way.shared else 1.0)
        return way.at_once * way.joined * spin / (amdahl * crowded * shared * items * spilled)

    def measure(self, choices: Sequence[Choice]) -> Mapping[Choice, float]:
        """As a short race shows it: 1 % of noise, and a clock that drifts from race to race."""
        drift = self._noise.uniform(0.8, 1.2)
        self.measured += len(choices)
        return {choice: drift * self.per_s(choice.way) * self._noise.gauss(1.0, 0.01) for choice in choices}

    def best(self) -> float:
        """The rate of the best of all ways."""
        sizes = [2**power for power in range(7)]
        threads = sorted({*(size for size in sizes if size <= self.cores), self.cores})
        at_once = range(1, 2 * self.cores + 1)
        joined = sizes if self.sides.joined else [1]
        spinning = [False, True] if self.sides.pools else [False]
        ways = (Way(*each) for each in product(threads, at_once, joined, spinning))
        most = 2 * self.cores if self.sides.pools else self.cores
        sensible = (way for way in ways if way.used_threads <= most and not (way.spinning and way.threads == 1))
        return max(map(self.per_s, sensible))


def test_the_best_way_is_found_on_most_machines() -> None:
    found, measured = 0, []
    for seed in range(100):
        machine = Machine(seed)
        starts = [Choice("float32", way) for way in machine.sides.starts()]
        known = climb(starts, machine.measure, {"float32": machine.sides})
        (best,) = best_of(known, 1)
        found += machine.per_s(best.way) >= 0.97 * machine.best()
        measured.append((machine.cores, machine.measured))
    assert found >= 90
    # With sixteen times the cores, the ways that are measured are at most twice as many.
    few, many = ([count for cores, count in measured if cores == some] for some in (4, 64))
    assert sum(many) / len(many) <= 2.0 * sum(few) / len(few)


def test_nothing_is_measured_once_time_is_up() -> None:
    sides = {"float32": Sides(2, 2, joined=True, pools=True)}
    calls = []

    def measure(choices: Sequence[Choice]) -> dict[Choice, float]:
        calls.append(choices)
        return {} if len(calls) > 1 else dict.fromkeys(choices, 1.0)

    known = climb([Choice("float32", Way(1, 2)), Choice("float32", Way(2, 1))], measure, sides)
    assert len(known) == 2
    assert len(calls) == 2


def test_values_of_other_rounds_are_brought_to_one_scale() -> None:
    sides = {"float32": Sides(2, 2, joined=False, pools=False)}
    drift = iter([1.0, 0.5, 0.5, 0.5])
    truth = {Way(1, 1): 1.0, Way(1, 2): 1.8, Way(2, 1): 1.5}

    def measure(choices: Sequence[Choice]) -> dict[Choice, float]:
        slow = next(drift)
        return {choice: slow * truth[choice.way] for choice in choices}

    known = climb([Choice("float32", Way(2, 1)), Choice("float32", Way(1, 2))], measure, sides)
    assert known == {Choice("float32", way): value for way, value in truth.items()}


def test_openvino_has_no_more_threads_than_cores() -> None:
    ways = Sides(4, 4, joined=False, pools=False).beside(Way(2, 2))
    assert ways
    assert all(way.used_threads <= 4 for way in ways)
