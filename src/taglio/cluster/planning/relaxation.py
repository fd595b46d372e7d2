"""A priced problem as tables of nodes and of edges, solved by elimination: one evaluation of the Lagrangian.

What a value costs once for several readers is shared among its edges. So the least sum of all tables is a lower bound
at any prices; if every value has one reader, it is the least priced cost itself. In graphs too wide for that, some
edges are cut (`EdgeRelaxation`).
"""

from dataclasses import replace

import numpy as np

from taglio.cluster.planning.copies import ways
from taglio.cluster.planning.costs import BIG, Account, Costs, ramp
from taglio.cluster.planning.cutting_planes import Plane
from taglio.cluster.planning.elimination import LARGEST_TABLE, TooWide, schedule
from taglio.cluster.planning.problem import CALLER, SOURCE, Kind
from taglio.cluster.planning.tables import Priced

# Larger tables are not built if another method is available.
WIDEST = 3e6
# Axis sizes: few choices for small tables, where the number of distinct shapes costs time; many for large tables.
_SIZES = np.array([1, 3, 6, 8, 9, 10, 12, 14, 16, 18, 20, 24, 30, 36, 42, 48, 64, 96, 128, 256, 512, 1024])


def edge_costs(costs: Costs, priced: Priced, edges: np.ndarray) -> np.ndarray:
    """Priced costs of `edges` (edge, write state, read state): see `write_states` and `read_states`.

    A float value has an int8 copy or none; with one, a reader on another device takes the cheaper copy. Time saved by
    quantising counts fully in every edge, but not if its reader cannot use an int8 copy.
    """
    value, devices = costs.edge_value[edges], costs.devices

    def shared(cost: np.ndarray) -> np.ndarray:
        share = 1.0 / costs.fan_out[value].reshape(-1, *(1,) * (cost.ndim - 1))
        return np.where(cost > 0.0, cost * share, cost)

    # Axes: edge, source, target, whether the reader reads int8.
    int8, near = np.array([False, True]), np.eye(devices, dtype=bool)[:, :, None]
    by_float, by_int8 = ways(
        shared(priced.send_float[value])[..., None],
        shared(priced.send_int8[value])[..., None],
        shared(priced.quantize[value, 0])[:, None, :, None],
        priced.dequantize[value][:, None, :, None],
        int8 * 1,
        ~int8 * 1,
    )
    wire = priced.wire[edges] if costs.problem.wire_only else np.full(len(edges), BIG)
    restored = by_int8 + np.where(int8, 0.0, wire[:, None, None, None])
    noise = np.where(int8, priced.edge[edges, None, None, None], 0.0)
    without = np.where(near, BIG * int8, by_float) + noise
    copied = np.where(near, 0.0, np.minimum(by_float, restored)) + noise
    used = int8 | (~near & costs.problem.wire_only)
    made = shared(priced.quantize[value])[:, :, :, None, None]
    made = np.where(made > 0.0, made, made * used)
    floats = np.minimum(without[:, None], copied[:, None] + made)
    return np.concatenate([floats, by_int8[:, None]], axis=1).reshape(len(edges), len(Kind) * devices, 2 * devices)


def write_states(costs: Costs) -> np.ndarray:
    """By label, a producer's state: the kind that it writes and its device."""
    return np.asarray(costs.label_writes * costs.devices + costs.label_device)


def read_states(costs: Costs) -> np.ndarray:
    """By label, a reader's state: its device, and whether it reads int8."""
    return np.asarray(costs.label_device * 2 + (costs.label_reads == Kind.INT8))


