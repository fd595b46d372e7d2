"""The planning problem of several devices as a mixed-integer program. Solves nothing.

Columns: a binary per node and label; per value and pair of devices a copy of each kind, and per device its quantising
where it was written and where a float copy arrives. Each edge is a flow through its value's network:

    float at a ─── quantise ───► int8 at a      A unit starts where the producer is, in the kind that it writes,
        │                            │          and ends where the reader is, in the kind that it reads. A reader
    send float                   send int8      that gets int8 for float dequantises for itself. Only what was
        ▼                            ▼          written on a device is sent from there.
    float at b ─── quantise ───► int8 at b

A value pays for each column once: for the largest of its edges' flows there. Where no value has several readers, the
graph has no loops and no limit binds, the relaxation to fractions has whole answers; elsewhere it is a close bound.
"""

import time
from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf

import highspy
import numpy as np

from taglio.cluster.planning.costs import Costs
from taglio.cluster.planning.problem import CALLER, SOURCE, Copies, Kind
from taglio.plan.highs import Quiet
from taglio.plan.program import INFEASIBLE, Linear, Program, Solution

# More nodes of branch and bound than there is time for.
_NODES = 10**6

# Numbers of columns, which are summed; by kind and device; the column by (from, to) and by device.
Columns = list[int]
Places = list[list[Columns]]
Sends = dict[tuple[int, int], int]
Here = dict[int, int]


