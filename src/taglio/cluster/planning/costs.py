"""The cost of labels and copies, by the rules of problem.py, vectorised over all values. Chooses copies, never labels.

`Costs` keeps every additive quantity in tables whose last axis is over sums: the objective, every resource, every noise
sum and each device's weights. Limits are rows g(x) ≤ 1, each divided by its upper end (a limit of 0 keeps its own
unit). With a multiplier λ ≥ 0 a row adds λ · (g(x) − 1) to the objective.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from taglio.cluster.planning.copies import at_home, serve, ways
from taglio.cluster.planning.problem import CALLER, SOURCE, Copies, Kind, Problem, Totals, surrounded
from taglio.cluster.planning.tables import Priced, Tables, limit_rows, tables

# "Forbidden" in tables: far above any sum of costs, yet small enough that differences keep their digits.
BIG = 1e9
# Rounding tolerance of a limit.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """Values (repeats allowed) and their edges under a labelling: device and kind of each value where it is written;
    for each edge its value's index in the list, the device of the reader, and whether it reads int8."""

    value: np.ndarray
    place: np.ndarray
    kind: np.ndarray
    owner: np.ndarray
    edge: np.ndarray
    to: np.ndarray
    int8: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """Copies by value and device as `Copies` numbers (0: none), and their consequences: whether a value is quantised on
    its producer's device, which other devices quantise their float copy, how many readers dequantise on each device,
    and which edges add edge or wire noise."""

    copies: np.ndarray
    quantized: np.ndarray
    quantized_there: np.ndarray
    dequantized: np.ndarray
    noisy: np.ndarray
    wired: np.ndarray


