"""A priced problem as factors over the labels still alive, solved by elimination: one evaluation of the Lagrangian.

Its least sum is a lower bound at any prices; if no value had to be split, it is the least priced cost itself. In graphs
too wide for that, some edges are cut (`EdgeRelaxation`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np

from taglio.cluster.planning.copies import ways
from taglio.cluster.planning.costs import BIG, Account, Costs, ramp
from taglio.cluster.planning.cutting_planes import Plane
from taglio.cluster.planning.elimination import TooWide, schedule
from taglio.cluster.planning.problem import Kind
from taglio.cluster.planning.tables import Priced

# Larger tables are not built if a looser bound or another method is available.
WIDEST = 3e6
# Axis sizes: few choices for small tables, where the number of distinct shapes costs time; many for large tables.
_SIZES = np.array([1, 3, 6, 8, 9, 10, 12, 14, 16, 18, 20, 24, 30, 36, 42, 48, 64, 96, 128, 256, 512, 1024])


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Values split into parts: by part its value, its edges (part, slot; −1 in unused slots), their number, and their
    share of the value's edges."""

    value: np.ndarray
    edges: np.ndarray
    count: np.ndarray
    share: np.ndarray

    def take(self, kept: np.ndarray) -> "Parts":
        """Some of the parts."""
        return Parts(self.value[kept], self.edges[kept], self.count[kept], self.share[kept])


