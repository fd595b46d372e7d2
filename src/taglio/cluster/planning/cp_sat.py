"""The shortest period as a program for OR-Tools CP-SAT. Adds no labels and no limits of its own.

x is the label of each node; other literals are derived from it: whether a node is on a device, reads int8, writes float
there. An option (a, d, copies) of a value says which copy goes from device a to d: exactly one if d has readers and the
value is written elsewhere. The effect of a copy at its readers is that of `serve` in costs.py:

    d quantises once                 any reader in int8 there ∧ a float copy
    a float reader dequantises       the reader ∧ an int8 copy
    the writer's place quantises     written in float there ∧ (a reader in int8 there ∨ an int8 copy goes out)

Costs are integers. The terms of the period are rounded down, so that the bound holds for the real costs; the units of
limits are so small that rounding breaks none. Live activations are limited only after a solution breaks their limit;
the program is then solved again.

Components: a device has at least as many components of a model as lie on any path through it, separated by blocks
elsewhere: e(n) ≥ e(p) + on(n, d) − on(p, d) for node n behind node p. The start device has one more if it quantises
inputs for other devices, and one more if it dequantises outputs from them.

Fetched messages: at least one from every device that sends to the start device.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taglio.cluster.planning.costs import Costs
from taglio.cluster.planning.problem import CALLER, SOURCE, Copies, Kind
from taglio.cores import available_cores
from taglio.optional import optional

# Units in a whole limit, and in the longest period.
_LIMIT_UNITS, _PERIOD_UNITS = 10**9, 10**7
# Only the search with the whole linear relaxation proves anything here, and it needs a core: on two cores it had its
# first bound after 18 s beside seven others, after 9 s beside one (yolo11n over 1 Gbit/s).
_SEARCHES = ("max_lp", "no_lp", "quick_restart_no_lp", "reduced_costs")
_FLOATS = (Kind.FLOAT, Kind.ANCHOR)


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The labels and copies (value, device) found (None: none), and a bound on any placement's period: infinite if none
    has a period up to the longest one allowed."""

    labels: np.ndarray | None
    copies: np.ndarray | None
    bound: float


def library() -> Any:
    """OR-Tools' CP-SAT. Raises BadOption if it is not installed."""
    missing = "plans for throughput need OR-Tools, which is not installed here: pip install 'taglio[cluster]'"
    return optional("ortools.sat.python.cp_model", missing)


