"""The best weights on paths, devices and links, given the placements that answered so far: a linear program.

A placement is known by what each edge, node, device and link takes under it. Weights are a flow of one unit from the
start of each model's graph to its end, any part of which may leap over a window, on one of its devices or links. The
highest value that no known placement undercuts bounds how far the weights can still be bettered (Kelley, 1960); half
way from the best weights to that point is where the next placement is asked for (in-out separation, Ben-Ameur and Neto,
2007).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from taglio.plan.quiet import Quiet
from taglio.plan.windows import END, START, Window


@dataclass(frozen=True, slots=True)
class Flow:
    """A model's graph: its nodes, its edges as (index, producer or START, reader or END), and its windows."""

    nodes: range
    edges: tuple[tuple[int, int, int], ...]
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """How much each node and edge counts on a path, each node in the load of each device, and each edge in that of
    each link (from, to): wherever a graph is cut, a unit of paths and loads together."""

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


class Master:
    """The linear program over weights, a row longer with every placement."""

    def __init__(self, flows: Sequence[Flow], counts: tuple[int, int, int], share: np.ndarray) -> None:
        """`counts` are all models' nodes and edges, and the devices."""
        self.windows, self.share = [window for flow in flows for window in flow.windows], share
        self.nodes, self.edges, self.devices = counts
        self.highs = Quiet()
        infinity = highspy.kHighsInf
        self.width = 0
        self.edge = np.full(self.edges, -1)
        self.load = np.full((len(self.windows), self.devices), -1)
        self.link = np.full((len(self.windows), self.devices, self.devices), -1)
        arrivals: list[tuple[int, int]] = []
        index = 0
        for flow in flows:
            entering: dict[int, list[int]] = {node: [] for node in flow.nodes}
            leaving: dict[int, list[int]] = {node: [] for node in (START, *flow.nodes)}
            for edge, source, reader in flow.edges:
                column = self.edge[edge] = self._column()
                leaving[source].append(column)
                if reader != END:
                    entering[reader].append(column)
            for window in flow.windows:
                for one in range(self.devices):
                    self.load[index, one] = self._column()
                    self.link[index, one] = [self._column() if one != other else -1 for other in range(self.devices)]
                columns = [
                    *self.load[index].tolist(),
                    *(each for each in self.link[index].ravel().tolist() if each >= 0),
                ]
                leaving[window.first] += columns
                if window.last != END:
                    entering[window.last] += columns
                index += 1
            for node, columns in entering.items():
                if not columns:  # reads nothing
                    columns.append(self._column())
                    leaving[START].append(columns[0])
                # A path may end anywhere.
                self._row(-infinity, 0.0, [(each, 1.0) for each in leaving[node]] + [(each, -1.0) for each in columns])
                arrivals += [(node, column) for column in columns]
            self._row(1.0, 1.0, [(each, 1.0) for each in leaving[START]])
        self.arrivals = np.array(arrivals).reshape(-1, 2).T
        self.value = self._column(low=-infinity, upper=infinity)
        self.highs.changeColCost(self.value, -1.0)

    def add(self, taken: Taken) -> None:
        """No weights are worth more than this placement takes under them."""
        size = self.nodes
        seconds = np.zeros(self.width)
        node_s = self.share[:size] * taken.node_s
        np.add.at(seconds, self.arrivals[1], node_s[self.arrivals[0]])
        used = np.flatnonzero(self.edge >= 0)
        seconds[self.edge[used]] += self.share[size + used] * taken.edge_s[used]
        link_s = self.share[size:, None, None] * taken.link_s
        for index, window in enumerate(self.windows):
            nodes = list(window.nodes)
            seconds[self.load[index]] += np.bincount(taken.device[nodes], node_s[nodes], self.devices)
            busy = link_s[list(window.edges)].sum(axis=0)
            between = self.link[index] >= 0
            seconds[self.link[index][between]] += busy[between]
        terms = np.flatnonzero(seconds).tolist()
        row = [(self.value, 1.0), *((column, -float(seconds[column])) for column in terms)]
        self._row(-highspy.kHighsInf, taken.constant, row)

    def best(self) -> tuple[Weights, float]:
        """The weights that no known placement undercuts by most, and their value: no bound is above it."""
        self.highs.run()
        found = np.array(self.highs.getSolution().col_value)
        weights = Weights(
            np.zeros(self.nodes),
            np.where(self.edge >= 0, found[self.edge], 0.0),
            np.zeros((self.nodes, self.devices)),
            np.zeros((self.edges, self.devices, self.devices)),
        )
        np.add.at(weights.node, self.arrivals[0], found[self.arrivals[1]])
        for index, window in enumerate(self.windows):
            weights.load[list(window.nodes)] += found[self.load[index]]
            weights.link[list(window.edges)] += np.where(self.link[index] >= 0, found[self.link[index]], 0.0)
        parts = (weights.node, weights.edge, weights.load, weights.link)
        return Weights(*(np.clip(each, 0.0, 1.0) for each in parts)), float(found[self.value])

    def _column(self, low: float = 0.0, upper: float = 1.0) -> int:
        self.highs.addVar(low, upper)
        self.width += 1
        return self.width - 1

    def _row(self, low: float, high: float, terms: Sequence[tuple[int, float]]) -> None:
        columns = np.array([column for column, _ in terms], dtype=np.int32)
        values = np.array([value for _, value in terms], dtype=float)
        self.highs.addRow(low, high, len(columns), columns, values)