class Relaxation:
    """The tables of a problem restricted to labels that are `alive`, a mask (nodes, labels)."""

    def __init__(
        self, costs: Costs, alive: np.ndarray, *, limit: float = LARGEST_TABLE, without: np.ndarray | None = None
    ) -> None:
        """Raises TooWide if a table would have more than `limit` entries. Edges may be left out (`without`, a mask):
        the caller bounds their cost."""
        self.costs, values, counts = costs, costs.problem.values, alive.sum(axis=1)
        # Sizes are rounded up by repeating the last label: that changes no minimum and gives fewer distinct shapes.
        sizes = _SIZES[np.searchsorted(_SIZES, counts)]
        place = np.minimum(np.arange(sizes.max(initial=1)), counts[:, None] - 1)
        self.labels = np.take_along_axis(np.argsort(~alive, axis=1, kind="stable"), place, axis=1)
        self.edges = np.arange(len(costs.readers)) if without is None else np.flatnonzero(~without)
        self.producer, self.reader = values.producer[costs.edge_value[self.edges]], costs.readers[self.edges]
        self.inner = np.flatnonzero((self.producer != SOURCE) & (self.reader != CALLER))
        pairs = np.column_stack([self.producer, self.reader])[self.inner].tolist()
        scopes = [*((node,) for node in range(costs.nodes)), *map(tuple, pairs)]
        self.elimination = schedule(sizes.tolist(), scopes, limit)
        self._lay_out(sizes)

    def _lay_out(self, sizes: np.ndarray) -> None:
        """The cells of the tables: where each comes from, and those that strict readers forbid."""
        costs, plan, strict = self.costs, self.elimination, self.costs.problem.values.strict[self.edges]
        wide = np.arange(self.labels.shape[1]) < sizes[:, None]
        self.own = np.nonzero(wide)[0], self.labels[wide]
        self.own_positions = (plan.starts[: costs.nodes, None] + np.arange(self.labels.shape[1]))[wide]
        self.writes, self.reads = write_states(costs), read_states(costs)
        states, cells, forbidden = 2 * costs.devices, [np.zeros(0, np.intp)], [np.zeros(0, dtype=bool)]
        for scope, edge in zip(plan.scopes[costs.nodes :], self.inner.tolist(), strict=True):
            producer, reader = self.producer[edge], self.reader[edge]
            one, other = self.labels[producer, : sizes[producer], None], self.labels[reader, : sizes[reader]]
            table = (edge * len(Kind) * costs.devices + self.writes[one]) * states + self.reads[other]
            wrong = strict[edge] & (costs.label_writes[one] != costs.label_reads[other])
            if scope[0] == reader:
                table, wrong = table.T, wrong.T
            cells.append(table.ravel())
            forbidden.append(wrong.ravel())
        lengths = np.array([len(table) for table in cells[1:]], dtype=np.intp)
        self.cells = np.concatenate(cells)
        self.positions = np.repeat(plan.starts[costs.nodes :], lengths) + ramp(lengths)
        self.forbidden = self.positions[np.concatenate(forbidden)]

    def run(self, priced: Priced) -> tuple[float, np.ndarray]:
        """A lower bound on the priced cost of every labelling, and the labels that attain it."""
        costs, values, edges = self.costs, self.costs.problem.values, self.edges
        table = edge_costs(costs, priced, edges)
        # Of an input and of an answer the caller's end is fixed: in float, at home.
        home, strict = values.home[costs.edge_value[edges]], values.strict[edges]
        unary, base = priced.unary.copy(), priced.constant
        given, asked = self.producer == SOURCE, self.reader == CALLER
        base += float(table[np.flatnonzero(given & asked), home[given & asked], 2 * home[given & asked]].sum())
        first = np.flatnonzero(given & ~asked)
        entry = table[first, home[first]][:, self.reads]
        entry += BIG * (strict[first, None] & (costs.label_reads != Kind.FLOAT))
        np.add.at(unary, self.reader[first], entry)
        last = np.flatnonzero(asked & ~given)
        np.add.at(unary, self.producer[last], table[last, :, 2 * home[last]][:, self.writes])
        factors = self.elimination.factors
        factors[self.own_positions] = unary[self.own]
        factors[self.positions] = table.ravel()[self.cells]
        factors[self.forbidden] = BIG
        total, chosen = self.elimination.run()
        return total + base, self.labels[np.arange(costs.nodes), chosen]

    def answer(self, prices: np.ndarray) -> tuple[Plane, Account]:
        """The bound at these prices and its slope; and the labels that attain it, with their cheapest copies."""
        priced = self.costs.price(prices)
        value, labels = self.run(priced)
        account = self.costs.account(priced, labels)
        slope = account.rows - self.costs.uppers
        return Plane(value, value - float(prices @ slope), slope), account


class EdgeRelaxation:
    """A lower bound for graphs too wide to eliminate (DenseNet): some edges are cut, and the disagreement of their ends
    is priced.

    A cut edge of cost f(p, r) becomes min over s of (f(p, s) + φ(s)) at its producer and −φ(r) at its reader: never
    more than f, for any φ (edge, reader state). The remaining graph is narrow. φ and the prices of the limits follow
    the subgradient together (each end pulls towards the state that it chose), with step sizes after Polyak (1969).
    """

    def __init__(self, costs: Costs, alive: np.ndarray) -> None:
        self.costs, self.alive = costs, alive
        cut, self.relaxation = _cut(costs, alive)
        self.edges = np.flatnonzero(cut)
        self.producer = costs.problem.values.producer[costs.edge_value[self.edges]]
        self.reader = costs.readers[self.edges]
        self.writes, self.reads = write_states(costs), read_states(costs)
        self.prices = np.zeros((len(self.edges), 2 * costs.devices))
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
        return np.asarray(np.maximum(0.0, multipliers + length * weight * slope))

    def _loose(self, priced: Priced) -> Priced:
        """The costs with every cut edge divided between its ends."""
        table = edge_costs(self.costs, priced, self.edges)
        self.table = table + np.where(self.possible, self.prices, np.inf)[:, None, :]
        unary = priced.unary.copy()
        np.add.at(unary, self.producer, self.table.min(axis=2)[:, self.writes])
        np.add.at(unary, self.reader, -self.prices[:, self.reads])
        return replace(priced, unary=unary)


def _cut(costs: Costs, alive: np.ndarray) -> tuple[np.ndarray, Relaxation]:
    """Edges to cut so that the rest is narrow: keep a spanning forest, then whatever fits, expensive edges first.
    Larger tables are built only if no edge can be cut."""
    values = costs.problem.values
    producer = values.producer[costs.edge_value]
    inner = (producer >= 0) & (values.readers >= 0)
    cost = costs.plain.send_float.mean(axis=(1, 2))[costs.edge_value] + 1e9 * values.strict
    tree, cut = np.arange(costs.nodes), np.zeros(len(inner), dtype=bool)
    for edge in sorted(np.flatnonzero(inner).tolist(), key=lambda each: -cost[each]):
        one, other = tree[producer[edge]], tree[values.readers[edge]]
        cut[edge] = one == other and not values.strict[edge]
        tree[tree == one] = other
    best = Relaxation(costs, alive, without=cut)
    waiting = [edge for edge in np.argsort(-cost).tolist() if cut[edge]]
    size = max(1, len(waiting) // 6)
    while waiting and size >= max(1, len(cut) // 100):
        tried = cut.copy()
        tried[waiting[:size]] = False
        try:
            best = Relaxation(costs, alive, limit=3e5, without=tried)
            cut, waiting = tried, waiting[size:]
        except TooWide:
            size //= 2
    return cut, best
