"""A priced problem as factors over the labels still alive, solved by elimination: one evaluation of the Lagrangian.

Its least sum is a lower bound at any prices; if no value had to be split, it is the least priced cost itself.
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from taglio.plan.costs import BIG, KINDS, Costs, Priced, ways
from taglio.plan.elimination import LARGEST_TABLE, TooWide, schedule
from taglio.plan.problem import CALLER, SOURCE, Kind


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Values split into parts: `value` and `share` by part, `edges` (part, slot), −1 in unused slots."""

    value: np.ndarray
    edges: np.ndarray
    count: np.ndarray
    share: np.ndarray

    @property
    def exact(self) -> bool:
        """Whether no value had to be split."""
        return bool((self.share == 1.0).all())


def split(costs: Costs, arity: int, chosen: np.ndarray) -> Parts:
    """Split the `chosen` values into parts of at most `arity` edges."""
    start = costs.problem.values.start
    fan_out = np.diff(start)
    pieces = np.zeros(len(fan_out), dtype=np.intp)
    pieces[chosen] = -(-fan_out[chosen] // arity)
    value = np.repeat(np.arange(len(fan_out)), pieces)
    nth = np.arange(len(value)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # Parts of a value are as even as possible: six edges become 3 + 3, four become 2 + 2.
    size = -(-fan_out[value] // pieces[value])
    first = start[value] + nth * size
    count = np.minimum(size, start[value + 1] - first)
    slots = np.arange(arity)[None, :]
    edges = np.where(slots < count[:, None], first[:, None] + slots, -1)
    keep = count > 0
    share = np.maximum(count, 0) / np.maximum(1, fan_out[value])
    return Parts(value[keep], edges[keep], count[keep], share[keep])


class States(NamedTuple):
    """The meaning of each cell: its part's index in the tables, the kind that the part's producer writes, its device,
    and by slot (arity, cells) the readers' devices and whether they read int8."""

    part: np.ndarray
    kind: np.ndarray
    source: np.ndarray
    target: np.ndarray
    int8: np.ndarray


class Tables:
    """Costs of cells of the `chosen` parts, all with the same number of edges; cells of int8 values are last.

    Readers on one device are served together: their cost depends on their device, the producer's and which of them read
    int8, and many cells share such a group. Prices of noise change from call to call, those of resources rarely:
    results that depend only on the latter are cached.
    """

    def __init__(self, costs: Costs, parts: Parts, chosen: np.ndarray, states: States) -> None:
        self.costs, self.states = costs, states
        self.value, self.share = parts.value[chosen], parts.share[chosen]
        self.floats = int((states.kind != Kind.INT8).sum())
        self._group(parts.edges[chosen, : len(states.target)].T)
        self.settled_at: np.ndarray | None = None

    def _group(self, edges: np.ndarray) -> None:
        """Number the groups of readers that occur, by part, devices and members: `groups` (arity, cells) holds a
        group's number at its first slot, and the last number, that of the empty group, at other slots."""
        states, devices = self.states, self.costs.devices
        arity, count = states.target.shape
        patterns, none = 3**arity, len(self.costs.readers)
        keys = np.zeros((arity, count), dtype=np.intp)
        first = np.ones((arity, count), dtype=bool)
        place = (states.part * devices + states.source) * devices
        for slot in range(arity):
            for other in range(arity):
                together = states.target[slot] == states.target[other]
                keys[slot] += 3**other * np.where(together, 1 + states.int8[other], 0)
                if other < slot:
                    first[slot] &= ~together
            keys[slot] += (place + states.target[slot]) * patterns
        met = np.zeros(len(self.value) * devices * devices * patterns, dtype=bool)
        met[keys[first]] = True
        found = np.flatnonzero(met)
        self.groups = np.where(first, (np.cumsum(met) - 1)[keys], len(found))
        where, pattern = np.divmod(found, patterns)
        member = pattern // 3 ** np.arange(arity)[:, None] % 3
        self.part, there = np.divmod(where, devices * devices)
        self.source, self.target = np.divmod(there, devices)
        self.some, self.reading = (member == 2).any(axis=0), (member == 1).sum(axis=0)
        self.wired = np.where(member == 1, edges[:, self.part], none)
        self.noisy = np.where(member == 2, edges[:, self.part], none)

    def at(self, priced: Priced) -> np.ndarray:
        """Costs by cell at these prices."""
        if priced.send_float is not self.settled_at:
            self._settle(priced)
        if self.costs.problem.wire_only:
            wired = np.append(priced.wire, 0.0).take(self.wired).sum(axis=0)
        else:
            wired = BIG * self.reading
        # Costs of int8 readers on any device, in every float state of the producer.
        noise = np.append(priced.edge, 0.0).take(self.noisy).sum(axis=0)
        # Without an int8 copy made on the producer's device, and with one, where each other device takes its cheapest
        # option: both are summed over the groups at once, as the two parts of complex numbers.
        self.ways.real[:-1] = self.alone + noise
        self.ways.imag[:-1] = np.minimum(self.both, self.by_int8 + wired) + noise
        total, more = self.totals
        np.take(self.ways, self.groups[0, : self.floats], out=total, mode="clip")
        for groups in self.groups[1:, : self.floats]:
            np.add(total, np.take(self.ways, groups, out=more, mode="clip"), out=total)
        np.minimum(total.real, total.imag + self.paid, out=self.table[: self.floats])
        return self.table

    def _settle(self, priced: Priced) -> None:
        """Compute everything that depends only on the prices of resources."""
        value, share, source, target = self.value[self.part], self.share[self.part], self.source, self.target
        send_float = priced.send_float[value, source, target] * share
        send_int8 = priced.send_int8[value, source, target] * share
        again = priced.quantize[value, 0, target]
        again = np.where(again > 0.0, again * share, again)
        home = source == target
        # Without an int8 copy: other devices quantise again, and int8 readers on the producer's device are not served.
        restored = self.reading * priced.dequantize[value, target]
        # If the producer wrote int8, other devices get the int8 copy, and float readers dequantise.
        by_float, self.from_int8, by_both = ways(send_float, send_int8, again, self.some, self.reading > 0, restored)
        self.alone = np.where(home, np.where(self.some, BIG, 0.0), by_float)
        self.both = np.where(home, 0.0, np.minimum(by_float, by_both))
        self.by_int8 = np.where(home, 0.0, self.from_int8)
        states, floats = self.states, self.floats
        part, kind, place = states.part[:floats], states.kind[:floats], states.source[:floats]
        paid = priced.quantize[self.value[part], kind, place]
        # Time saved by quantising counts fully in every part, but not if no reader can use an int8 copy.
        used = states.int8[:, :floats].any(axis=0)
        if self.costs.problem.wire_only:
            used |= (states.target[:, :floats] != place).any(axis=0)
        self.paid = np.where(paid > 0.0, paid * self.share[part], np.where(used, paid, 0.0))
        self.ways = np.zeros(len(value) + 1, dtype=complex)
        self.totals = np.empty((2, floats), dtype=complex)
        self.table = np.zeros(len(states.kind))
        self.table[floats:] = np.append(self.from_int8, 0.0)[self.groups[:, floats:]].sum(axis=0)
        self.settled_at = priced.send_float


# Larger tables are not built if a looser bound or another method is available.
WIDEST = 3e6


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Parts of one arity whose ends can be on the same number of devices: the cells of their states are numbered from
    `begin` on, by the producer's state (of `sizes`), each reader's and the part."""

    arity: int
    chosen: np.ndarray
    sizes: tuple[int, ...]
    begin: int

    @property
    def end(self) -> int:
        return self.begin + prod(self.sizes) * len(self.chosen)


class Relaxation:
    """The factors of a problem restricted to labels that are `alive`, a mask (nodes, labels); fixed nodes are in no
    factor."""

    def __init__(
        self,
        costs: Costs,
        alive: np.ndarray,
        *,
        arity: int = 3,
        limit: float = LARGEST_TABLE,
        without: np.ndarray | None = None,
    ) -> None:
        """Raises TooWide if a table would have more than `limit` entries. With an arity of 1, edges may be left out
        (`without`, a mask): the caller bounds their cost."""
        self.costs, self.arity, self.without = costs, arity, without
        counts = alive.sum(axis=1)
        self.given = int(counts.sum())
        self.free = np.flatnonzero(counts > 1)
        self.fixed = alive.argmax(axis=1)
        self.index = np.full(costs.nodes + 1, -1, dtype=np.intp)
        self.index[self.free] = np.arange(len(self.free))
        self.settled, self.parts = self._split()
        own = counts[self.free]
        sizes = [_rounded(count) for count in own.tolist()]
        # Sizes are rounded up by repeating the last label: that changes no minimum and gives fewer distinct shapes.
        ordered = np.argsort(~alive[self.free], axis=1, kind="stable")
        place = np.minimum(np.arange(max(sizes, default=1)), own[:, None] - 1)
        self.labels = np.take_along_axis(ordered, place, axis=1)
        self.ends = self._ends()
        axes = self.index[np.where(self.ends >= 0, self.ends, costs.nodes)]
        scopes: list[tuple[int, ...]] = [(node,) for node in range(len(sizes))]
        self.factors: list[int] = []
        constant: list[int] = []
        for part, row in enumerate(axes.tolist()):
            scope = tuple(dict.fromkeys(node for node in row if node >= 0))
            if scope:
                scopes.append(scope)
                self.factors.append(part)
            else:
                constant.append(part)
        self.elimination = schedule(sizes, scopes, limit)
        self._lay_out(axes, constant)

    @property
    def exact(self) -> bool:
        """Whether the bound is the least priced cost: no value is split, and no int8 copy without readers is made
        because making it saves time."""
        sparing = self.costs.devices > 1 and bool((self.costs.problem.values.quantize_s < 0.0).any())
        return self.parts.exact and not sparing

    def run(self, priced: Priced, alive: np.ndarray | None = None) -> tuple[float, np.ndarray]:
        """A lower bound on the priced cost of every labelling, and the labels that attain it (exactly, if `exact`);
        `alive` (nodes, labels) restricts the labels further."""
        self._fill(priced, alive)
        total, chosen = self.elimination.run()
        labels = self.fixed.copy()
        labels[self.free] = self.labels[np.arange(len(self.free)), chosen]
        base = priced.constant + self.flat[self.constant_cells].sum()
        free = np.ones(self.costs.nodes, dtype=bool)
        free[self.free] = False
        base += priced.unary[free, self.fixed[free]].sum() + self.costs.least(priced, labels, self.settled)
        self.base, self.total = float(base), total
        return total + self.base, labels

    def marginals(self) -> np.ndarray:
        """After `run`: a lower bound on the priced cost under each label (nodes, labels); infinite for labels that a
        node lacks."""
        result = np.full((self.costs.nodes, self.costs.labels), np.inf)
        result[np.arange(self.costs.nodes), self.fixed] = self.total + self.base
        found = self.elimination.marginals(self.total) + self.base
        rows, columns = np.nonzero(np.isfinite(found))
        result[self.free[rows], self.labels[rows, columns]] = found[rows, columns]
        return result

    def _split(self) -> tuple[np.ndarray, Parts]:
        """Values between fixed nodes only, and the parts of all other values."""
        values, free = self.costs.problem.values, self.index >= 0
        open_ = (values.producer >= 0) & free[values.producer]
        edges = (values.readers >= 0) & free[values.readers]
        open_ |= np.bincount(self.costs.edge_value[edges], minlength=len(open_)) > 0
        parts = split(self.costs, self.arity, np.flatnonzero(open_))
        if self.without is not None:
            kept = ~self.without[parts.edges[:, 0]]
            parts = Parts(parts.value[kept], parts.edges[kept], parts.count[kept], parts.share[kept])
        return np.flatnonzero(~open_), parts

    def _ends(self) -> np.ndarray:
        """Producer and readers of every part, −1 for unused slots and for ends that are not nodes."""
        values = self.costs.problem.values
        producer = values.producer[self.parts.value]
        readers = np.where(self.parts.edges >= 0, values.readers[self.parts.edges], CALLER)
        return np.column_stack([np.where(producer == SOURCE, -1, producer), np.where(readers == CALLER, -1, readers)])

    def _lay_out(self, axes: np.ndarray, constant: list[int]) -> None:
        """Find the position of each factor's cells in the costs of the parts' states."""
        costs, parts = self.costs, self.parts
        values = costs.problem.values
        count = len(parts.value)
        strides = np.zeros((count, 1 + self.arity), dtype=np.intp)
        base = np.zeros(count, dtype=np.intp)
        self.local, self.width = self._places()
        layouts: list[_Layout] = []
        # First the cells of the parts' states, then one for "forbidden", then every label's own cost.
        self.cells = 0
        for arity in range(1, self.arity + 1):
            for places in np.unique(self.width[parts.count == arity]).tolist():
                chosen = np.flatnonzero((parts.count == arity) & (self.width == places))
                sizes = (KINDS * places, *(2 * places,) * arity)
                base[chosen] = self.cells + np.arange(len(chosen))
                strides[chosen, : 1 + arity] = len(chosen) * np.cumprod((1, *sizes[:0:-1]))[::-1]
                layouts.append(_Layout(arity, chosen, sizes, self.cells))
                self.cells = layouts[-1].end
        # States of every label as a producer and as a reader; ends that are not nodes are on the value's home device.
        home = self.local[np.arange(count), values.home[parts.value]]
        strict = np.zeros((count, self.arity), dtype=bool)
        used = parts.edges >= 0
        strict[used] = values.strict[parts.edges[used]]
        every = np.arange(count)
        for slot in range(1 + self.arity):
            node = self.ends[:, slot]
            fixed = (axes[:, slot] < 0) & (node >= 0)
            states = self._states(every, self.fixed[np.maximum(node, 0)][:, None], slot)[:, 0]
            base += strides[:, slot] * np.where(fixed, states, 0)
            base += strides[:, slot] * np.where(node < 0, home if slot == 0 else 2 * home, 0)
        self.constant_cells = base[constant]
        plan = self.elimination
        self.positions = np.empty(plan.factors.size, dtype=np.intp)
        shapes: dict[tuple[int, ...], list[int]] = {}
        for factor, scope in enumerate(plan.scopes[len(self.free) :], len(self.free)):
            shapes.setdefault(tuple(plan.sizes[node] for node in scope), []).append(factor)
        for shape, members in shapes.items():
            chosen = np.array([self.factors[factor - len(self.free)] for factor in members])
            scopes = np.array([plan.scopes[factor] for factor in members]).reshape(len(members), len(shape))
            laid = self._cells(shape, chosen, scopes, axes, base, strides, strict).reshape(len(members), -1)
            self.positions[plan.starts[members][:, None] + np.arange(laid.shape[1])] = laid
        for wide in set(plan.sizes):
            nodes = np.flatnonzero(np.array(plan.sizes) == wide)
            laid = self.cells + 1 + self.free[nodes][:, None] * costs.labels + self.labels[nodes, :wide]
            self.positions[plan.starts[nodes][:, None] + np.arange(wide)] = laid
        self._keep(layouts)

    def _keep(self, layouts: "list[_Layout]") -> None:
        """Renumber the cells that are read, and build tables of only those: many states belong to no label."""
        costs = self.costs
        number = np.zeros(self.cells + 1 + costs.nodes * costs.labels, dtype=np.intp)
        number[self.positions] = number[self.constant_cells] = 1
        self.tables, count = [], 0
        for arity in sorted({each.arity for each in layouts}):
            alike = [each for each in layouts if each.arity == arity]
            cells: tuple[list[np.ndarray], list[np.ndarray]] = [], []
            states: tuple[list[States], list[States]] = [], []
            begin = 0
            for each in alike:
                met = np.flatnonzero(number[each.begin : each.end])
                found, kinds = each.begin + met, self._stands_for(each, met, begin)
                # Cells of values written in int8 come last, here and overall.
                end = int(np.searchsorted(kinds.kind, Kind.INT8))
                for which, part in enumerate((slice(end), slice(end, None))):
                    cells[which].append(found[part])
                    states[which].append(States(*(one[..., part] for one in kinds)))
                begin += len(each.chosen)
            taken = np.concatenate([*cells[0], *cells[1]])
            number[taken] = count + np.arange(len(taken))
            count += len(taken)
            together = States(*(np.concatenate(one, axis=-1) for one in zip(*states[0], *states[1], strict=True)))
            self.tables.append(Tables(costs, self.parts, np.concatenate([each.chosen for each in alike]), together))
        number[self.cells :] = count + np.arange(len(number) - self.cells)
        self.positions, self.constant_cells = number[self.positions], number[self.constant_cells]
        self.flat, self.cells = np.full(count + len(number) - self.cells, BIG), count

    def _stands_for(self, layout: "_Layout", cells: np.ndarray, begin: int) -> States:
        """The meaning of a layout's cells; its parts are numbered from `begin` on."""
        ends: list[np.ndarray] = []
        for size in (len(layout.chosen), *layout.sizes[:0:-1], layout.sizes[0] // KINDS):
            # Division by one number at a time is many times faster than np.unravel_index.
            rest = cells // size
            ends.append(cells - rest * size)
            cells = rest
        part, *readers, place = ends
        local = self.local[layout.chosen]
        back = np.argsort(np.where(local < 0, self.costs.devices, local), axis=1)
        reads = np.array(readers[::-1])
        return States(begin + part, cells, back[part, place], back[part, reads >> 1], reads & 1 == 1)

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """By part, each device's index among those that its ends can be on (−1 for others), and how many there are."""
        costs, parts = self.costs, self.parts
        values = costs.problem.values
        on = np.zeros((costs.nodes + 1, costs.devices), dtype=bool)
        on[np.arange(costs.nodes), costs.label_device[self.fixed]] = True
        on[np.repeat(self.free, self.labels.shape[1]), costs.label_device[self.labels].ravel()] = True
        met = np.asarray(on[np.where(self.ends >= 0, self.ends, costs.nodes)].any(axis=1))
        called = ((parts.edges >= 0) & (values.readers[parts.edges] < 0)).any(axis=1)
        outside = (values.producer[parts.value] < 0) | called
        rows = np.flatnonzero(outside)
        met[rows, values.home[parts.value[rows]]] = True
        return np.where(met, np.cumsum(met, axis=1) - 1, -1), met.sum(axis=1)

    def _states(self, chosen: np.ndarray, labels: np.ndarray, slot: int) -> np.ndarray:
        """States of labels (part, label) as a part's producer (slot 0) or reader."""
        costs = self.costs
        place: np.ndarray = self.local[chosen[:, None], costs.label_device[labels]]
        if slot == 0:
            place = costs.label_writes[labels] * self.width[chosen][:, None] + place
        else:
            place = place * 2 + (costs.label_reads[labels] == Kind.INT8)
        return place

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
        """Position in the state costs of every cell of the factors of one shape."""
        costs, count = self.costs, len(chosen)
        cells = base[chosen].reshape(count, *(1,) * len(shape))
        laid: list[np.ndarray] = []
        for axis, size in enumerate(shape):
            layout = (count, *(size if each == axis else 1 for each in range(len(shape))))
            labels = self.labels[scope[:, axis], :size]
            laid.append(labels.reshape(layout))
            step = np.zeros((count, size), dtype=np.intp)
            for slot in range(1 + self.arity):
                here = axes[chosen, slot] == scope[:, axis]
                if here.any():
                    states = self._states(chosen, labels, slot)
                    step += np.where(here[:, None], strides[chosen, slot][:, None] * states, 0)
            cells = cells + step.reshape(layout)
        flat = (count, *(1,) * len(shape))
        for slot in range(self.arity):
            on = strict[chosen, slot]
            if on.any():
                wrong = self._kinds(chosen, 0, scope, axes, laid, costs.label_writes) != self._kinds(
                    chosen, slot + 1, scope, axes, laid, costs.label_reads
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
        """The kind written (slot 0) or read at a slot, by cell of the factors of one shape."""
        node = self.ends[chosen, slot]
        still = np.where(node >= 0, kinds[self.fixed[np.maximum(node, 0)]], int(Kind.FLOAT))
        flat = (len(chosen), *(1,) * len(laid))
        result = still.reshape(flat)
        for axis, labels in enumerate(laid):
            here = (axes[chosen, slot] == scope[:, axis]).reshape(flat)
            result = np.where(here, kinds[labels], result)
        return result

    def _fill(self, priced: Priced, alive: np.ndarray | None) -> None:
        """Write every factor's table at these prices, forbidding labels that are not `alive`."""
        begin = 0
        for each in self.tables:
            costs = each.at(priced)
            self.flat[begin : begin + len(costs)] = costs
            begin += len(costs)
        own = self.flat[self.cells + 1 :]
        own[:] = priced.unary.ravel()
        if alive is not None:
            own[np.flatnonzero(~alive)] = BIG
        np.take(self.flat, self.positions, out=self.elimination.factors, mode="clip")


# A value with up to five readers is kept in one table of at most this many entries; up to three readers always are.
_ONE_TABLE, _MOST_READERS = 1e6, 5


def tightest(costs: Costs, alive: np.ndarray) -> Relaxation:
    """The relaxation that splits the fewest values while tables have at most WIDEST entries; tables of pairs may have
    more. Raises TooWide if even those are too large for elimination."""
    most, devices = 3, costs.devices
    fan_out = int(np.diff(costs.problem.values.start).max(initial=0))
    while most < min(_MOST_READERS, fan_out) and KINDS * devices * (2 * devices) ** (most + 1) <= _ONE_TABLE:
        most += 1
    for arity in sorted({most, 3}, reverse=True):
        try:
            return Relaxation(costs, alive, arity=arity, limit=WIDEST)
        except TooWide:
            pass
    return Relaxation(costs, alive, arity=1, limit=np.inf)


# Axis sizes: few choices for small tables, where the number of distinct shapes costs time; many for large tables.
_SIZES = (1, 3, 6, 8, 9, 10, 12, 14, 16, 18, 20, 24, 30, 36, 42, 48, 64, 96, 128, 256, 512, 1024)


def _rounded(count: int) -> int:
    """The next larger size in _SIZES."""
    return next(size for size in _SIZES if size >= count)
