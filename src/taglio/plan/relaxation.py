"""A priced problem as factors over the labels still alive, solved by elimination: one call of the Lagrangian.

Its least sum is a lower bound at any prices; where no value had to be split it is the least priced cost itself.
"""

from collections.abc import Sequence

import numpy as np

from taglio.plan.elimination import LARGEST_TABLE, schedule
from taglio.plan.prices import BIG, KINDS, Market, Priced
from taglio.plan.problem import CALLER, SOURCE, Kind
from taglio.plan.valuetables import Parts, split, tables


class Relaxation:
    """The factors of a problem whose node n may only take the labels alive[n]; fixed nodes are in no factor."""

    def __init__(
        self, market: Market, alive: Sequence[np.ndarray], *, arity: int = 3, limit: float = LARGEST_TABLE
    ) -> None:
        """Raises TooWide where a table would have more than `limit` entries."""
        self.market, self.arity = market, arity
        self.free = np.flatnonzero([len(each) > 1 for each in alive])
        self.fixed = np.array([each[0] for each in alive], dtype=np.intp)
        self.parts = split(market, arity)
        sizes = [_rounded(len(alive[node])) for node in self.free]
        # Rounding up repeats the last label: a copy changes no minimum and makes more shapes alike.
        self.labels = np.zeros((len(sizes), max(sizes, default=1)), dtype=np.intp)
        for row, node in enumerate(self.free):
            own = alive[node]
            self.labels[row, : len(own)] = own
            self.labels[row, len(own) :] = own[-1]
        self.index = np.full(market.nodes + 1, -1, dtype=np.intp)
        self.index[self.free] = np.arange(len(self.free))
        self.ends = self._ends()
        axes = self.index[np.where(self.ends >= 0, self.ends, market.nodes)]
        scopes: list[tuple[int, ...]] = [(node,) for node in range(len(sizes))]
        self.factors: list[int] = []
        self.constant: list[int] = []
        for part, row in enumerate(axes.tolist()):
            scope = tuple(dict.fromkeys(node for node in row if node >= 0))
            if scope:
                scopes.append(scope)
                self.factors.append(part)
            else:
                self.constant.append(part)
        self.elimination = schedule(sizes, scopes, limit)
        self._lay_out(axes)

    @property
    def exact(self) -> bool:
        """Whether the bound is the least priced cost itself."""
        return self.parts.exact

    def run(self, priced: Priced) -> tuple[float, np.ndarray]:
        """A lower bound on the priced cost of every labelling, and the labels that reach it (exactly, if `exact`)."""
        self._fill(priced)
        total, chosen = self.elimination.run()
        labels = self.fixed.copy()
        labels[self.free] = self.labels[np.arange(len(self.free)), chosen]
        base = priced.constant + self.flat[self.constant_cells].sum()
        free = np.ones(self.market.nodes, dtype=bool)
        free[self.free] = False
        base += priced.unary[free, self.fixed[free]].sum()
        self.base, self.total = float(base), total
        return total + self.base, labels

    def marginals(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """After `run`: for every free node its labels and a lower bound on the priced cost with each."""
        found = self.elimination.marginals(self.total)
        return [
            (int(node), self.labels[row, : len(line)], line + self.base)
            for row, (node, line) in enumerate(zip(self.free, found, strict=True))
        ]

    def _ends(self) -> np.ndarray:
        """Producer and readers of every part, −1 where there is none or it is no node."""
        values = self.market.problem.values
        producer = values.producer[self.parts.value]
        readers = np.where(self.parts.edges >= 0, values.readers[self.parts.edges], CALLER)
        return np.column_stack([np.where(producer == SOURCE, -1, producer), np.where(readers == CALLER, -1, readers)])

    def _lay_out(self, axes: np.ndarray) -> None:
        """Where in the parts' state tables each cell of each factor lies."""
        market, parts, devices = self.market, self.parts, self.market.devices
        values = market.problem.values
        count = len(parts.value)
        strides = np.zeros((count, 1 + self.arity), dtype=np.intp)
        base = np.zeros(count, dtype=np.intp)
        self.by_arity = [np.flatnonzero(parts.count == arity) for arity in range(1, self.arity + 1)]
        offset = 0
        for arity, chosen in enumerate(self.by_arity, start=1):
            sizes = (KINDS * devices, *(2 * devices,) * arity)
            cells = int(np.prod(sizes))
            base[chosen] = offset + cells * np.arange(len(chosen))
            steps = np.cumprod((1, *sizes[:0:-1]))[::-1]
            strides[chosen, : 1 + arity] = steps
            offset += cells * len(chosen)
        self.cells = offset
        # States of every label as a producer and as a reader; of what is no node, at the value's home.
        writes = market.label_writes * devices + market.label_device
        reads = market.label_device * 2 + (market.label_reads == Kind.INT8)
        home = values.home[parts.value]
        strict = np.zeros((count, self.arity), dtype=bool)
        used = parts.edges >= 0
        strict[used] = values.strict[parts.edges[used]]
        for slot in range(1 + self.arity):
            states, loose = (writes, home) if slot == 0 else (reads, 2 * home)
            node = self.ends[:, slot]
            fixed = (axes[:, slot] < 0) & (node >= 0)
            base += strides[:, slot] * np.where(fixed, states[self.fixed[np.maximum(node, 0)]], 0)
            base += strides[:, slot] * np.where(node < 0, loose, 0)
        self.constant_cells = base[self.constant]
        rows: dict[tuple[int, ...], list[int]] = {}
        unary: dict[tuple[int, ...], list[int]] = {}
        plan = self.elimination
        for factor, (shape, row) in enumerate(plan.places):
            group = rows.setdefault(shape, []) if factor >= len(self.free) else unary.setdefault(shape, [])
            group.append(factor)
            if factor < len(self.free) and row != len(group) - 1:
                raise AssertionError("unary tables come first")
        self.fills: list[tuple[tuple[int, ...], int, np.ndarray]] = []
        self.unaries: list[tuple[tuple[int, ...], np.ndarray, np.ndarray]] = []
        for shape, members in unary.items():
            nodes = np.array(members)
            self.unaries.append((shape, self.free[nodes], self.labels[nodes, : shape[0]]))
        for shape, members in rows.items():
            chosen = np.array([self.factors[factor - len(self.free)] for factor in members])
            scope = np.array([plan.scopes[factor] for factor in members]).reshape(len(members), len(shape))
            begin = len(unary.get(shape, ()))
            self.fills.append((shape, begin, self._cells(shape, chosen, scope, axes, base, strides, strict)))

    def _cells(
        self,
        shape: tuple[int, ...],
        chosen: np.ndarray,
        scope: np.ndarray,
        axes: np.ndarray,
        base: np.ndarray,
        strides: np.ndarray,
        strict: np.ndarray,
    ) -> np.ndarray:
        """Positions in the state tables of every cell of factors of one shape."""
        market, devices, count = self.market, self.market.devices, len(chosen)
        writes = market.label_writes * devices + market.label_device
        reads = market.label_device * 2 + (market.label_reads == Kind.INT8)
        cells = base[chosen].reshape(count, *(1,) * len(shape))
        laid: list[np.ndarray] = []
        for axis, size in enumerate(shape):
            layout = (count, *(size if each == axis else 1 for each in range(len(shape))))
            labels = self.labels[scope[:, axis], :size]
            laid.append(labels.reshape(layout))
            step = np.zeros((count, size), dtype=np.intp)
            for slot in range(1 + self.arity):
                here = axes[chosen, slot] == scope[:, axis]
                states = (writes if slot == 0 else reads)[labels]
                step += np.where(here[:, None], strides[chosen, slot][:, None] * states, 0)
            cells = cells + step.reshape(layout)
        flat = (count, *(1,) * len(shape))
        for slot in range(self.arity):
            on = strict[chosen, slot]
            if on.any():
                wrong = self._kinds(chosen, 0, scope, axes, laid, market.label_writes) != self._kinds(
                    chosen, slot + 1, scope, axes, laid, market.label_reads
                )
                cells = np.where(on.reshape(flat) & wrong, self.cells, cells)
        return np.ascontiguousarray(np.broadcast_to(cells, (count, *shape)))

    def _kinds(
        self,
        chosen: np.ndarray,
        slot: int,
        scope: np.ndarray,
        axes: np.ndarray,
        laid: list[np.ndarray],
        kinds: np.ndarray,
    ) -> np.ndarray:
        """The kind written (slot 0) or read at a slot, over the cells of factors of one shape."""
        node = self.ends[chosen, slot]
        still = np.where(node >= 0, kinds[self.fixed[np.maximum(node, 0)]], int(Kind.FLOAT))
        flat = (len(chosen), *(1,) * len(laid))
        result = still.reshape(flat)
        for axis, labels in enumerate(laid):
            here = (axes[chosen, slot] == scope[:, axis]).reshape(flat)
            result = np.where(here, kinds[labels], result)
        return result

    def _fill(self, priced: Priced) -> None:
        """Write every factor's table at these prices."""
        pieces = [
            tables(self.market, priced, self.parts, chosen, arity).ravel()
            for arity, chosen in enumerate(self.by_arity, start=1)
            if len(chosen)
        ]
        self.flat = np.concatenate([*pieces, [BIG]])
        pools = self.elimination.pools
        for shape, nodes, labels in self.unaries:
            pools[shape][: len(nodes)] = priced.unary[nodes[:, None], labels]
        for shape, begin, cells in self.fills:
            np.take(self.flat, cells, out=pools[shape][begin : begin + len(cells)], mode="clip")


def _rounded(count: int) -> int:
    """The next size that tables come in."""
    return next(size for size in (1, 2, 3, 4, 6, 8, 12, 18, 24, 36, 48, 64, 96, 128, 256, 512, 1024) if size >= count)
