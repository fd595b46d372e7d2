"""A lower bound for graphs too wide to eliminate (DenseNet): cut edges and price the disagreement of their ends.

A cut edge of cost f(p, r) becomes min over s of (f(p, s) + φ(s)) at its producer and −φ(r) at its reader: never more
than f, for any φ. The remaining graph is narrow. φ and the prices of the limits follow the subgradient together (each
end pulls towards the state that it chose), with step sizes after Polyak (1969). Proves a bound, finds no plan.
"""

from dataclasses import replace

import numpy as np

from taglio.plan.costs import KINDS, Costs, Priced
from taglio.plan.elimination import TooWide
from taglio.plan.problem import Kind
from taglio.plan.relaxation import Relaxation, States, Tables, split

_NARROW = 3e5


class EdgeRelaxation:
    """The relaxation, its cut edges and their prices φ (edge, reader state)."""

    def __init__(self, costs: Costs, alive: np.ndarray, narrow: float = _NARROW) -> None:
        """Tables of more than `narrow` entries are built only if no edge can be cut."""
        self.costs, self.alive = costs, alive
        cut, self.relaxation = _cut(costs, alive, narrow)
        values, devices = costs.problem.values, costs.devices
        parts = split(costs, 1, np.arange(len(values)))
        chosen = np.flatnonzero(cut[parts.edges[:, 0]])
        self.edges = parts.edges[chosen, 0]
        self.producer, self.reader = values.producer[parts.value[chosen]], values.readers[self.edges]
        self.writes = costs.label_writes * devices + costs.label_device
        self.reads = costs.label_device * 2 + (costs.label_reads == Kind.INT8)
        kind, source, target, int8, part = np.indices((KINDS, devices, devices, 2, len(chosen))).reshape(5, -1)
        self.tables = Tables(costs, parts.take(chosen), States(part, kind, source, target[None], int8[None] == 1))
        self.prices = np.zeros((len(chosen), 2 * devices))
        # States that no label has are left out: their sums and prices mean nothing.
        self.possible = np.zeros_like(self.prices, dtype=bool)
        for row, node in enumerate(self.reader.tolist()):
            self.possible[row, self.reads[alive[node]]] = True
        self.calls, self.bound, self.pace, self.stale = 0, -np.inf, 1.0, 0
        self.best = np.zeros(len(costs.rows))
        self.best_prices = self.prices

    def run(self, multipliers: np.ndarray) -> tuple[Priced, float, np.ndarray]:
        """Costs at these prices, the bound there, and the labels that attain it."""
        priced = self.costs.price(multipliers)
        value, self.labels = self.relaxation.run(self._loose(priced))
        taken = self.table[np.arange(len(self.edges)), self.writes[self.labels[self.producer]]]
        self.copied = taken.argmin(axis=1)
        self.calls += 1
        self.stale += 1
        if value > self.bound:
            if value > self.bound + 1e-4 * abs(value):
                self.stale = 0
            self.bound, self.best, self.best_prices = value, multipliers, self.prices.copy()
        if self.stale > 12:
            self.stale, self.pace = 0, 0.6 * self.pace
            self.prices = self.best_prices.copy()
        return priced, value, self.labels

    def step(self, multipliers: np.ndarray, slope: np.ndarray, distance: float) -> np.ndarray:
        """Step φ, and return the multipliers after their step."""
        rows = np.arange(len(self.edges))
        slopes = np.zeros_like(self.prices)
        slopes[rows, self.copied] += 1.0
        slopes[rows, self.reads[self.labels[self.reader]]] -= 1.0
        # A limit broken by its full amount weighs as much as all disagreeing edges together.
        disagree = float((slopes**2).sum())
        weight = max(1.0, disagree) / max(1e-9, float((slope**2).sum())) * 0.05
        norm = disagree + weight * float((slope**2).sum())
        if norm <= 0.0:
            return multipliers
        length = self.pace * max(distance, 0.0) / norm
        self.prices = self.prices + length * slopes
        moved: np.ndarray = np.maximum(0.0, multipliers + length * weight * slope)
        return moved

    def _loose(self, priced: Priced) -> Priced:
        """The costs with every cut edge divided between its ends."""
        states = KINDS * self.costs.devices, self.prices.shape[1]
        table = np.moveaxis(self.tables.at(priced).reshape(*states, len(self.edges)), -1, 0)
        self.table = table + np.where(self.possible, self.prices, np.inf)[:, None, :]
        unary = priced.unary.copy()
        np.add.at(unary, self.producer, self.table.min(axis=2)[:, self.writes])
        np.add.at(unary, self.reader, -self.prices[:, self.reads])
        return replace(priced, unary=unary)


def _cut(costs: Costs, alive: np.ndarray, narrow: float) -> tuple[np.ndarray, Relaxation]:
    """Edges to cut so that the rest is narrow: keep a spanning forest, then whatever fits, expensive edges first."""
    values = costs.problem.values
    priced = costs.price(np.zeros(len(costs.rows)))
    producer = values.producer[costs.edge_value]
    inner = (producer >= 0) & (values.readers >= 0)
    dear = priced.send_float.mean(axis=(1, 2))[costs.edge_value] + 1e9 * values.strict
    root = list(range(costs.nodes))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    cut = np.zeros(len(inner), dtype=bool)
    for edge in sorted(np.flatnonzero(inner).tolist(), key=lambda each: -dear[each]):
        one, other = find(int(producer[edge])), find(int(values.readers[edge]))
        cut[edge] = one == other and not values.strict[edge]
        root[one] = other
    best = Relaxation(costs, alive, arity=1, without=cut)
    waiting = [edge for edge in np.argsort(-dear).tolist() if cut[edge]]
    size = max(1, len(waiting) // 6)
    while waiting and size >= max(1, len(cut) // 100):
        tried = cut.copy()
        tried[waiting[:size]] = False
        try:
            best = Relaxation(costs, alive, arity=1, limit=narrow, without=tried)
            cut, waiting = tried, waiting[size:]
        except TooWide:
            size //= 2
    return cut, best
