"""The least period as a program for OR-Tools CP-SAT. Offers no labels and no limits of its own.

x says which label a node has; all else is a literal, some of its labels: whether it is on a device, reads int8, writes
float there. Of a value that node p writes, F and I say that a float or int8 copy goes from a to d, Q that d quantises
its float copy, Z that a quantises for others and itself, O that a float reader dequantises an int8 copy. A reader on d

    in float needs  on(p, d) ∨ ⋁ F(a, d) ∨ O,  O → ⋁ I(a, d);     in int8  on(p, d) ∨ ⋁ I(a, d) ∨ Q,  Q → ⋁ F(a, d)

and F(a, d) → p writes float on a, I(a, d) → p is on a. Costs are whole numbers of units. What makes the period is
rounded down, so that the bound holds for the real costs; the limits' units are so small that rounding breaks none.

Live activations are limited where a solution breaks their limit, and then it is looked for again.

Components: no device has fewer of a model than lie on one path through it, each parted from the next by a block
elsewhere. e(n) ≥ e(p) + on(n, d) − on(p, d) for node n behind node p counts them. One more on the start device
quantises inputs for other devices, and one dequantises outputs from them.
"""

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taglio.errors import BadOption
from taglio.plan.costs import Costs, wires_of
from taglio.plan.problem import CALLER, SOURCE, Copies, Kind, Wires

# Units in a whole limit, and in the greatest period.
_LIMIT_UNITS, _PERIOD_UNITS = 10**9, 10**7
# Components that take less of the greatest period are counted once a device and model, however often a path comes back.
_COUNTED = 1e-3
# CP-SAT's own searches complement each other: with fewer of them than this it lacks some, whatever the cores are.
_WORKERS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The labels and copies found (None where none), and a bound on any placement's period; infeasible where none has
    a period up to the greatest that was asked for."""

    labels: np.ndarray | None
    wires: Wires
    bound: float
    infeasible: bool


def library() -> Any:
    """OR-Tools' CP-SAT. Raises BadOption with the fix where it is missing."""
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError:
        raise BadOption(
            "plans for throughput need OR-Tools, which is not installed here: pip install 'taglio[cluster]'"
        ) from None


