"""The critical path: the best placement found by simulated latency, and a proven lower bound on the latency of any.

Placements come from the plan with the least sum, the plans on one device, and an evolutionary search (evolution.py).
The components of a good placement are split into stages if some of their outputs could leave before the rest has run,
or the rest could run before some input arrives.

The bound: a request takes at least as long as any path of blocks and transfers, whatever else happens. With the noise
limits priced at λ ≥ 0, the length of a path is its seconds plus λ times its noise; the longest path under its best
labels, minus λ times the limits, is a lower bound for every λ, and the best of several λ is taken. The bound ignores
that a device runs one component at a time, so it is tight for chains and loose for wide networks.
"""

import time
from collections.abc import Sequence

import numpy as np

from taglio.plan.assemble import Assembled
from taglio.plan.evolution import evolve
from taglio.plan.placements import Search
from taglio.plan.problem import Totals
from taglio.plan.replay import BYTES, DELAY, NEVER, Timetable, Way
from taglio.plan.workload import Goal

# Share of the time for the evolutionary search; the rest is for splitting components.
_EVOLVING = 0.95
# Most pairs of labels at the two ends of an edge, summed over edges: more take too much memory (0.2 kB each).
_MOST_PAIRS = 3_000_000
# Prices tried for a limit, as shares of the request's cost, and the number of refinements around the best.
_PRICES, _NEARER = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), 3


def shorten(
    assembled: Assembled, goal: Goal, start: Sequence[Totals], *, gap: float, time_limit_s: float
) -> tuple[Totals, float, float]:
    """The best placement found from `start` (placements within the limits), its value, and a lower bound on any value,
    once the gap is proven or time is up. `goal` weighs the critical path and the joules."""
    begun = time.perf_counter()
    search = Search(assembled, goal, begun + time_limit_s)
    for totals in start:
        search.offer(totals)
    bound = 0.0
    if len(assembled.problem.values.readers) * assembled.problem.labels**2 <= _MOST_PAIRS:
        tables = [Timetable(assembled, model) for model in range(len(assembled.workloads))]
        bound = goal.latency * float(search.shares @ [path_bound(each) for each in tables])
        evolve(search, tables, begun + _EVOLVING * time_limit_s, good_enough=bound / (1.0 - gap))
    assert search.best is not None, "give at least one placement"
    return search.best, search.value, min(bound, search.value)


def path_bound(table: Timetable) -> float:
    """Lower bound on the seconds of any placement of a model."""
    paths = _Paths(table)
    uppers = np.array([each.upper for each in table.problem.noises])
    bounded = np.flatnonzero(np.isfinite(uppers))
    prices = np.zeros(len(uppers))
    best = unpriced = paths.longest(prices)
    for index in bounded.tolist():
        tries = sorted({unpriced * each / max(uppers[index], 1e-9) for each in _PRICES})
        for _ in range(_NEARER):
            found = []
            for price in tries:
                prices[index] = price
                found.append(paths.longest(prices) - float(prices[bounded] @ uppers[bounded]))
            at = int(np.argmax(found))
            prices[index], best = tries[at], max(best, found[at])
            low, high = tries[max(at - 1, 0)], tries[min(at + 1, len(tries) - 1)]
            tries = np.linspace(low, high, 5).tolist()
    return best


class _Paths:
    """Longest paths through one model's graph under their best labels."""

    def __init__(self, table: Timetable) -> None:
        self.table = table
        # A component gets the savings of its changes of type even if they are on no path through it.
        self.seconds = np.where(table.allowed, table.seconds - self._spared(), NEVER)
        least = self.seconds.min(axis=1)
        self.spared = float(least[least < 0.0].sum())
        self.reads = [[(way.producer, *self._edge(way, answers=False)) for way in ways] for ways in table.reads]
        self.answers = [[self._edge(way, answers=True) for way in ways] for ways in table.answers]

    def longest(self, prices: np.ndarray) -> float:
        """Length of the longest path: seconds plus noise at these prices (by bound)."""
        own = self.seconds + self.table.own @ prices
        ends: list[np.ndarray] = []
        longest = 0.0
        for node, edges in enumerate(self.reads):
            start = np.zeros(self.table.labels) if edges else self.table.overhead_s[self.table.device]
            for producer, seconds, noise in edges:
                came = seconds + noise @ prices
                came = came[0] if producer is None else (ends[producer][:, None] + came).min(axis=0)
                start = np.maximum(start, came)
            end = start + own[node]
            ends.append(end)
            longest = max(longest, float(end.min()))
            for seconds, _ in self.answers[node]:
                longest = max(longest, float((end + seconds[:, 0]).min()))
        return longest + self.spared

    def _edge(self, way: Way, *, answers: bool) -> tuple[np.ndarray, np.ndarray]:
        """Least seconds between the producer's end and the reader's start, and noise, by both labels."""
        table = self.table
        entered = np.zeros(1) if answers else table.overhead_s[table.device]
        begun = np.where(way.far | (way.producer is None), entered, 0.0)
        floats, ints = (np.maximum(each[..., :BYTES], 0.0).sum(axis=-1) for each in (way.floats, way.ints))
        path = np.minimum(floats, ints) + begun
        never = np.minimum(way.floats[..., DELAY], way.ints[..., DELAY]) >= NEVER
        return np.where(never, NEVER, path), way.noise

    def _spared(self) -> np.ndarray:
        """Most seconds that changes of type at a node's inputs and outputs can save (node, label)."""
        values, table, first = self.table.problem.values, self.table, self.table.nodes.start
        change = np.minimum(np.minimum(values.quantize_s.min(axis=1), values.dequantize_s), 0.0)
        # A value is quantised on the device that writes it, and quantised or dequantised on the one that reads it.
        spared = np.zeros((len(table.nodes), table.devices))
        for value in np.flatnonzero((change < 0.0).any(axis=1)).tolist():
            ends = [
                int(values.producer[value]),
                *values.readers[values.start[value] : values.start[value + 1]].tolist(),
            ]
            for node in ends:
                if first <= node < table.nodes.stop:
                    spared[node - first] -= change[value]
        return spared[:, table.device]