class Formulation:
    """The program of the problem of `costs`, and the `cost` to minimise. Column numbers: `labels` (node, label) and
    `copies` (value, kind, from, to), −1 where the program has no such column. `limits` are the rows of the limits.

    With `largest`, a mask over the limits, the cost is the largest of these sums instead, as a share of its limit.
    """

    def __init__(self, costs: Costs, *, largest: np.ndarray | None = None) -> None:
        self.costs, self.problem, self.program = costs, costs.problem, Program()
        values, devices, tables = self.problem.values, costs.devices, costs.limited
        # By column its share of the objective and of every limit.
        self._amounts: list[np.ndarray] = []
        self._nothing = np.zeros(tables.unary.shape[-1])
        # A column that is always 1: inputs write it and the caller reads it.
        self.one = self.column(self._nothing)
        self._row([(1.0, [self.one])], 1.0, 1.0)
        self.labels = np.full((costs.nodes, costs.labels), -1, dtype=np.intp)
        self.copies = np.full((len(values), len(Kind), devices, devices), -1, dtype=np.intp)
        for node, label in np.argwhere(costs.possible()).tolist():
            self.labels[node, label] = self.column(tables.unary[node, label], integral=True)
        for node in range(costs.nodes):
            self.equal(self._labels_of(node, np.ones(costs.labels, dtype=bool)), [self.one])
        self._written, self._read = self._places(costs.label_writes), self._places(costs.label_reads)
        self._networks = [_Network(self, value) for value in range(len(values))]
        for rule in self.problem.implications:
            around = [column for node, mask in rule.neighbours for column in self._labels_of(node, mask)]
            self._row([(1.0, self._labels_of(rule.node, rule.labels) + around)], -inf, float(len(rule.neighbours)))
        amounts = np.array(self._amounts)
        self.cost = _weighted(amounts[:, 0], self.problem.constant)
        period = self.column(self._nothing) if largest is not None else None
        if period is not None:
            self.cost = Linear(0.0, {period: 1.0})
        first = self.program.rows
        for number, upper in enumerate(costs.uppers.tolist()):
            terms = dict(_weighted(amounts[:, 1 + number], 0.0).terms)
            if period is not None and largest is not None and largest[number]:
                self.program.row({**terms, period: -1.0}, -inf, 0.0)
            else:
                self.program.row(terms, -inf, upper)
        self.limits = slice(first, self.program.rows)

    def solved(self, without: np.ndarray, gap: float, deadline: float) -> Solution:
        """The best plan that does not use the columns `without`."""
        left_s = deadline - time.perf_counter()
        return self.program.minimise(self.cost, gap=gap, nodes=_NODES, time_limit_s=left_s, without=without)

    def relaxed(self, deadline: float) -> tuple[Quiet, float, float]:
        """HiGHS with the solved relaxation to fractions; a lower bound on the cost, infinite if there is no plan and −∞
        if none was found in time; and the scale of costs in HiGHS."""
        highs, scale = self.program.highs(self.cost, relaxed=True)
        highs.setOptionValue("presolve", "off")  # takes longer than it saves
        highs.setOptionValue("time_limit", max(0.0, deadline - time.perf_counter()))
        highs.run()
        status = highs.getModelStatus()
        if status in INFEASIBLE:
            return highs, inf, scale
        solved = status == highspy.HighsModelStatus.kOptimal
        return highs, highs.getInfo().objective_function_value / scale if solved else -inf, scale

    def plan(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels and copies (value, device) from the columns' values."""
        sent = np.where(self.copies >= 0, columns[self.copies], 0.0).max(axis=2) > 0.5
        copies = np.where(sent[:, Kind.INT8], int(Copies.INT8), np.where(sent[:, Kind.FLOAT], int(Copies.FLOAT), 0))
        return self.of_labels(columns, -1.0).argmax(axis=1), copies

    def of_labels(self, columns: np.ndarray, missing: float) -> np.ndarray:
        """The columns' values by (node, label); `missing` for labels that the program lacks."""
        return np.where(self.labels >= 0, columns[self.labels], missing)

    def limit_memory(self, device: int, node: int) -> None:
        """Limit the weights on a device and the activations that are live there while a node runs."""
        values, capacity = self.problem.values, float(self.problem.memory.capacity[device])
        unit = capacity or 1.0
        weights = self.costs.sums.unary[..., device - self.costs.devices] / unit
        used = zip(self.labels[weights > 0.0].tolist(), weights[weights > 0.0].tolist(), strict=True)
        terms = [(weight, [column]) for column, weight in used if column >= 0]
        for value, network in enumerate(self._networks):
            first = max(0, int(values.producer[value]))
            later = [read for reader, read in network.reads if reader == CALLER or reader >= node]
            if first > node or not (later or first == node):
                continue
            for kind, size in ((Kind.FLOAT, values.float_bytes[value]), (Kind.INT8, values.int8_bytes[value])):
                live, held = self.column(self._nothing), network.held(kind, device)
                if first == node:
                    self.at_most(held, [live])
                for read in later if first < node else ():
                    arrives = read[Kind.FLOAT][device] + read[Kind.INT8][device]
                    self._row([(1.0, held + arrives), (-1.0, [live])], -inf, 1.0)
                terms.append((float(size) / unit, [live]))
        self._row(terms, -inf, capacity / unit)

    def ends(self, value: int) -> tuple[Places, list[tuple[int, Places]]]:
        """What a value's producer writes, and its readers with what they read."""
        values, devices = self.problem.values, range(self.costs.devices)
        home, producer = int(values.home[value]), int(values.producer[value])
        outside: Places = [[[self.one] if device == home else [] for device in devices], [[] for _ in devices]]
        readers = values.readers[values.start[value] : values.start[value + 1]].tolist()
        written = outside if producer == SOURCE else self._written[producer]
        return written, [(reader, outside if reader == CALLER else self._read[reader]) for reader in readers]

    def column(self, amounts: np.ndarray, *, integral: bool = False) -> int:
        """A new column with these amounts."""
        self._amounts.append(amounts)
        return self.program.column(integral=integral)

    def part(self, column: int) -> int:
        """A new column that is at most `column`."""
        part = self.column(self._nothing)
        self.at_most([part], [column])
        return part

    def at_most(self, left: Columns, right: Columns) -> None:
        """Require Σ left ≤ Σ right."""
        self._row([(1.0, left), (-1.0, right)], -inf, 0.0)

    def equal(self, left: Columns, right: Columns) -> None:
        """Require Σ left = Σ right."""
        self._row([(1.0, left), (-1.0, right)], 0.0, 0.0)

    def _row(self, parts: Sequence[tuple[float, Iterable[int]]], lower: float, upper: float) -> None:
        terms: dict[int, float] = {}
        for factor, columns in parts:
            for column in columns:
                terms[column] = terms.get(column, 0.0) + factor
        if terms:
            self.program.row(terms, lower, upper)

    def _labels_of(self, node: int, mask: np.ndarray) -> Columns:
        """The columns of a node's labels in `mask`."""
        columns: Columns = self.labels[node, mask & (self.labels[node] >= 0)].tolist()
        return columns

    def _places(self, kinds: np.ndarray) -> list[Places]:
        """By node its labels of each kind on each device."""
        masks = [[(kinds == kind) & (self.costs.label_device == d) for d in range(self.costs.devices)] for kind in Kind]
        return [[[self._labels_of(node, mask) for mask in row] for row in masks] for node in range(self.costs.nodes)]


class _Network:
    """The columns of a value: copies of each kind, `made` in int8 where it was written, and made so `again` where a
    float copy arrived."""

    def __init__(self, formulation: Formulation, value: int) -> None:
        self.formulation, self.value, self.devices = formulation, value, range(formulation.costs.devices)
        self.written, self.reads = formulation.ends(value)
        costs, tables, self.wire_only = formulation.costs, formulation.costs.limited, formulation.problem.wire_only
        written_float, written_int8 = self.written
        read_float, read_int8 = ([any(read[kind][d] for _, read in self.reads) for d in self.devices] for kind in Kind)
        pairs = [(a, b) for a in self.devices for b in self.devices if a != b and (read_float[b] or read_int8[b])]
        may_quantize = any(read_int8) or self.wire_only
        self.floats: Sends = {
            pair: formulation.column(tables.send_float[value, *pair])
            for pair in pairs
            if written_float[pair[0]] and not costs.barred[Copies.FLOAT][value, *pair]
        }
        # Where labels are whole, these decide between copies of both kinds.
        self.ints: Sends = {
            pair: formulation.column(tables.send_int8[value, *pair], integral=True)
            for pair in pairs
            if (written_int8[pair[0]] or (written_float[pair[0]] and may_quantize))
            and not costs.barred[Copies.INT8][value, *pair]
        }
        self.made: Here = {
            device: formulation.column(tables.quantize[value, device])
            for device in self.devices
            if written_float[device] and (read_int8[device] or _out_of(self.ints, device))
        }
        self.again: Here = {
            device: formulation.column(tables.quantize[value, device])
            for device in self.devices
            if read_int8[device] and _into(self.floats, device)
        }
        for kind, sends in ((Kind.FLOAT, self.floats), (Kind.INT8, self.ints)):
            for pair, column in sends.items():
                formulation.copies[value, kind, *pair] = column
        for device in self.devices if len(self.reads) > 1 else ():  # each gets one copy
            formulation.at_most(_into(self.floats, device) + _into(self.ints, device), [formulation.one])
        for number, (_, read) in enumerate(self.reads):
            self._flow(int(formulation.problem.values.start[value]) + number, read)

    def held(self, kind: Kind, device: int) -> Columns:
        """Whether a device holds the value in a kind."""
        if kind == Kind.FLOAT:
            return self.written[kind][device] + _into(self.floats, device)
        quantized = [columns[device] for columns in (self.made, self.again) if device in columns]
        return self.written[kind][device] + _into(self.ints, device) + quantized

    def _flow(self, edge: int, read: Places) -> None:
        """The flow of an edge, through parts of the value's columns if it has several."""
        formulation, tables = self.formulation, self.formulation.costs.limited
        floats, ints, made, again = self.floats, self.ints, self.made, self.again
        if len(self.reads) > 1:
            reached = [bool(read[Kind.FLOAT][d] or read[Kind.INT8][d]) for d in self.devices]
            floats = {pair: formulation.part(column) for pair, column in floats.items() if reached[pair[1]]}
            ints = {pair: formulation.part(column) for pair, column in ints.items() if reached[pair[1]]}
            made = {device: formulation.part(column) for device, column in made.items()}
            again = {device: formulation.part(column) for device, column in again.items() if read[Kind.INT8][device]}
        (written_float, written_int8), (read_float, read_int8) = self.written, read
        all_written_int8, all_read_int8 = [*chain(*written_int8)], [*chain(*read_int8)]
        restored: Here = {
            device: formulation.column(tables.dequantize[self.value, device])
            for device in self.devices
            if read_float[device]
            and (all_written_int8 or self.wire_only)
            and (written_int8[device] or _into(ints, device))
        }
        for device in self.devices:
            make, remake, restore = ([c[device]] if device in c else [] for c in (made, again, restored))
            float_in, float_out = _into(floats, device), _out_of(floats, device)
            int8_in, int8_out = _into(ints, device), _out_of(ints, device)
            here, here_int8 = written_float[device], written_int8[device]
            formulation.equal(here + float_in + restore, read_float[device] + float_out + make + remake)
            formulation.equal(here_int8 + int8_in + make + remake, read_int8[device] + int8_out + restore)
            formulation.at_most(float_out + make, here)
            formulation.at_most(remake, float_in)
            formulation.at_most(int8_out, here_int8 + make)
        if formulation.problem.values.strict[edge]:
            formulation.equal(all_read_int8, all_written_int8)
        elif tables.edge[edge].any():
            formulation.at_most(all_read_int8, [*all_written_int8, formulation.column(tables.edge[edge])])
        if restored:
            wired = [formulation.column(tables.wire[edge])] if self.wire_only else []
            formulation.at_most([*restored.values()], all_written_int8 + wired)


def _weighted(factors: np.ndarray, constant: float) -> Linear:
    """Σ factor · column + constant."""
    columns = np.flatnonzero(factors)
    return Linear(constant, dict(zip(columns.tolist(), factors[columns].tolist(), strict=True)))


def _into(sends: Sends, device: int) -> Columns:
    return [column for (_, target), column in sends.items() if target == device]


def _out_of(sends: Sends, device: int) -> Columns:
    return [column for (source, _), column in sends.items() if source == device]