class Costs:
    """A problem's tables."""

    def __init__(self, problem: Problem) -> None:
        self.problem, values = problem, problem.values
        self.devices, self.forms = len(problem.devices), len(problem.forms)
        self.nodes, self.labels = len(problem.nodes), problem.labels
        self.label_device = np.repeat(np.arange(self.devices), self.forms)
        self.label_writes = np.tile(np.array([int(form.writes) for form in problem.forms]), self.devices)
        self.label_reads = np.tile(np.array([int(form.reads) for form in problem.forms]), self.devices)
        # What a label writes and reads, by kind and device, as numbers.
        self.written = self.label_writes * self.devices + self.label_device
        self.read = self.label_device * len(Kind) + self.label_reads
        self.edge_value = values.edge_value()
        self.producer, self.readers = values.producer, values.readers
        self.fan_out = np.diff(values.start)
        self.rows = limit_rows(problem)
        self.uppers = np.array([row.upper for row in self.rows])
        self.sums = tables(problem)
        columns = np.array([0, *(row.column for row in self.rows)])
        self.limited = self.sums.columns(columns, np.array([1.0, *(row.unit for row in self.rows)]))
        # The largest reduction of each row by labels with negative costs.
        self.saved = -np.minimum(0.0, self.limited.unary[..., 1:].min(axis=1)).sum(axis=0)
        self.barred = {
            Copies.FLOAT: self._alone(self.limited.send_float),
            Copies.INT8: self._alone(self.limited.send_int8),
        }
        self.plain = self.price(np.zeros(len(self.rows)))

    def _alone(self, table: np.ndarray) -> np.ndarray:
        """Entries that break a limit on their own, as a mask."""
        return np.asarray((table[..., 1:] > self.uppers + self.saved + TOLERANCE).any(axis=-1))

    def possible(self) -> np.ndarray:
        """Labels that are allowed and do not break a limit on their own, a mask (nodes, labels)."""
        allowed, memory = self.problem.allowed.reshape(self.nodes, -1), self.problem.memory
        possible = allowed & ~self._alone(self.limited.unary)
        if not memory.peak:
            return np.asarray(possible)
        room = memory.capacity
        fits = self.needed_bytes()[:, None] <= (room + TOLERANCE * np.maximum(1e-3, room))[:, None]
        return np.asarray(possible & fits.reshape(self.nodes, -1))

    def needed_bytes(self) -> np.ndarray:
        """Bytes that a device needs to run a node alone (node, form): its weights, its outputs as written, and at least
        the smaller copy of its inputs."""
        values, memory = self.problem.values, self.problem.memory
        sizes = np.stack([values.float_bytes, values.int8_bytes])
        live, inner, read = np.zeros((self.nodes, self.forms)), values.producer >= 0, values.readers >= 0
        np.add.at(live, values.producer[inner], sizes[self.label_writes[: self.forms]][:, inner].T)
        read_pairs = np.unique(np.column_stack([values.readers, self.edge_value])[read], axis=0)
        np.add.at(live, read_pairs[:, 0], sizes.min(axis=0)[read_pairs[:, 1], None])
        return np.asarray(memory.weights + live)

    def price(self, multipliers: np.ndarray) -> Priced:
        """Costs with each row at its multiplier (in units of the objective per whole limit)."""
        constant = self.problem.constant - float(multipliers @ self.uppers)
        return self._weighted(self.limited, np.concatenate([[1.0], multipliers]), constant)

    def alone(self, column: int) -> Priced:
        """One sum as the cost."""
        return self._weighted(self.sums, np.eye(self.sums.unary.shape[-1])[column], 0.0)

    def _weighted(self, tables: Tables, weights: np.ndarray, constant: float) -> Priced:
        priced = {name: getattr(tables, name) @ weights for name in Tables.__slots__}
        priced["send_float"] += BIG * self.barred[Copies.FLOAT]
        priced["send_int8"] += BIG * self.barred[Copies.INT8]
        return Priced(**priced, constant=constant)

    def ends(self, labels: np.ndarray, value: np.ndarray | None = None) -> Ends:
        """All values, or the listed ones, with their edges under a labelling."""
        every = np.arange(len(self.problem.values))
        return self.ends_of(every if value is None else value, lambda _, node: labels[node])

    def ends_of(self, value: np.ndarray, label: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Ends:
        """The listed values with their edges; `label(index in the list, node)` returns the nodes' labels."""
        values = self.problem.values
        counts = self.fan_out[value]
        owner = np.repeat(np.arange(len(value)), counts)
        edge = np.repeat(values.start[value], counts) + ramp(counts)
        producer, reader, home = values.producer[value], values.readers[edge], values.home[value]
        written = label(np.arange(len(value)), np.maximum(producer, 0))
        read = label(owner, np.maximum(reader, 0))
        place = np.where(producer == SOURCE, home, self.label_device[written])
        kind = np.where(producer == SOURCE, int(Kind.FLOAT), self.label_writes[written])
        to = np.where(reader == CALLER, home[owner], self.label_device[read])
        int8 = (reader != CALLER) & (self.label_reads[read] == Kind.INT8)
        return Ends(value, place, kind, owner, edge, to, int8)

    def readers_on(self, ends: Ends) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Counts of int8 and of float readers (value, device), and a mask of other devices that have any."""
        count, flat = len(ends.value), ends.owner * self.devices + ends.to
        ints, floats = (
            np.bincount(flat[which], minlength=count * self.devices).reshape(count, self.devices)
            for which in (ends.int8, ~ends.int8)
        )
        elsewhere = ints + floats > 0
        elsewhere[np.arange(count), ends.place] = False
        return ints, floats, elsewhere

    def cheapest(self, priced: Priced, ends: Ends) -> Served:
        """The cheapest copies at these prices."""
        ints, floats, elsewhere = self.readers_on(ends)
        count, copies = len(ends.value), np.zeros((len(ends.value), self.devices), dtype=np.intp)
        # Most values never leave the device that writes them.
        sent = np.flatnonzero(elsewhere.any(axis=1))
        v, place, open_ = ends.value[sent], ends.place[sent], elsewhere[sent]
        by_float, by_int8 = ways(
            priced.send_float[v, place],
            priced.send_int8[v, place],
            priced.quantize[v],
            priced.dequantize[v],
            ints[sent],
            floats[sent],
        )
        if self.problem.wire_only:
            flat = (ends.owner * self.devices + ends.to)[~ends.int8]
            wired = np.bincount(flat, priced.wire[ends.edge[~ends.int8]], count * self.devices)
            by_int8 += wired.reshape(count, self.devices)[sent]
        else:
            by_int8 += BIG * (floats[sent] > 0)
        # Saving of an int8 copy on each device; quantising is paid once.
        saved = np.where(open_, by_float - by_int8, -np.inf)
        takes_int8 = saved > 0.0
        here, needed = priced.quantize[v, place], ints[sent, place] > 0
        quantized = needed | (here < np.where(takes_int8, saved, 0.0).sum(axis=1))
        chosen = np.where(takes_int8 & quantized[:, None], 2, 1)
        copies[sent] = np.where((ends.kind[sent] == Kind.INT8)[:, None], 2, chosen) * open_
        return self._served(ends, copies, ints, floats)

    def given(self, ends: Ends, copies: np.ndarray) -> Served:
        """The given copies (value, device) and their consequences."""
        ints, floats, _ = self.readers_on(ends)
        return self._served(ends, copies, ints, floats)

    def _served(self, ends: Ends, copies: np.ndarray, ints: np.ndarray, floats: np.ndarray) -> Served:
        rows, whole, hand = np.arange(len(ends.value)), ends.kind == Kind.INT8, copies.copy()
        hand[rows, ends.place] = at_home(whole, ints[rows, ends.place])
        changes = serve(whole[:, None], hand, ints, floats)
        noisy, only_int8 = ~whole[ends.owner], np.equal(hand[ends.owner, ends.to], Copies.INT8)
        return Served(
            copies,
            np.asarray(changes.quantized.any(axis=1)),
            changes.quantized_there,
            changes.dequantized,
            noisy & ends.int8,
            noisy & ~ends.int8 & only_int8,
        )

    def by_value(self, tables: Tables, ends: Ends, served: Served) -> np.ndarray:
        """The cost of each listed value in these tables."""
        value, place = ends.value, ends.place
        cost = np.zeros((len(value), *tables.edge.shape[1:]))
        for copy, table in ((Copies.FLOAT, tables.send_float), (Copies.INT8, tables.send_int8)):
            at, target = np.nonzero(served.copies & int(copy))
            np.add.at(cost, at, table[value[at], place[at], target])
        at, target = np.nonzero(served.quantized_there)
        np.add.at(cost, at, tables.quantize[value[at], target])
        at, target = np.nonzero(served.dequantized)
        times = served.dequantized[at, target].reshape(-1, *(1,) * (cost.ndim - 1))
        np.add.at(cost, at, times * tables.dequantize[value[at], target])
        here = np.flatnonzero(served.quantized)
        cost[here] += tables.quantize[value[here], place[here]]
        np.add.at(cost, ends.owner[served.noisy], tables.edge[ends.edge[served.noisy]])
        np.add.at(cost, ends.owner[served.wired], tables.wire[ends.edge[served.wired]])
        return cost

    def _total(self, tables: Tables, labels: np.ndarray, by_value: np.ndarray) -> np.ndarray:
        total: np.ndarray = tables.unary[np.arange(self.nodes), labels].sum(axis=0) + by_value.sum(axis=0)
        total[0] += self.problem.constant
        return total

    def sums_of(self, priced: Priced, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every sum of many labellings (labelling, node) with the copies that are cheapest at these prices, and these
        copies (labelling, value, device); breaking a strict edge costs more than any plan."""
        values = len(self.problem.values)
        many = max(1, 40_000 // max(1, values))  # labellings at once, which need some megabytes
        if len(labels) > many:
            parts = [self.sums_of(priced, labels[first : first + many]) for first in range(0, len(labels), many)]
            sums, copies = zip(*parts, strict=True)
            return np.concatenate(sums), np.concatenate(copies)
        row = np.repeat(np.arange(len(labels)), values)
        value = np.tile(np.arange(values), len(labels))
        ends = self.ends_of(value, lambda index, node: labels[row[index], node])
        served = self.cheapest(priced, ends)
        total = self._use(self.sums, ends, served).reshape(len(labels), values, -1).sum(axis=1)
        total += self.sums.unary[np.arange(self.nodes), labels].sum(axis=1)
        total[:, 0] += self.problem.constant
        return total, served.copies.reshape(len(labels), values, -1)

    def _use(self, tables: Tables, ends: Ends, served: Served) -> np.ndarray:
        """The cost of each listed value in these tables; breaking a strict edge costs more than any plan."""
        use = self.by_value(tables, ends, served)
        use[:, 0] += BIG * np.bincount(ends.owner[self.broken_edges(ends)], minlength=len(ends.value))
        return use

    def totals(self, labels: Sequence[int] | np.ndarray, copies: np.ndarray | None = None) -> Totals:
        """The cost of a labelling. Without `copies` every value takes those that are cheapest by the objective."""
        problem, labels_ = self.problem, np.asarray(labels, dtype=np.intp)
        ends = self.ends(labels_)
        served = self.cheapest(self.plain, ends) if copies is None else self.given(ends, copies)
        total = self._total(self.sums, labels_, self.by_value(self.sums, ends, served))
        resources, noises, weight = np.split(total[1:], np.cumsum([len(problem.resources), len(problem.noises)]))
        peak = weight
        if problem.memory.peak:
            peak = weight + self._live_by_device(ends, served).max(axis=1)
        broken = self._broken_labels(labels_, ends)
        amounts = np.concatenate([total[: -self.devices], peak])
        broken += [row.name for row in self.rows if over(float(amounts[row.column]), row.unit * row.upper)]
        broken += [f"{problem.nodes[rule.node]} between its neighbours" for rule in surrounded(problem, labels_)]
        return Totals(
            tuple(labels_.tolist()), served.copies, float(total[0]), resources, noises, weight, peak, tuple(broken)
        )

    def full(self, labels: np.ndarray, copies: np.ndarray) -> list[tuple[int, int]]:
        """Devices whose memory is too small for weights and live activations, each with the node of its peak."""
        memory, ends = self.problem.memory, self.ends(labels)
        if not memory.peak:
            return []
        live = self._live_by_device(ends, self.given(ends, copies))
        weights, room = self.sums.unary[np.arange(self.nodes), labels].sum(axis=0)[-self.devices :], memory.capacity
        over_ = [d for d in range(self.devices) if over(float(weights[d] + live[d].max()), float(room[d]))]
        return [(d, int(live[d].argmax())) for d in over_]

    def _broken_labels(self, labels: np.ndarray, ends: Ends) -> list[str]:
        problem, values = self.problem, self.problem.values
        place, form = np.divmod(labels, self.forms)
        not_allowed = np.flatnonzero(~problem.allowed[np.arange(self.nodes), place, form])
        broken = [
            f"{problem.nodes[n]} may not be {problem.forms[form[n]].name} on {problem.devices[place[n]]}"
            for n in not_allowed
        ]
        for edge in np.flatnonzero(self.broken_edges(ends)).tolist():
            name = values.names[self.edge_value[edge]]
            broken.append(f"{problem.nodes[self.readers[edge]]} cannot carry {name} as it is written")
        return broken

    def broken_edges(self, ends: Ends) -> np.ndarray:
        """A mask of the strict edges whose reader does not read what is written."""
        whole = ends.kind == Kind.INT8
        return np.asarray(self.problem.values.strict[ends.edge] & (ends.int8 != whole[ends.owner]))

    def _live(self, ends: Ends, served: Served) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bytes of activations by listed value and device, and the nodes from which and up to which they are live
        there. A copy is live from its producer (0 for an input) to its last reader on the device (the end if the caller
        reads it); on its own device at least while it is written."""
        values, rows, nodes = self.problem.values, np.arange(len(ends.value)), max(1, self.nodes)
        at_hand = served.copies | np.where(served.quantized_there, int(Copies.INT8), 0)
        at_hand[rows, ends.place] |= np.where(ends.kind == Kind.INT8, int(Copies.INT8), int(Copies.FLOAT))
        at_hand[rows, ends.place] |= np.where(served.quantized, int(Copies.INT8), 0)
        first = np.maximum(values.producer[ends.value], 0)
        last, reader = np.repeat(first[:, None], self.devices, axis=1), self.readers[ends.edge]
        np.maximum.at(last, (ends.owner, ends.to), np.where(reader == CALLER, nodes - 1, reader))
        float_bytes, int8_bytes = values.float_bytes[ends.value, None], values.int8_bytes[ends.value, None]
        return (at_hand & 1) * float_bytes + (at_hand >> 1) * int8_bytes, first, last

    def _live_by_device(self, ends: Ends, served: Served) -> np.ndarray:
        """Bytes of live activations (device, node) of a labelling whose values are all listed."""
        (size, first, last), nodes = self._live(ends, served), max(1, self.nodes)
        change = np.zeros((self.devices, nodes + 1))
        for device in range(self.devices):
            np.add.at(change[device], first, size[:, device])
            np.subtract.at(change[device], last[:, device] + 1, size[:, device])
        return np.asarray(change.cumsum(axis=1)[:, :nodes])


def evaluate(problem: Problem, labels: Sequence[int], copies: np.ndarray | None = None) -> Totals:
    """`Costs.totals` of one labelling."""
    return Costs(problem).totals(labels, copies)


def over(amount: float, upper: float) -> bool:
    """Whether `amount` exceeds a limit by more than rounding."""
    return bool(amount > upper + TOLERANCE * max(1e-3, abs(upper)))


def ramp(counts: np.ndarray) -> np.ndarray:
    """0, 1, … within each of `counts`."""
    return np.asarray(np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts))
