"""A lower bound on the critical path of any placement.

A request takes at least as long as any path of blocks and transfers, whatever else happens. With the noise limits
priced at λ ≥ 0, the length of a path is its seconds plus λ times its noise; the longest path under its best labels,
minus λ times the limits, is a lower bound for every λ, and the best of several λ is taken. The bound ignores that a
device runs one component at a time, so it is tight for chains and loose for wide networks. Two cases raise it: where
all blocks run on the device that starts, a request takes the sum of their seconds, which has a bound of its own;
otherwise there is a block elsewhere, and the longest path through it crosses links.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taglio.cluster.planning.replay import BYTES, DELAY, NEVER, EdgeCosts, Timetable


def lower_bound(tables: Sequence[Timetable], weights: np.ndarray, least: float) -> float:
    """Lower bound on the value of any placement, with the weight of each model's critical path; `least` bounds it with
    the sum of seconds in its place, which it is, beside the overhead of a component, on the device that starts."""
    paths = np.array([path_bounds(table) for table in tables])
    anywhere = float(weights @ paths[:, 0])
    away = float((weights * (paths[:, 1] - paths[:, 0])).min())
    overhead_s = float(weights @ [table.overhead_s[table.home] for table in tables])
    return max(anywhere, min(anywhere + away, least + overhead_s))


def path_bounds(table: Timetable) -> np.ndarray:
    """Lower bounds on the seconds of a model: of any placement, and of one with a block that is not on the device that
    starts."""
    paths, uppers = Paths(table), np.array([bound.upper for bound in table.problem.noises])
    bounded = np.flatnonzero(np.isfinite(uppers))
    prices = np.zeros(len(uppers))
    best = paths.longest(prices)
    unit = abs(float(best[0]))  # negative where changes of type spare more than the longest path takes
    for index in bounded.tolist():
        priced = []
        for share in (0.0, 0.03, 0.06, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0):
            prices[index] = share * unit / max(uppers[index], 1e-9)
            lengths = paths.longest(prices) - float(prices[bounded] @ uppers[bounded])
            best = np.maximum(best, lengths)
            priced.append((float(lengths[0]), prices[index]))
        prices[index] = max(priced)[1]
    return best


@dataclass(frozen=True, slots=True, eq=False)
class PathEdge:
    """The part of a path between a producer (None: an input) and a reader: least `seconds` by both labels, with the
    overhead of a component that begins; and least noise by both labels and bound."""

    producer: int | None
    seconds: np.ndarray
    noise: np.ndarray


class Paths:
    """Paths through one model's graph: least seconds of nodes (node, label) and edges, whatever else happens."""

    def __init__(self, table: Timetable) -> None:
        self.table = table
        # A component gets the savings of its changes of type even if they are on no path through it.
        self.seconds = np.where(table.allowed, table.seconds - self._spared(), NEVER)
        least = self.seconds.min(axis=1)
        self.spared = float(least[least < 0.0].sum())
        self.reads = [[self._edge(way, answers=False) for way in ways] for ways in table.reads]
        self.answers = [[self._edge(way, answers=True) for way in ways] for ways in table.answers]

    def longest(self, prices: np.ndarray) -> np.ndarray:
        """Length of the longest path, and the least of the longest ones through a block that is not on the device that
        starts: seconds plus noise at these prices (by bound), under the best labels."""
        table = self.table
        own = self.seconds + table.own @ prices
        ends = np.zeros_like(own)
        for node, edges in enumerate(self.reads):
            start = np.zeros(table.labels) if edges else table.overhead_s[table.device]
            for edge in edges:
                path_s = edge.seconds + edge.noise @ prices
                path_s = path_s[0] if edge.producer is None else (ends[edge.producer][:, None] + path_s).min(axis=0)
                start = np.maximum(start, path_s)
            ends[node] = start + own[node]
        through = ends + self.after(prices)
        away = through[:, table.device != table.home].min(initial=NEVER)
        return np.array([through.min(axis=1).max(initial=0.0), away]) + self.spared

    def after(self, prices: np.ndarray) -> np.ndarray:
        """Length of the longest path from the end of a node to the last answer (node, label), under the best labels of
        the other nodes."""
        own_s = self.seconds + self.table.own @ prices
        onward_s = np.zeros_like(own_s)
        for node in reversed(range(len(own_s))):
            for edge in self.answers[node]:
                onward_s[node] = np.maximum(onward_s[node], edge.seconds[:, 0])
            for edge in self.reads[node]:
                if edge.producer is not None:
                    path_s = (edge.seconds + edge.noise @ prices + own_s[node] + onward_s[node]).min(axis=1)
                    onward_s[edge.producer] = np.maximum(onward_s[edge.producer], path_s)
        return np.asarray(onward_s)

    def _edge(self, way: EdgeCosts, *, answers: bool) -> PathEdge:
        entered = np.zeros(1) if answers else self.table.overhead_s[self.table.device]
        entry_s = np.where(way.far | (way.producer is None), entered, 0.0)
        seconds = np.maximum(way.seconds[..., :BYTES], 0.0).sum(axis=-1)
        seconds = np.where(way.seconds[..., DELAY] >= NEVER, NEVER, seconds + entry_s)
        return PathEdge(way.producer, seconds.min(axis=0), way.noise.min(axis=0))

    def _spared(self) -> np.ndarray:
        """Most seconds that changes of type at a node's inputs and outputs can save (node, label)."""
        table, values = self.table, self.table.problem.values
        change = np.minimum(np.minimum(values.quantize_s.min(axis=1), values.dequantize_s), 0.0)
        # A value is quantised on the device that writes it, and quantised or dequantised on the one that reads it. The
        # last row is for those that are no nodes (−1).
        spared = np.zeros((len(table.problem.nodes) + 1, table.devices))
        np.subtract.at(spared, values.producer, change)
        np.subtract.at(spared, values.readers, change[values.edge_value()])
        return spared[table.nodes.start : table.nodes.stop, table.device]