class PeriodProgram:
    """The least of the greatest of some rows of `costs`, whose upper end `high` is: `periods` is a mask over rows.
    `overhead_s` (model, device) is what each component takes beyond its blocks; nodes take labels that are alive."""

    def __init__(
        self, costs: Costs, alive: np.ndarray, periods: np.ndarray, overhead_s: np.ndarray, low: float, high: float
    ) -> None:
        self.cp, self.costs, self.tables = library(), costs, costs.limited
        self.model = self.cp.CpModel()
        self.unit = high / _PERIOD_UNITS
        self.true, self.false = self.model.new_constant(1), self.model.new_constant(0)
        # What is paid for: literals, and what each adds to every row.
        self.literals: list[Any] = []
        self.amounts: list[np.ndarray] = []
        self.known: dict[tuple[int, bytes], Any] = {}
        self.copies: dict[tuple[int, int, int, Copies], Any] = {}
        # Int8 copies that are made on a device, by value.
        self.made: dict[tuple[int, int], list[Any]] = {}
        # Whether a model has a component of no blocks on a device: False quantises inputs, True dequantises outputs.
        self.bare: dict[tuple[int, int, bool], Any] = {}
        self.labels = [np.flatnonzero(row) for row in alive]
        self.x = [[self._new() for _ in each] if len(each) > 1 else [self.true] for each in self.labels]
        for node, (labels, columns) in enumerate(zip(self.labels, self.x, strict=True)):
            if len(columns) > 1:
                self.model.add_exactly_one(columns)
            for label, column in zip(labels, columns, strict=True):
                self._pay(column, self.tables.unary[node, label])
        for value in range(len(costs.problem.values)):
            self._value(value)
        for each in costs.problem.implications:
            ends = [(each.node, each.labels), *each.neighbours]
            self.model.add_bool_or([~self._some(node, mask) for node, mask in ends])
        self.period = self.model.new_int_var(int(np.floor(low / self.unit)), _PERIOD_UNITS, "period")
        self._rows(periods, overhead_s)
        self.model.minimize(self.period)

    def _new(self) -> Any:
        return self.model.new_bool_var("")

    def _pay(self, literal: Any, amounts: np.ndarray) -> None:
        if literal is not self.false and amounts[1:].any():
            self.literals.append(literal)
            self.amounts.append(amounts[1:])

    def _some(self, node: int, mask: np.ndarray) -> Any:
        """Whether a node has one of the labels of a mask."""
        key = node, mask.tobytes()
        if key not in self.known:
            columns = [column for column, label in zip(self.x[node], self.labels[node], strict=True) if mask[label]]
            if not columns or len(columns) == len(self.x[node]):
                self.known[key] = self.true if columns else self.false
            elif len(columns) == 1:
                self.known[key] = columns[0]
            else:
                self.known[key] = self._new()
                self.model.add(sum(columns) == self.known[key])
        return self.known[key]

    def _writes(self, value: int, device: int | None, kinds: Sequence[Kind]) -> Any:
        """Whether a value is written in one of the kinds, on a device or anywhere."""
        producer, home = int(self.costs.producer[value]), int(self.costs.problem.values.home[value])
        if producer == SOURCE:
            return self.true if Kind.FLOAT in kinds and device in (None, home) else self.false
        mask = np.isin(self.costs.label_writes, [int(kind) for kind in kinds])
        return self._some(producer, mask if device is None else mask & (self.costs.label_device == device))

    def _reads(self, edge: int, device: int | None, *, int8: bool) -> Any:
        """Whether an edge's reader reads in int8 (else in float), on a device or anywhere."""
        reader, home = int(self.costs.readers[edge]), int(self.costs.problem.values.home[self.costs.edge_value[edge]])
        if reader == CALLER:
            return self.true if not int8 and device in (None, home) else self.false
        mask = (self.costs.label_reads == Kind.INT8) == int8
        return self._some(reader, mask if device is None else mask & (self.costs.label_device == device))

    def _both(self, one: Any, other: Any, amounts: np.ndarray) -> Any:
        """Pay where two literals hold."""
        if one is self.false or other is self.false or not amounts[1:].any():
            return self.false
        if one is self.true or other is self.true:
            both = other if one is self.true else one
        else:
            both = self._new()
            self.model.add_bool_or([~one, ~other, both])
            if (amounts < 0.0).any():  # what saves time does not come by itself
                self.model.add_implication(both, one)
                self.model.add_implication(both, other)
        self._pay(both, amounts)
        return both

    def _value(self, value: int) -> None:
        costs, tables, model = self.costs, self.tables, self.model
        values, devices = costs.problem.values, range(costs.devices)
        edges = range(int(values.start[value]), int(values.start[value + 1]))
        floats, every = (Kind.FLOAT, Kind.ANCHOR), tuple(Kind)
        at = [self._writes(value, d, every) for d in devices]
        in_float = [self._writes(value, d, floats) for d in devices]
        in_int8 = [self._writes(value, d, (Kind.INT8,)) for d in devices]
        float_anywhere = self._writes(value, None, floats)
        wants_float = {(e, d): self._reads(e, d, int8=False) for e in edges for d in devices}
        wants_int8 = {(e, d): self._reads(e, d, int8=True) for e in edges for d in devices}
        uses: list[list[Any]] = [[] for _ in devices]  # of an int8 copy, by where it is made
        for d in devices:
            ints = [wants_int8[e, d] for e in edges if wants_int8[e, d] is not self.false]
            reads = [(e, wants_float[e, d]) for e in edges if wants_float[e, d] is not self.false]
            uses[d] += ints
            if ints or reads:
                self._deliver((value, d), ints, reads, (at, in_float, in_int8), uses)
        for d in devices:
            for kind in floats:
                made = self._quantize(self._writes(value, d, (kind,)), uses[d], tables.quantize[value, int(kind), d])
                self.made.setdefault((value, d), []).append(made)
        for e in edges:
            for d in devices:
                self._both(in_int8[d], wants_float[e, d], tables.dequantize[value, d])
            self._both(float_anywhere, self._reads(e, None, int8=True), tables.edge[e])
            if values.strict[e]:
                reader = int(costs.readers[e])
                for kind in every:
                    written = self._writes(value, None, (kind,))
                    model.add(written == self._some(reader, costs.label_reads == int(kind)))

    def _deliver(
        self,
        to: tuple[int, int],
        ints: Sequence[Any],
        reads: Sequence[tuple[int, Any]],
        written: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
        uses: Sequence[list[Any]],
    ) -> None:
        """What a device gets of a value that is written elsewhere, `to` (value, device), for readers there in int8 and
        in float; `written` says by device whether it is written there, in float, in int8."""
        value, d = to
        at, in_float, in_int8 = written
        costs, tables, model = self.costs, self.tables, self.model
        whole, narrow = [], []
        saves = bool((tables.quantize[value] < 0.0).any())
        for a in range(costs.devices):
            if a == d or at[a] is self.false:
                continue
            if in_float[a] is not self.false and not costs.barred[Copies.FLOAT][value, a, d]:
                column = self.copies[value, a, d, Copies.FLOAT] = self._new()
                whole.append(column)
                model.add_implication(column, in_float[a])
                self._pay(column, tables.send_float[value, a, d])
            useful = ints or costs.problem.wire_only or in_int8[a] is not self.false
            if useful and not costs.barred[Copies.INT8][value, a, d]:
                column = self.copies[value, a, d, Copies.INT8] = self._new()
                narrow.append(column)
                model.add_implication(column, at[a])
                uses[a].append(column)
                self._pay(column, tables.send_int8[value, a, d])
                if costs.producer[value] == SOURCE:
                    model.add_implication(column, self._bare(value, outputs=False))
                if saves:  # somebody reads it, or it would be sent only to quantise
                    model.add_bool_or([*ints, *(each for _, each in reads), ~column])
                    model.add_bool_or([*ints, ~self.copies.get((value, a, d, Copies.FLOAT), self.false), ~column])
        if ints:
            again = self._new() if whole else self.false
            if whole:
                model.add_bool_or([*whole, ~again])
                self.made.setdefault((value, d), []).append(again)
                self._pay(again, tables.quantize[value, 0, d])
                if (tables.quantize[value, 0, d] < 0.0).any():
                    model.add_bool_or([*ints, ~again])
                    model.add_at_most_one([*narrow, again])
            for each in ints:
                model.add_bool_or([at[d], *narrow, again, ~each])
        for edge, each in reads:
            restored = self._new() if narrow else self.false
            if narrow:
                model.add_bool_or([*narrow, ~restored])
                model.add_implication(restored, each)
                if costs.readers[edge] == CALLER:
                    model.add_implication(restored, self._bare(value, outputs=True))
                self._pay(restored, tables.dequantize[value, d])
                float_written = self._writes(value, None, (Kind.FLOAT, Kind.ANCHOR))
                if not costs.problem.wire_only:
                    model.add_implication(restored, ~float_written)
                self._both(restored, float_written, tables.wire[edge])
                if (tables.dequantize[value, d] < 0.0).any():
                    model.add_at_most_one([*whole, restored])
            model.add_bool_or([at[d], *whole, restored, ~each])

    def _bare(self, value: int, *, outputs: bool) -> Any:
        values = self.costs.problem.values
        key = int(values.model[value]), int(values.home[value]), outputs
        if key not in self.bare:
            self.bare[key] = self._new()
        return self.bare[key]

    def _quantize(self, written: Any, uses: Sequence[Any], amounts: np.ndarray) -> Any:
        """An int8 copy where a value is written, made and paid for if anybody uses it."""
        if written is self.false or not uses:
            return self.false
        made = self._new()
        for each in uses:
            self.model.add_bool_or([~each, ~written, made])
        if (amounts < 0.0).any():
            self.model.add_implication(made, written)
            self.model.add_bool_or([*uses, ~made])
        self._pay(made, amounts)
        return made

    def _rows(self, periods: np.ndarray, overhead_s: np.ndarray) -> None:
        table = np.array(self.amounts).reshape(len(self.literals), len(self.costs.rows))
        for index, row in enumerate(self.costs.rows):
            used = np.flatnonzero(table[:, index])
            literals = [self.literals[each] for each in used]
            if periods[index]:
                amounts = np.floor(table[used, index] * (row.unit / self.unit)).astype(np.int64)
                total = self.cp.LinearExpr.weighted_sum(literals, amounts.tolist())
                self.model.add(total + self._components(row.column - 1, overhead_s) <= self.period)
            else:
                # What breaks the limit whatever is saved elsewhere.
                most = row.upper + float(self.costs.saved[index]) + 1.0
                amounts = np.rint(np.minimum(table[used, index], most) * _LIMIT_UNITS).astype(np.int64)
                total = self.cp.LinearExpr.weighted_sum(literals, amounts.tolist())
                # As much room as the check leaves for rounding (costs.over).
                self.model.add(total <= int((row.upper + 5e-7) * _LIMIT_UNITS))

    def _components(self, resource: int, overhead_s: np.ndarray) -> Any:
        """Overhead of components on a resource, rounded down."""
        each, total = self.costs.problem.resources[resource], 0
        for model, device in zip(*np.nonzero(each.models[:, None] * each.device * overhead_s), strict=True):
            taken_s = float(each.models[model] * each.device[device] * overhead_s[model, device])
            bare = [each for key, each in self.bare.items() if key[:2] == (model, device)]
            count = self._count(int(model), int(device), taken_s) + sum(bare)
            total = total + int(np.floor(taken_s / self.unit)) * count
        return total

    def _count(self, model: int, device: int, taken_s: float) -> Any:
        """At least how many components of blocks of a model are on a device."""
        nodes = np.flatnonzero(self.costs.problem.model == model).tolist()
        on = {node: self._some(node, self.costs.label_device == device) for node in nodes}
        if taken_s < _COUNTED * self.unit * _PERIOD_UNITS:
            used = self._new()
            for each in on.values():
                self.model.add_implication(each, used)
            return used
        values = self.costs.problem.values
        count = self.model.new_int_var(0, len(nodes), "")
        paths = {node: self.model.new_int_var(0, len(nodes), "") for node in nodes}
        for node in nodes:
            self.model.add(paths[node] >= on[node])
            self.model.add(count >= paths[node])
        made = values.producer[self.costs.edge_value]
        for source, reader in {(int(a), int(b)) for a, b in zip(made, values.readers, strict=True)}:
            if source != SOURCE and reader in paths:
                self.model.add(paths[reader] >= paths[source])
                self.model.add(paths[reader] >= paths[source] + on[reader] - on[source])
        return count

    def hint(self, labels: Sequence[int], wires: Wires) -> None:
        """Begin near a placement."""
        given = np.asarray(labels, dtype=np.intp)
        for node, (alive, columns) in enumerate(zip(self.labels, self.x, strict=True)):
            for label, column in zip(alive, columns, strict=True):
                if column is not self.true:
                    self.model.add_hint(column, int(label == given[node]))
        place = self.costs.ends(given).place
        for (value, source, target, copy), column in self.copies.items():
            got = wires[value].get(target, Copies(0)) if place[value] == source else Copies(0)
            self.model.add_hint(column, int(bool(got & copy)))

    def solve(self, *, gap: float, time_limit_s: float) -> Stream:
        """The placement of least period found."""
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = _WORKERS
        solver.parameters.relative_gap_limit = gap
        # Probing and symmetry take most of presolve here and find nothing.
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        deadline = time.perf_counter() + time_limit_s
        while True:
            solver.parameters.max_time_in_seconds = max(0.01, deadline - time.perf_counter())
            status = solver.solve(self.model)
            if status == self.cp.INFEASIBLE:
                return Stream(None, (), np.inf, True)
            bound = float(solver.best_objective_bound) * self.unit
            if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
                return Stream(None, (), bound, False)
            labels, wires = self._read(solver)
            full = self.costs.full(labels, wires)
            if not full:
                return Stream(labels, wires, bound, False)
            for device, node in full:
                self._limit_live(device, node)

    def _read(self, solver: Any) -> tuple[np.ndarray, Wires]:
        labels = np.array(
            [
                alive[[bool(solver.value(column)) for column in columns].index(True)]
                for alive, columns in zip(self.labels, self.x, strict=True)
            ],
            dtype=np.intp,
        )
        ends = self.costs.ends(labels)
        ints, floats, there = self.costs.readers_on(ends)
        copies = np.zeros(there.shape, dtype=np.intp)
        for (value, source, target, copy), column in self.copies.items():
            if ends.place[value] == source and solver.value(column):
                copies[value, target] |= int(copy)
        # Both copies go only where a device has readers of both kinds, and none where nobody reads.
        both = copies == Copies.FLOAT | Copies.INT8
        copies = np.where(both & (floats == 0), 2, np.where(both & (ints == 0), 1, copies)) * there
        return labels, wires_of(copies)

    def _limit_live(self, device: int, node: int) -> None:
        """Hold a device's weights and what is live there while `node` runs to its memory."""
        memory, values = self.costs.problem.memory, self.costs.problem.values
        assert memory is not None
        unit, terms = float(memory.capacity[device]) / _LIMIT_UNITS, []
        places = np.flatnonzero(memory.used()[:, device]).tolist()
        for each, (labels, columns) in enumerate(zip(self.labels, self.x, strict=True)):
            for label, column in zip(labels, columns, strict=True):
                place, form = self.costs.problem.split(int(label))
                if place in places:
                    terms.append((column, float(memory.weights[each, form])))
        for value in np.flatnonzero(values.producer <= node).tolist():
            for place in places:
                for literal, size in self._live(value, place, node):
                    terms.append((literal, size))
        amounts = [int(min(size / unit, 2.0 * _LIMIT_UNITS)) for _, size in terms]
        total = self.cp.LinearExpr.weighted_sum([literal for literal, _ in terms], amounts)
        self.model.add(total <= _LIMIT_UNITS)

    def _live(self, value: int, place: int, node: int) -> list[tuple[Any, float]]:
        """Whether a value's float and int8 copies are live on a device while `node` runs, and their bytes."""
        values, read = self.costs.problem.values, self._new()
        for edge in range(int(values.start[value]), int(values.start[value + 1])):
            if self.costs.readers[edge] == CALLER or self.costs.readers[edge] >= node:
                for int8 in (False, True):
                    self.model.add_implication(self._reads(edge, place, int8=int8), read)
        written = max(0, int(values.producer[value])) == node
        found = []
        for copy, kinds, size in (
            (Copies.FLOAT, (Kind.FLOAT, Kind.ANCHOR), values.float_bytes[value]),
            (Copies.INT8, (Kind.INT8,), values.int8_bytes[value]),
        ):
            held = [self._writes(value, place, kinds)]
            held += [each for (v, _, d, c), each in self.copies.items() if (v, d, c) == (value, place, copy)]
            held += self.made.get((value, place), []) if copy == Copies.INT8 else []
            live = self._new()
            for each in held:
                self.model.add_bool_or([~each, live] if written else [~each, ~read, live])
            found.append((live, float(size)))
        return found
