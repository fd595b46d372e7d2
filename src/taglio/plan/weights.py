"""The best weights on paths, devices and links, given the placements that answered so far: a linear program.

A placement is known by what each edge, node, device and link takes under it. Weights are a flow of one unit through
each region of the graph, any part of which may lie on the region's devices or links instead. The highest value that no
known placement undercuts bounds how far the weights can still be bettered (Kelley, 1960); half way from the best
weights to that point is where the next placement is asked for (in-out separation, Ben-Ameur and Neto, 2007).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np


@dataclass(frozen=True, slots=True)
class Region:
    """What lies between two bottlenecks: all its nodes, those that must be done before the next bottleneck (all of them
    behind the last), the edges in it, and the bottleneck that ends it (none behind the last)."""

    index: int
    nodes: frozenset[int]
    loads: tuple[int, ...]
    edges: tuple[int, ...]
    bottleneck: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """How much each node and edge counts on a path, each node in the load of each device, and each edge in that of
    each link (from, to): in each region a unit of paths and loads together."""

    node: np.ndarray
    edge: np.ndarray
    load: np.ndarray
    link: np.ndarray

    def mixed(self, other: "Weights", share: float) -> "Weights":
        """This with `share` of another."""
        pairs = ((self.node, other.node), (self.edge, other.edge), (self.load, other.load), (self.link, other.link))
        return Weights(*((1.0 - share) * a + share * b for a, b in pairs))


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What a placement takes: seconds by edge and node, the device of every node, busy seconds of every link by edge
    (edges, from, to), and what is added whatever the weights are."""

    edge_s: np.ndarray
    node_s: np.ndarray
    device: np.ndarray
    link_s: np.ndarray
    constant: float

    def under(self, weights: Weights, share: np.ndarray) -> float:
        """Its weighted mean; `share` scales every node and edge (nodes, edges)."""
        nodes = np.arange(len(self.node_s))
        counted = weights.node + weights.load[nodes, self.device]
        edges = weights.edge * self.edge_s + (weights.link * self.link_s).sum(axis=(1, 2))
        size = len(nodes)
        return float((share[:size] * counted * self.node_s).sum() + (share[size:] * edges).sum() + self.constant)


class Master:
    """The linear program over weights, a row longer with every placement."""

    def __init__(
        self,
        regions: Sequence[Region],
        ends: Sequence[tuple[int, int]],
        counts: tuple[int, int, int],
        share: np.ndarray,
    ) -> None:
        """`ends` are producer and reader of every edge (negative outside), `counts` nodes, edges and devices."""
        self.regions, self.share = regions, share
        self.nodes, self.edges, self.devices = counts
        self.highs = highspy.Highs()
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        infinity = highspy.kHighsInf
        self.columns: dict[tuple[object, ...], int] = {}
        self.fixed = np.zeros(self.nodes)
        entering: dict[int, list[int]] = {}
        for region in regions:
            self.fixed[list(region.bottleneck)] = 1.0
            inside, unit = region.nodes, []
            for edge in region.edges:
                column = self._column(("edge", edge))
                if ends[edge][0] not in inside:
                    unit.append(column)
                if ends[edge][1] in inside:
                    entering.setdefault(ends[edge][1], []).append(column)
            for node in inside:
                if node not in entering:
                    column = self._column(("start", node))
                    entering[node] = [column]
                    unit.append(column)
            unit += [self._column(("load", region.index, region.bottleneck, d)) for d in range(self.devices)]
            if region.edges:
                unit += [
                    self._column(("link", region.index, region.bottleneck, a, b))
                    for a in range(self.devices)
                    for b in range(self.devices)
                    if a != b
                ]
            self._row(1.0, 1.0, [(column, 1.0) for column in unit])
            for node in inside:
                leaving = [(self.columns["edge", e], 1.0) for e in region.edges if ends[e][0] == node]
                low = 0.0 if region.bottleneck and leaving else -infinity
                self._row(low, 0.0, leaving + [(column, -1.0) for column in entering[node]])
        self.entering = entering
        self.value = self._column(("value",), low=-infinity, upper=infinity)
        self.highs.changeColCost(self.value, -1.0)

    def add(self, taken: Taken) -> None:
        """No weights are worth more than this placement takes under them."""
        terms: dict[int, float] = {}
        size = self.nodes

        def count(column: int, seconds: float) -> None:
            terms[column] = terms.get(column, 0.0) - seconds

        constant = taken.constant + float((self.share[:size] * self.fixed * taken.node_s).sum())
        for node, columns in self.entering.items():
            for column in columns:
                count(column, float(self.share[node] * taken.node_s[node]))
        for region in self.regions:
            for edge in region.edges:
                count(self.columns["edge", edge], float(self.share[size + edge] * taken.edge_s[edge]))
            key = (region.index, region.bottleneck)
            for node in region.loads:
                column = self.columns[("load", *key, int(taken.device[node]))]
                count(column, float(self.share[node] * taken.node_s[node]))
            if region.edges:
                busy = (
                    self.share[size + np.array(region.edges)][:, None, None] * taken.link_s[list(region.edges)]
                ).sum(0)
                for a, b in np.argwhere(busy).tolist():
                    if a != b:
                        count(self.columns[("link", *key, a, b)], float(busy[a, b]))
        self._row(-highspy.kHighsInf, constant, [(self.value, 1.0), *terms.items()])

    def best(self) -> tuple[Weights, float]:
        """The weights that no known placement undercuts by most, and their value: no bound is above it."""
        self.highs.run()
        found = np.array(self.highs.getSolution().col_value)
        weights = Weights(
            self.fixed.copy(),
            np.zeros(self.edges),
            np.zeros((self.nodes, self.devices)),
            np.zeros((self.edges, self.devices, self.devices)),
        )
        for node, columns in self.entering.items():
            weights.node[node] = found[columns].sum()
        for region in self.regions:
            weights.edge[list(region.edges)] = [found[self.columns["edge", edge]] for edge in region.edges]
            key = (region.index, region.bottleneck)
            for d in range(self.devices):
                weights.load[list(region.loads), d] = found[self.columns[("load", *key, d)]]
            for a in range(self.devices):
                for b in range(self.devices):
                    if a != b and region.edges:
                        weights.link[list(region.edges), a, b] = found[self.columns[("link", *key, a, b)]]
        parts = (weights.node, weights.edge, weights.load, weights.link)
        return Weights(*(np.clip(each, 0.0, 1.0) for each in parts)), float(found[self.value])

    def _column(self, key: tuple[object, ...], low: float = 0.0, upper: float = 1.0) -> int:
        self.highs.addVar(low, upper)
        self.columns[key] = len(self.columns)
        return self.columns[key]

    def _row(self, low: float, high: float, terms: Sequence[tuple[int, float]]) -> None:
        columns = np.array([column for column, _ in terms], dtype=np.int32)
        values = np.array([value for _, value in terms], dtype=float)
        self.highs.addRow(low, high, len(columns), columns, values)