class PeriodProgram:
    """Minimises the largest of the rows `periods` (a mask) of `costs`, which lies between `low` and `high`. Each
    component takes `overhead_s` (model, device) beyond its blocks; nodes take labels that are `alive` (nodes,
    labels)."""

    def __init__(
        self, costs: Costs, alive: np.ndarray, periods: np.ndarray, overhead_s: np.ndarray, low: float, high: float
    ) -> None:
        self.cp, self.costs, self.tables = library(), costs, costs.limited
        self.model = self.cp.CpModel()
        self.unit = high / _PERIOD_UNITS
        self.true, self.false = self.model.new_constant(1), self.model.new_constant(0)
        # Literals with a cost, and what each adds to every row.
        self.literals: list[Any] = []
        self.amounts: list[np.ndarray] = []
        self.literal_of: dict[tuple[int, bytes], Any] = {}
        self.options: dict[tuple[int, int, int, Copies], Any] = {}
        # Literals that imply an int8 copy of a float value on a device, by value.
        self.quantised: dict[tuple[int, int], list[Any]] = {}
        # Whether a model has a component of no blocks on a device: False quantises inputs, True dequantises outputs.
        self.bare: dict[tuple[int, int, bool], Any] = {}
        self.labels = [np.flatnonzero(row) for row in alive]
        self.x = [[self._new() for _ in choices] if len(choices) > 1 else [self.true] for choices in self.labels]
        for node, (labels, columns) in enumerate(zip(self.labels, self.x, strict=True)):
            if len(columns) > 1:
                self.model.add_exactly_one(columns)
            for label, column in zip(labels, columns, strict=True):
                self._pay(column, self.tables.unary[node, label])
        for value in range(len(costs.problem.values)):
            self._value(value)
        for implication in costs.problem.implications:
            ends = [(implication.node, implication.labels), *implication.neighbours]
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
        if key not in self.literal_of:
            columns = [column for column, label in zip(self.x[node], self.labels[node], strict=True) if mask[label]]
            if not columns or len(columns) == len(self.x[node]):
                self.literal_of[key] = self.true if columns else self.false
            elif len(columns) == 1:
                self.literal_of[key] = columns[0]
            else:
                self.literal_of[key] = self._new()
                self.model.add(sum(columns) == self.literal_of[key])
        return self.literal_of[key]

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

    def _both(self, first: Sequence[Any], second: Sequence[Any], amounts: np.ndarray, *, needed: bool = False) -> Any:
        """A literal, with its cost, that holds if any of `first` and any of `second` do; it may also hold otherwise if
        that saves nothing. The constant false if it costs nothing, unless it is `needed`."""
        first, second = ([one for one in literals if one is not self.false] for literals in (first, second))
        if not first or not second or not (needed or amounts[1:].any()):
            return self.false
        if len(first) == len(second) == 1 and self.true in (first[0], second[0]):
            both = second[0] if first[0] is self.true else first[0]
        else:
            both = self._new()
            for from_first in first:
                for from_second in second:
                    self.model.add_bool_or([~from_first, ~from_second, both])
            if (amounts < 0.0).any():
                self.model.add_bool_or([*first, ~both])
                self.model.add_bool_or([*second, ~both])
        self._pay(both, amounts)
        return both

    def _value(self, value: int) -> None:
        costs, tables = self.costs, self.tables
        values, devices = costs.problem.values, range(costs.devices)
        edges = range(int(values.start[value]), int(values.start[value + 1]))
        uses: list[list[Any]] = [[] for _ in devices]  # of an int8 copy, by where it is made
        for d in devices:
            ints = [reader for e in edges if (reader := self._reads(e, d, int8=True)) is not self.false]
            floats = [(e, reader) for e in edges if (reader := self._reads(e, d, int8=False)) is not self.false]
            uses[d] += ints
            if ints or floats:
                self._deliver(value, d, ints, floats, uses)
            whole = self._writes(value, d, (Kind.INT8,))
            for _, reader in floats:
                self._both([whole], [reader], tables.dequantize[value, d])
        for d in devices:
            for kind in _FLOATS:
                written = self._writes(value, d, (kind,))
                self._both([written], uses[d], tables.quantize[value, int(kind), d])
            self.quantised.setdefault((value, d), []).extend(uses[d])
        for e in edges:
            self._both([self._writes(value, None, _FLOATS)], [self._reads(e, None, int8=True)], tables.edge[e])
            if values.strict[e]:
                for kind in Kind:
                    read = self._some(int(costs.readers[e]), costs.label_reads == int(kind))
                    self.model.add(self._writes(value, None, (kind,)) == read)

    def _deliver(
        self, value: int, d: int, ints: Sequence[Any], floats: Sequence[tuple[int, Any]], uses: Sequence[list[Any]]
    ) -> None:
        """The copies of a value written elsewhere that device d gets for its readers in int8 and in float."""
        costs, tables, model = self.costs, self.tables, self.model
        readers = [*ints, *(float_reader for _, float_reader in floats)]
        by_copies: dict[Copies, list[Any]] = {Copies.FLOAT: [], Copies.INT8: []}
        for a in (device for device in range(costs.devices) if device != d):
            for copies, options in by_copies.items():
                kinds, sent = (
                    (_FLOATS, tables.send_float) if copies == Copies.FLOAT else (tuple(Kind), tables.send_int8)
                )
                written = self._writes(value, a, kinds)
                if written is self.false or costs.barred[copies][value, a, d]:
                    continue
                options.append(self._new())
                self.options[value, a, d, copies] = options[-1]
                model.add_implication(options[-1], written)
                self._pay(options[-1], sent[value, a, d])
                if copies == Copies.INT8:
                    uses[a].append(options[-1])
                    if costs.producer[value] == SOURCE:
                        model.add_implication(options[-1], self._bare(value, outputs=False))
        deliveries = [literal for options in by_copies.values() for literal in options]
        here = self._writes(value, d, tuple(Kind))
        model.add_at_most_one(deliveries)
        for reader in readers:
            model.add_bool_or([here, *deliveries, ~reader])
        for option in deliveries:
            model.add_bool_or([*readers, ~option])
        requantized = self._both(ints, by_copies[Copies.FLOAT], tables.quantize[value, 0, d], needed=True)
        self.quantised.setdefault((value, d), []).append(requantized)
        for edge, reader in floats if by_copies[Copies.INT8] else ():
            self._restore(value, d, edge, reader, by_copies[Copies.INT8])

    def _restore(self, value: int, d: int, edge: int, reader: Any, options: Sequence[Any]) -> None:
        """A float reader that gets only an int8 copy dequantises it, which adds noise if the value is written in
        float."""
        tables, float_written = self.tables, self._writes(value, None, _FLOATS)
        self._both([reader], options, tables.dequantize[value, d])
        bare = self._bare(value, outputs=True) if self.costs.readers[edge] == CALLER else self.true
        for option in options:
            self.model.add_bool_or([~reader, ~option, bare])
            if not self.costs.problem.wire_only:
                self.model.add_bool_or([~reader, ~option, ~float_written])
        if self.costs.problem.wire_only and tables.wire[edge][1:].any():
            restored = self._both([reader], options, np.zeros(1), needed=True)
            self._both([restored], [float_written], tables.wire[edge])

    def _bare(self, value: int, *, outputs: bool) -> Any:
        values = self.costs.problem.values
        key = int(values.model[value]), int(values.home[value]), outputs
        if key not in self.bare:
            self.bare[key] = self._new()
        return self.bare[key]

    def _rows(self, periods: np.ndarray, overhead_s: np.ndarray) -> None:
        table = np.array(self.amounts).reshape(len(self.literals), len(self.costs.rows))
        for index, row in enumerate(self.costs.rows):
            used = np.flatnonzero(table[:, index])
            literals = [self.literals[each] for each in used]
            if periods[index]:
                amounts = np.floor(table[used, index] * (row.unit / self.unit)).astype(np.int64)
                total = self.cp.LinearExpr.weighted_sum(literals, amounts.tolist())
                more = self._components(row.column - 1, overhead_s) + self._fetches(row.column - 1)
                self.model.add(total + more <= self.period)
            else:
                # Amounts are cut where they break the limit whatever is saved elsewhere.
                most = row.upper + float(self.costs.saved[index]) + 1.0
                amounts = np.rint(np.minimum(table[used, index], most) * _LIMIT_UNITS).astype(np.int64)
                total = self.cp.LinearExpr.weighted_sum(literals, amounts.tolist())
                # As much room as the check leaves for rounding (costs.over).
                self.model.add(total <= int((row.upper + 5e-7) * _LIMIT_UNITS))

    def _components(self, resource: int, overhead_s: np.ndarray) -> Any:
        """Overhead of components on a resource, rounded down."""
        quantity, total = self.costs.problem.resources[resource], 0
        for model, device in zip(*np.nonzero(quantity.models[:, None] * quantity.device * overhead_s), strict=True):
            taken_s = float(quantity.models[model] * quantity.device[device] * overhead_s[model, device])
            bare = [literal for key, literal in self.bare.items() if key[:2] == (model, device)]
            count = self._count(int(model), int(device), taken_s) + sum(bare)
            total = total + int(np.floor(taken_s / self.unit)) * count
        return total

    def _fetches(self, resource: int) -> Any:
        """A lower bound on the cost of fetched messages in a resource, rounded down: one message from every device that
        sends to the start device."""
        quantity, total = self.costs.problem.resources[resource], 0
        if quantity.fetch is None:
            return total
        values = self.costs.problem.values
        for model, device in zip(*np.nonzero(quantity.models[:, None] * quantity.fetch), strict=True):
            fetched = self._new()
            for (value, source, target, _), option in self.options.items():
                if (source, target, values.model[value]) == (device, values.home[value], model):
                    self.model.add_implication(option, fetched)
            total = total + int(np.floor(float(quantity.models[model] * quantity.fetch[device]) / self.unit)) * fetched
        return total

    def _count(self, model: int, device: int, taken_s: float) -> Any:
        """A lower bound on the number of components with blocks of a model on a device."""
        nodes = np.flatnonzero(self.costs.problem.model == model).tolist()
        on = {node: self._some(node, self.costs.label_device == device) for node in nodes}
        if taken_s < 1e-3 * self.unit * _PERIOD_UNITS:  # hardly worth counting: one component at most
            used = self._new()
            for literal in on.values():
                self.model.add_implication(literal, used)
            return used
        values = self.costs.problem.values
        count = self.model.new_int_var(0, len(nodes), "")
        paths = {node: self.model.new_int_var(0, len(nodes), "") for node in nodes}
        for node in nodes:
            self.model.add(paths[node] >= on[node])
            self.model.add(count >= paths[node])
        producers = values.producer[self.costs.edge_value]
        for source, reader in {(int(a), int(b)) for a, b in zip(producers, values.readers, strict=True)}:
            if source != SOURCE and reader in paths:
                self.model.add(paths[reader] >= paths[source])
                self.model.add(paths[reader] >= paths[source] + on[reader] - on[source])
        return count

    def hint(self, labels: Sequence[int], copies: np.ndarray) -> None:
        """Start the search near a placement."""
        label_of_node = np.asarray(labels, dtype=np.intp)
        for node, (alive, columns) in enumerate(zip(self.labels, self.x, strict=True)):
            for label, column in zip(alive, columns, strict=True):
                if column is not self.true:
                    self.model.add_hint(column, int(label == label_of_node[node]))
        place = self.costs.ends(label_of_node).place
        for (value, source, target, sent), column in self.options.items():
            self.model.add_hint(column, int(place[value] == source and copies[value, target] == sent))

    def solve(self, *, gap: float, time_limit_s: float, first: bool = False) -> Stream:
        """The placement with the shortest period found, or the `first` one."""
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = max(2, min(available_cores(), 2 * len(_SEARCHES)))
        solver.parameters.subsolvers.extend(_SEARCHES)
        solver.parameters.relative_gap_limit = gap
        solver.parameters.stop_after_first_solution = first
        # Probing and symmetry take most of presolve here and find nothing.
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        deadline = time.perf_counter() + time_limit_s
        while True:
            solver.parameters.max_time_in_seconds = max(0.01, deadline - time.perf_counter())
            status = solver.solve(self.model)
            if status == self.cp.INFEASIBLE:
                return Stream(None, None, np.inf)
            bound = float(solver.best_objective_bound) * self.unit
            if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
                return Stream(None, None, bound)
            labels, copies = self._read(solver)
            full = self.costs.full(labels, copies)
            if not full:
                return Stream(labels, copies, bound)
            for device, node, _ in full:
                self._limit_live(device, node)

    def _read(self, solver: Any) -> tuple[np.ndarray, np.ndarray]:
        chosen = [[bool(solver.value(column)) for column in columns].index(True) for columns in self.x]
        labels = np.array([alive[index] for alive, index in zip(self.labels, chosen, strict=True)], dtype=np.intp)
        copies = np.zeros((len(self.costs.problem.values), self.costs.devices), dtype=np.intp)
        for (value, _, target, sent), column in self.options.items():
            if solver.value(column):
                copies[value, target] = int(sent)
        return labels, copies

    def _limit_live(self, device: int, node: int) -> None:
        """Limit a device's weights and the activations live there while `node` runs to its memory."""
        memory, values = self.costs.problem.memory, self.costs.problem.values
        assert memory is not None
        terms: list[tuple[Any, float]] = []
        for placed_node, (labels, columns) in enumerate(zip(self.labels, self.x, strict=True)):
            for label, column in zip(labels, columns, strict=True):
                place, form = self.costs.problem.split(int(label))
                if place == device:
                    terms.append((column, float(memory.weights[placed_node, form])))
        for value in np.flatnonzero(values.producer <= node).tolist():
            terms += self._live(value, device, node)
        unit = float(memory.capacity[device]) / _LIMIT_UNITS
        amounts = [int(min(size / unit, 2.0 * _LIMIT_UNITS)) for _, size in terms]
        total = self.cp.LinearExpr.weighted_sum([literal for literal, _ in terms], amounts)
        self.model.add(total <= _LIMIT_UNITS)

    def _live(self, value: int, place: int, node: int) -> list[tuple[Any, float]]:
        """Whether a value's float and int8 copies are live on a device while `node` runs, and their bytes."""
        values = self.costs.problem.values
        later = [
            self._reads(edge, place, int8=int8)
            for edge in range(int(values.start[value]), int(values.start[value + 1]))
            if self.costs.readers[edge] == CALLER or self.costs.readers[edge] >= node
            for int8 in (False, True)
        ]
        written = max(0, int(values.producer[value])) == node
        received = [
            (copies, literal) for (v, _, d, copies), literal in self.options.items() if (v, d) == (value, place)
        ]
        live_copies = []
        for copy, kinds, size, quantised in (
            (Copies.FLOAT, _FLOATS, values.float_bytes[value], []),
            (Copies.INT8, (Kind.INT8,), values.int8_bytes[value], self.quantised.get((value, place), [])),
        ):
            sent = [literal for copies, literal in received if copies & copy]
            at_hand = [self._writes(value, place, kinds), *sent, *quantised]
            live = self._both(at_hand, [self.true] if written else later, np.zeros(1), needed=True)
            live_copies.append((live, float(size)))
        return live_copies