def split(costs: Costs, arity: int, chosen: np.ndarray) -> Parts:
    """Split the `chosen` values into parts of at most `arity` edges, as even as possible: six edges become 3 + 3."""
    start, fan_out = costs.problem.values.start, costs.fan_out
    pieces = -(-fan_out[chosen] // arity)
    value, nth = np.repeat(chosen, pieces), ramp(pieces)
    size = -(-fan_out[value] // np.repeat(pieces, pieces))
    first = start[value] + nth * size
    count = np.minimum(size, start[value + 1] - first)
    slots = np.arange(arity)
    edges = np.where(slots < count[:, None], first[:, None] + slots, -1)
    return Parts(value, edges, count, count / np.maximum(1, fan_out[value])).take(np.flatnonzero(count > 0))


class States(NamedTuple):
    """The meaning of each cell: its part, the kind that the part's producer writes, its device, and by slot
    (arity, cells) the readers' devices and whether they read int8."""

    part: np.ndarray
    kind: np.ndarray
    source: np.ndarray
    target: np.ndarray
    int8: np.ndarray


class CellCosts:
    """Costs of the cells of `parts`, all with the same number of edges.

    Readers on one device are served together: their cost depends on their device, the producer's and kind, and which of
    them read int8, and many cells share such a group.
    """

    def __init__(self, costs: Costs, parts: Parts, states: States) -> None:
        self.costs, self.value, self.share = costs, parts.value, parts.share
        self._group(parts.edges.T, states)
        # The producer's int8 copy is paid once a part: by part and device, if it is written in float.
        self.made = np.stack([states.part, states.source, states.kind != Kind.INT8])

    def _group(self, edges: np.ndarray, states: States) -> None:
        """Number the groups of readers that occur: `groups` (arity, cells) holds a group's number at its first slot,
        and the last number, that of the empty group, at other slots."""
        devices, (arity, count) = self.costs.devices, states.target.shape
        patterns, none = 3**arity, len(self.costs.readers)
        keys, first = np.zeros((arity, count), dtype=np.intp), np.ones((arity, count), dtype=bool)
        place = ((states.part * 2 + (states.kind == Kind.INT8)) * devices + states.source) * devices
        for slot in range(arity):
            for other in range(arity):
                together = states.target[slot] == states.target[other]
                keys[slot] += 3**other * np.where(together, 1 + states.int8[other], 0)
                if other < slot:
                    first[slot] &= ~together
            keys[slot] += (place + states.target[slot]) * patterns
        met = np.zeros(len(self.value) * 2 * devices * devices * patterns, dtype=bool)
        met[keys[first]] = True
        occurring = np.flatnonzero(met)
        self.groups = np.where(first, (np.cumsum(met) - 1)[keys], len(occurring))
        where, pattern = np.divmod(occurring, patterns)
        member = pattern // 3 ** np.arange(arity)[:, None] % 3
        where, self.target = np.divmod(where, devices)
        where, self.source = np.divmod(where, devices)
        self.part, whole = np.divmod(where, 2)
        self.whole = whole == 1
        self.ints, self.floats = (member == 2).sum(axis=0), (member == 1).sum(axis=0)
        self.wired = np.where((member == 1) & ~self.whole, edges[:, self.part], none)
        self.noisy = np.where((member == 2) & ~self.whole, edges[:, self.part], none)

    def at(self, priced: Priced) -> np.ndarray:
        """Costs by cell at these prices."""
        value, share, source, target = self.value[self.part], self.share[self.part], self.source, self.target
        home, whole = source == target, self.whole
        sent = [table[value, source, target] * share for table in (priced.send_float, priced.send_int8)]
        requantize, restored = priced.quantize[value, target] * share, priced.dequantize[value, target]
        by_float, by_int8 = ways(sent[0], sent[1], requantize, restored, self.ints, self.floats)
        if self.costs.problem.wire_only:
            wired = np.append(priced.wire, 0.0).take(self.wired).sum(axis=0)
        else:
            wired = BIG * (self.floats * ~whole)
        noise = np.append(priced.edge, 0.0).take(self.noisy).sum(axis=0)
        # Without an int8 copy made on the producer's device, and with one, where each other device takes its cheapest
        # option. Where it was written, a float value serves all but int8 readers, and these once it is quantised.
        bare = np.where(whole, by_int8, np.where(home, BIG * (self.ints > 0), by_float))
        with_int8 = np.where(whole, by_int8, np.where(home, 0.0, np.minimum(by_float, by_int8 + wired)))
        # Both are summed over the groups at once, as the two parts of complex numbers.
        options = np.append(bare + noise + 1j * (with_int8 + noise), 0.0)
        total = options.take(self.groups[0], mode="clip")
        for groups in self.groups[1:]:
            total += options.take(groups, mode="clip")
        part, place, written_float = self.made
        paid = priced.quantize[self.value[part], place] * self.share[part] * written_float
        return np.asarray(np.minimum(total.real, total.imag + paid))


def edge_costs(costs: Costs, priced: Priced) -> np.ndarray:
    """What each edge costs at these prices if it is its value's only one: (kind written · devices + device, device read
    · 2 + whether as int8, edge)."""
    edges = split(costs, 1, np.arange(len(costs.problem.values)))
    cells = CellCosts(costs, replace(edges, share=np.ones(len(edges.value))), pair_states(costs, len(edges.value)))
    return cells.at(priced).reshape(len(Kind) * costs.devices, 2 * costs.devices, -1)


def pair_states(costs: Costs, parts: int) -> States:
    """All states of `parts` parts with one reader, in the order (kind, device written, device read, int8, part)."""
    sizes = len(Kind), costs.devices, costs.devices, 2, parts
    kind, source, target, int8, part = np.indices(sizes).reshape(5, -1)
    return States(part, kind, source, target[None], int8[None] == 1)


class Relaxation:
    """The factors of a problem restricted to labels that are `alive`, a mask (nodes, labels); fixed nodes are in no
    factor."""

    def __init__(
        self,
        costs: Costs,
        alive: np.ndarray,
        *,
        arity: int = 1,
        limit: float = WIDEST,
        without: np.ndarray | None = None,
    ) -> None:
        """Raises TooWide if a table would have more than `limit` entries. With an arity of 1, edges may be left out
        (`without`, a mask): the caller bounds their cost."""
        self.costs, values = costs, costs.problem.values
        counts = alive.sum(axis=1)
        self.free, self.fixed = np.flatnonzero(counts > 1), alive.argmax(axis=1)
        index = np.full(costs.nodes + 1, -1, dtype=np.intp)
        index[self.free] = np.arange(len(self.free))
        # Values between fixed nodes only are settled; the others are split into parts.
        open_ = index[values.producer] >= 0
        np.logical_or.at(open_, costs.edge_value, index[values.readers] >= 0)
        self.settled = np.flatnonzero(~open_)
        self.parts = split(costs, arity, np.flatnonzero(open_))
        if without is not None:
            self.parts = self.parts.take(~without[self.parts.edges[:, 0]])
        # Sizes are rounded up by repeating the last label: that changes no minimum and gives fewer distinct shapes.
        own = counts[self.free]
        sizes = _SIZES[np.searchsorted(_SIZES, own)]
        ordered = np.argsort(~alive[self.free], axis=1, kind="stable")
        place = np.minimum(np.arange(sizes.max(initial=1)), own[:, None] - 1)
        self.labels = np.take_along_axis(ordered, place, axis=1)
        # Producer and readers of every part: −1 for ends that are not nodes and for unused slots.
        readers = np.where(self.parts.edges >= 0, values.readers[self.parts.edges], -1)
        self.ends = np.column_stack([values.producer[self.parts.value], readers])
        scopes = [tuple(dict.fromkeys(node for node in row if node >= 0)) for row in index[self.ends].tolist()]
        factors: list[tuple[int, ...]] = [(node,) for node in range(len(sizes))]
        self.elimination = schedule(sizes.tolist(), [*factors, *(scope for scope in scopes if scope)], limit)
        self._lay_out(index)

    def run(self, priced: Priced, alive: np.ndarray | None = None) -> tuple[float, np.ndarray]:
        """A lower bound on the priced cost of every labelling, and the labels that attain it;
        `alive` (nodes, labels) restricts the labels further."""
        own = priced.unary if alive is None else np.where(alive, priced.unary, BIG)
        factors = self.elimination.factors
        factors[self.own_positions] = own[self.own_cells]
        base = priced.constant + self.broken
        for tables, positions in zip(self.tables, self.positions, strict=True):
            costs = tables.at(priced)
            factors[positions] = costs[: len(positions)]
            base += costs[len(positions) :].sum()
        factors[self.forbidden] = BIG
        total, chosen = self.elimination.run()
        labels = self.fixed.copy()
        labels[self.free] = self.labels[np.arange(len(self.free)), chosen]
        still = np.setdiff1d(np.arange(self.costs.nodes), self.free)
        base += priced.unary[still, self.fixed[still]].sum() + self.costs.least(priced, labels, self.settled)
        self.base, self.total = float(base), total
        return total + self.base, labels

    def answer(self, prices: np.ndarray, alive: np.ndarray | None = None) -> tuple[Plane, Account]:
        """The bound at these prices and its slope; and the labels that attain it, with their cheapest copies."""
        priced = self.costs.price(prices)
        value, labels = self.run(priced, alive)
        account = self.costs.account(priced, labels)
        slope = account.rows - self.costs.uppers
        return Plane(value, value - float(prices @ slope), slope), account

    def marginals(self) -> np.ndarray:
        """After `run`: a lower bound on the priced cost under each label (nodes, labels); infinite for labels that a
        node lacks."""
        marginals = np.full((self.costs.nodes, self.costs.labels), np.inf)
        marginals[np.arange(self.costs.nodes), self.fixed] = self.total + self.base
        least = self.elimination.marginals(self.total) + self.base
        rows, columns = np.nonzero(np.isfinite(least))
        marginals[self.free[rows], self.labels[rows, columns]] = least[rows, columns]
        return marginals

    def _lay_out(self, index: np.ndarray) -> None:
        """Build tables of every cell of the factors, and find the cells' positions among them."""
        plan, axes = self.elimination, index[self.ends]
        wide = np.array(plan.sizes, dtype=np.intp)
        node, place = np.repeat(np.arange(len(wide)), wide), ramp(wide)
        self.own_positions, self.own_cells = plan.starts[node] + place, (self.free[node], self.labels[node, place])
        # Parts are laid out together if their factors have one shape, and their ends are on the same axes of it.
        parts_by_layout: dict[tuple[int, tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]] = {}
        factor = len(wide)
        for part, (row, count) in enumerate(zip(axes.tolist(), self.parts.count.tolist(), strict=True)):
            scope: tuple[int, ...] = ()
            if any(axis >= 0 for axis in row):
                scope, factor = plan.scopes[factor], factor + 1
            at = tuple(scope.index(axis) if axis >= 0 else -1 for axis in row[: 1 + count])
            parts_by_layout.setdefault((count, tuple(plan.sizes[axis] for axis in scope), at), []).append(
                (part, factor - 1)
            )
        self.tables: list[CellCosts] = []
        self.positions: list[np.ndarray] = []
        self.broken = 0.0  # by strict readers between fixed ends
        forbidden = [np.zeros(0, dtype=np.intp)]
        for arity in np.unique(self.parts.count).tolist():
            states, positions, parts = [], [np.zeros(0, dtype=np.intp)], [np.zeros(0, dtype=np.intp)]
            # Parts between fixed ends come last: they are in no factor, but in the constant.
            for count, shape, at in sorted(parts_by_layout, key=lambda key: -len(key[1])):
                if count == arity:
                    chosen, factors = np.array(parts_by_layout[count, shape, at]).T
                    new_states, wrong = self._cells(chosen, shape, at, axes)
                    states.append(new_states._replace(part=new_states.part + sum(map(len, parts))))
                    parts.append(chosen)
                    if shape:
                        positions.append((plan.starts[factors][:, None] + np.arange(prod(shape))).ravel())
                        forbidden.append(positions[-1][wrong])
                    else:
                        self.broken += BIG * float(wrong.sum())
            arity_parts = self.parts.take(np.concatenate(parts))
            arity_parts = Parts(arity_parts.value, arity_parts.edges[:, :arity], arity_parts.count, arity_parts.share)
            cells = States(*(np.concatenate(arrays, axis=-1) for arrays in zip(*states, strict=True)))
            self.tables.append(CellCosts(self.costs, arity_parts, cells))
            self.positions.append(np.concatenate(positions))
        self.forbidden = np.concatenate(forbidden)

    def _cells(
        self, chosen: np.ndarray, shape: tuple[int, ...], at: tuple[int, ...], axes: np.ndarray
    ) -> tuple[States, np.ndarray]:
        """The meaning of the cells of the `chosen` parts, whose factors have one shape and whose ends are on the axes
        `at` (−1: fixed); and a mask of the cells that strict readers forbid."""
        costs, values, count = self.costs, self.costs.problem.values, len(chosen)
        places, kinds = [], []
        for slot, axis in enumerate(at):
            node = self.ends[chosen, slot][:, None]
            labels = self.fixed[node] if axis < 0 else self.labels[axes[chosen, slot], : shape[axis]]
            home = values.home[self.parts.value[chosen]][:, None]
            layout = (count, *(size if dimension == axis else 1 for dimension, size in enumerate(shape)))
            kind = (costs.label_reads if slot else costs.label_writes)[labels]
            places.append(np.where(node < 0, home, costs.label_device[labels]).reshape(layout))
            kinds.append(np.where(node < 0, int(Kind.FLOAT), kind).reshape(layout))
        whole = (count, *shape)
        wrong = np.zeros(whole, dtype=bool)
        for slot in range(1, len(at)):
            strict = values.strict[self.parts.edges[chosen, slot - 1]].reshape(count, *(1,) * len(shape))
            wrong |= strict & (kinds[0] != kinds[slot])

        def flat(tables: Sequence[np.ndarray]) -> np.ndarray:
            return np.stack([np.broadcast_to(table, whole).ravel() for table in tables])

        part = np.arange(count).reshape(count, *(1,) * len(shape))
        part, kind, source = flat([part, kinds[0], places[0]])
        return States(part, kind, source, flat(places[1:]), flat(kinds[1:]) == Kind.INT8), wrong.ravel()


def tightest(costs: Costs, alive: np.ndarray) -> Relaxation:
    """The relaxation that splits the fewest values while tables have at most WIDEST entries; tables of pairs may have
    more. A value with up to three readers is one table, with up to five if that has at most a million entries. Raises
    TooWide if even tables of pairs are too large for elimination."""
    most, devices, fan_out = 3, costs.devices, int(costs.fan_out.max(initial=0))
    while most < min(5, fan_out) and len(Kind) * devices * (2 * devices) ** (most + 1) <= 1e6:
        most += 1
    for arity in sorted({most, 3}, reverse=True):
        try:
            return Relaxation(costs, alive, arity=arity)
        except TooWide:
            pass
    return Relaxation(costs, alive, limit=np.inf)


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
        values, devices = costs.problem.values, costs.devices
        parts = split(costs, 1, np.arange(len(values)))
        chosen = np.flatnonzero(cut[parts.edges[:, 0]])
        self.edges = parts.edges[chosen, 0]
        self.producer, self.reader = values.producer[parts.value[chosen]], values.readers[self.edges]
        self.tables = CellCosts(costs, parts.take(chosen), pair_states(costs, len(chosen)))
        self.prices = np.zeros((len(chosen), 2 * devices))
        # States that no label has are left out: their sums and prices mean nothing.
        self.possible = np.zeros_like(self.prices, dtype=bool)
        for row, node in enumerate(self.reader.tolist()):
            self.possible[row, self.costs.read[alive[node]]] = True
        self.calls, self.bound, self.pace, self.stale = 0, -np.inf, 1.0, 0
        self.best = np.zeros(len(costs.rows))
        self.best_prices = self.prices

    def run(self, multipliers: np.ndarray) -> tuple[Priced, float, np.ndarray]:
        """Costs at these prices, the bound there, and the labels that attain it."""
        priced = self.costs.price(multipliers)
        value, self.labels = self.relaxation.run(self._loose(priced))
        taken = self.table[np.arange(len(self.edges)), self.costs.written[self.labels[self.producer]]]
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
        slopes[rows, self.costs.read[self.labels[self.reader]]] -= 1.0
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
        states = len(Kind) * self.costs.devices, self.prices.shape[1]
        table = np.moveaxis(self.tables.at(priced).reshape(*states, len(self.edges)), -1, 0)
        self.table = table + np.where(self.possible, self.prices, np.inf)[:, None, :]
        unary = priced.unary.copy()
        np.add.at(unary, self.producer, self.table.min(axis=2)[:, self.costs.written])
        np.add.at(unary, self.reader, -self.prices[:, self.costs.read])
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
    best = Relaxation(costs, alive, limit=4e7, without=cut)
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
