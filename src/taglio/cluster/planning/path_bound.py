"""A lower bound on the critical path of any placement.

A request takes at least as long as any path of blocks and transfers, whatever else happens: at least the longest path
under its best labels. The bound ignores that a device runs one component at a time, so it is tight for chains and loose
for wide networks; it ignores limits, too. Two cases raise it: where all blocks run on the device that starts, a request
takes the sum of their seconds, which has a bound of its own with the limits; otherwise there is a block elsewhere, and
the longest path through it crosses links.
"""

from collections.abc import Sequence

import numpy as np

from taglio.cluster.planning.replay import BYTES, DELAY, NEVER, EdgeCosts, Timetable


def lower_bound(tables: Sequence[Timetable], weights: np.ndarray, least: float) -> float:
    """Lower bound on the value of any placement, with the weight of each model's critical path; `least` bounds it with
    the sum of seconds in its place, which it is, beside the overhead of a component, on the device that starts."""
    paths = np.array([Paths(table).longest() for table in tables])
    anywhere = float(weights @ paths[:, 0])
    away = float((weights * (paths[:, 1] - paths[:, 0])).min())
    overhead_s = float(weights @ [table.overhead_s[table.home] for table in tables])
    return max(anywhere, min(anywhere + away, least + overhead_s))


class Paths:
    """Paths through one model's graph: least seconds of nodes (node, label) and edges (producer's label, reader's
    label), whatever else happens."""

    def __init__(self, table: Timetable) -> None:
        self.table = table
        # A component gets the savings of its changes of type even if they are on no path through it.
        self.seconds = np.where(table.allowed, table.seconds - self._spared(), NEVER)
        least = self.seconds.min(axis=1)
        self.spared = float(least[least < 0.0].sum())
        self.reads = [[(way.producer, self._edge_s(way, answers=False)) for way in ways] for ways in table.reads]
        self.answers = [[self._edge_s(way, answers=True)[:, 0] for way in ways] for ways in table.answers]

    def longest(self) -> np.ndarray:
        """Length of the longest path, and the least of the longest ones through a block that is not on the device that
        starts: seconds under the best labels."""
        table = self.table
        ends = np.zeros_like(self.seconds)
        for node, edges in enumerate(self.reads):
            start = np.zeros(table.labels) if edges else table.overhead_s[table.device]
            for producer, edge_s in edges:
                path_s = edge_s[0] if producer is None else (ends[producer][:, None] + edge_s).min(axis=0)
                start = np.maximum(start, path_s)
            ends[node] = start + self.seconds[node]
        through = ends + self.after()
        away = through[:, table.device != table.home].min(initial=NEVER)
        return np.array([through.min(axis=1).max(initial=0.0), away]) + self.spared

    def after(self) -> np.ndarray:
        """Length of the longest path from the end of a node to the last answer (node, label), under the best labels of
        the other nodes."""
        onward_s = np.zeros_like(self.seconds)
        for node in reversed(range(len(onward_s))):
            for answer_s in self.answers[node]:
                onward_s[node] = np.maximum(onward_s[node], answer_s)
            for producer, edge_s in self.reads[node]:
                if producer is not None:
                    path_s = (edge_s + self.seconds[node] + onward_s[node]).min(axis=1)
                    onward_s[producer] = np.maximum(onward_s[producer], path_s)
        return np.asarray(onward_s)

    def _edge_s(self, way: EdgeCosts, *, answers: bool) -> np.ndarray:
        """Least seconds of an edge, with the overhead of a component that begins."""
        entered = np.zeros(1) if answers else self.table.overhead_s[self.table.device]
        entry_s = np.where(way.far | (way.producer is None), entered, 0.0)
        seconds = np.maximum(way.seconds[..., :BYTES], 0.0).sum(axis=-1)
        return np.asarray(np.where(way.seconds[..., DELAY] >= NEVER, NEVER, seconds + entry_s).min(axis=0))

    def _spared(self) -> np.ndarray:
        """Most seconds that changes of type at a node's inputs and outputs can save (node, label)."""
        table, values = self.table, self.table.problem.values
        change = np.minimum(np.minimum(values.quantize_s, values.dequantize_s), 0.0)
        # A value is quantised on the device that writes it, and quantised or dequantised on the one that reads it. The
        # last row is for those that are no nodes (−1).
        spared = np.zeros((len(table.problem.nodes) + 1, table.devices))
        np.subtract.at(spared, values.producer, change)
        np.subtract.at(spared, values.readers, change[values.edge_value()])
        return spared[table.nodes.start : table.nodes.stop, table.device]
