"""The columns of a `Program` and one more, the period, for OR-Tools CP-SAT. Chooses neither limits nor labels to offer.

Every column is 0 or 1, every cost a whole number of units. What makes the period is rounded down, so that the bound
holds for the real costs; the limits are counted in units so small that rounding breaks none.

Components: no device has fewer of a model than lie on one path through it, each parted from the next by a block
elsewhere. e(n) ≥ e(p) + on(n) − on(p) for block n behind block p counts them, on(n) being whether n is on that device.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taglio.errors import BadOption
from taglio.plan.costs import Costs
from taglio.plan.milp import Expression, Found, Program
from taglio.plan.problem import SOURCE, Copies

# Units in a whole limit, and in the greatest period.
_LIMIT_UNITS, _PERIOD_UNITS = 10**9, 10**7
# Components that take less of the greatest period are counted once a device and model, however often a path comes back.
_COUNTED = 1e-3
# CP-SAT's own searches complement each other: with fewer of them than this it lacks some, whatever the cores are.
_WORKERS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """A placement to begin with."""

    labels: Sequence[int]
    wires: Sequence[Mapping[int, Copies]]


def library() -> Any:
    """OR-Tools' CP-SAT. Raises BadOption with the fix where it is missing."""
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError:
        raise BadOption(
            "plans for throughput need OR-Tools, which is not installed here: pip install 'taglio[cluster]'"
        ) from None


class PeriodProgram:
    """The least period of `program`: the greatest of the rows `periods` (numbers in costs.rows, each with the same
    upper end `high`). `overhead_s` (model, device) is what each component takes beyond its blocks."""

    def __init__(
        self, program: Program, periods: Sequence[int], overhead_s: np.ndarray, low: float, high: float
    ) -> None:
        self.cp, self.program, self.costs = library(), program, program.costs
        self.unit, self.model = high / _PERIOD_UNITS, self.cp.CpModel()
        matrix = program.matrix
        self.columns = [self.model.new_int_var(0, int(upper), "") for upper in matrix.upper]
        for low_, high_, begin, end in zip(matrix.low, matrix.high, matrix.starts[:-1], matrix.starts[1:], strict=True):
            self._row(low_, high_, matrix.columns[begin:end], matrix.values[begin:end])
        cost = np.array(matrix.cost).reshape(len(self.columns), program.width)
        self.period = self.model.new_int_var(max(0, int(low / self.unit)), _PERIOD_UNITS, "period")
        counted = set(periods)
        for index, row in enumerate(self.costs.rows):
            line, fixed = cost[:, 1 + index], float(program.fixed[1 + index])
            used = np.flatnonzero(line)
            if index in counted:
                scale = row.unit / self.unit
                terms = np.floor(line[used] * scale).astype(np.int64)
                total = self._sum(used, terms) + int(np.floor(fixed * scale))
                self.model.add(total + self._beyond(row.column - 1, overhead_s) <= self.period)
            else:
                terms = np.rint(np.minimum(line[used], 2.0) * _LIMIT_UNITS).astype(np.int64)
                # As much room as the check leaves for rounding (costs.over).
                self.model.add(self._sum(used, terms) <= int((row.upper - fixed + 5e-7) * _LIMIT_UNITS))
        self.model.minimize(self.period)

    def _sum(self, columns: np.ndarray, values: np.ndarray) -> Any:
        return self.cp.LinearExpr.weighted_sum([self.columns[each] for each in columns], values.tolist())

    def _row(self, low: float, high: float, columns: Sequence[int], values: Sequence[float]) -> None:
        expression = self.cp.LinearExpr.weighted_sum([self.columns[each] for each in columns], [int(v) for v in values])
        most = len(columns) + 1
        self.model.add_linear_constraint(expression, round(max(low, -most)), round(min(high, most)))

    def _expression(self, given: Expression) -> Any:
        constant, terms = given
        return sum((int(value) * self.columns[column] for column, value in terms), int(constant))

    def _beyond(self, resource: int, overhead_s: np.ndarray) -> Any:
        """What components take of a resource beyond their blocks, rounded down."""
        problem, total = self.costs.problem, 0
        each = problem.resources[resource]
        for model, device in zip(*np.nonzero(each.models[:, None] * each.device * overhead_s), strict=True):
            taken_s = float(each.models[model] * each.device[device] * overhead_s[model, device])
            total = total + int(np.floor(taken_s / self.unit)) * self._components(int(model), int(device), taken_s)
        return total

    def _components(self, model: int, device: int, taken_s: float) -> Any:
        """At least how many components of a model are on a device."""
        nodes = np.flatnonzero(self.costs.problem.model == model).tolist()
        here = self.costs.label_device == device
        on = {node: self._expression(self.program.mask(node, here)) for node in nodes}
        count = self.model.new_int_var(0, len(nodes), "")
        if taken_s < _COUNTED * self.unit * _PERIOD_UNITS:
            for each in on.values():
                self.model.add(each <= count)
            return count
        values = self.costs.problem.values
        paths = {node: self.model.new_int_var(0, len(nodes), "") for node in nodes}
        for node in nodes:
            self.model.add(paths[node] >= on[node])
            self.model.add(count >= paths[node])
        made = values.producer[values.edge_value()]
        for source, reader in {(int(a), int(b)) for a, b in zip(made, values.readers, strict=True)}:
            if source != SOURCE and reader in paths:
                self.model.add(paths[reader] >= paths[source])
                self.model.add(paths[reader] >= paths[source] + on[reader] - on[source])
        return count

    def hint(self, start: Start) -> None:
        """Begin near a placement."""
        self.model.clear_hints()
        for labels, columns, label in zip(self.program.alive, self.program.x, start.labels, strict=True):
            for column, each in zip(columns, labels, strict=False):
                self.model.add_hint(self.columns[column], int(each == label))
        place = self.costs.ends(np.asarray(start.labels, dtype=np.intp)).place
        for (value, source, target, copy), column in self.program.copies.items():
            got = start.wires[value].get(target, Copies(0)) if place[value] == source else Copies(0)
            self.model.add_hint(self.columns[column], int(bool(got & copy)))

    def solve(self, *, gap: float, time_limit_s: float) -> Found:
        """The placement of least period found, and a bound on any; infeasible where none is within `high`."""
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = _WORKERS
        solver.parameters.max_time_in_seconds = max(0.01, time_limit_s)
        solver.parameters.relative_gap_limit = gap
        status = solver.solve(self.model)
        if status == self.cp.INFEASIBLE:
            return Found(None, (), np.inf, True)
        bound = float(solver.best_objective_bound) * self.unit
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return Found(None, (), bound, False)
        values = np.array([solver.value(each) for each in self.columns], dtype=float)
        labels, wires = self.program.read(values)
        return Found(labels, needed(self.costs, labels, wires), bound, False)


def needed(costs: Costs, labels: np.ndarray, wires: Sequence[Mapping[int, Copies]]) -> tuple[dict[int, Copies], ...]:
    """The copies without those that nobody reads: both are needed only where a device has readers of both kinds."""
    ends, start = costs.ends(labels), costs.problem.values.start
    result = []
    for value, copies in enumerate(wires):
        kept = dict(copies)
        for device in [device for device, copy in copies.items() if copy == Copies.FLOAT | Copies.INT8]:
            edges = np.arange(start[value], start[value + 1])
            int8 = ends.int8[edges[ends.to[edges] == device]]
            if int8.all() or not int8.any():
                kept[device] = Copies.INT8 if int8.all() else Copies.FLOAT
        result.append(kept)
    return tuple(result)
