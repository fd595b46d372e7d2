"""A mixed-integer linear program, written as expressions, and its solution by HiGHS. Knows nothing of plans."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import highspy
import numpy as np

from taglio.plan.highs import Quiet

# The most by which HiGHS may violate a row, or miss an integer.
_TOLERANCE = 1e-7
# The largest cost of a column after scaling. Costs are scaled because the tolerances of HiGHS are absolute.
_LARGEST_COST = 1e3
# All columns are bounded, so "unbounded or infeasible" means infeasible.
INFEASIBLE = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)


@dataclass(frozen=True, slots=True)
class Linear:
    """`constant` + Σ factor · column; `terms` holds the factors by column number."""

    constant: float = 0.0
    terms: Mapping[int, float] = field(default_factory=dict)

    def __add__(self, other: "Linear") -> "Linear":
        return weighted([(1.0, self), (1.0, other)])

    def __sub__(self, other: "Linear") -> "Linear":
        return weighted([(1.0, self), (-1.0, other)])

    def at(self, values: np.ndarray) -> float:
        """The value of the expression where the columns have `values`, [columns]."""
        return self.constant + sum(factor * float(values[column]) for column, factor in self.terms.items())

    @property
    def is_zero(self) -> bool:
        """Whether the expression is 0 for all values of the columns."""
        return not self.terms and self.constant == 0.0


ZERO, ONE = Linear(), Linear(1.0)


def weighted(parts: Iterable[tuple[float, Linear]]) -> Linear:
    """Σ weight · expression."""
    constant, terms = 0.0, dict[int, float]()
    for weight, expression in parts:
        constant += weight * expression.constant
        for column, factor in expression.terms.items():
            terms[column] = terms.get(column, 0.0) + weight * factor
    return Linear(constant, {column: factor for column, factor in terms.items() if factor != 0.0})


def total(expressions: Iterable[Linear]) -> Linear:
    """The sum of expressions."""
    return weighted((1.0, expression) for expression in expressions)


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The best `values` of the columns, [columns], with their `objective`, and a lower `bound` on any objective.

    Without a solution `values` is None and the objective is infinite; if there is none, so is the bound.
    """

    status: Literal["optimal", "limit", "infeasible"]
    values: np.ndarray | None
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """(objective − bound) / |objective|, at least 0; infinite without a solution."""
        if self.values is None:
            return inf
        return max(0.0, (self.objective - self.bound) / max(1e-12, abs(self.objective)))


class Program:
    """Columns from 0 to 1 and rows over them, as they are added."""

    def __init__(self) -> None:
        self._integral: list[bool] = []
        self._lowers: list[float] = []
        self._uppers: list[float] = []
        self._rows: list[Mapping[int, float]] = []
        self._broken = False

    @property
    def columns(self) -> int:
        """The number of columns."""
        return len(self._integral)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def binary(self) -> Linear:
        """A new column that is 0 or 1."""
        return Linear(0.0, {self.column(integral=True): 1.0})

    def fraction(self) -> Linear:
        """A new column from 0 to 1."""
        return Linear(0.0, {self.column(integral=False): 1.0})

    def column(self, *, integral: bool) -> int:
        """The number of a new column from 0 to 1."""
        self._integral.append(integral)
        return self.columns - 1

    def product(self, left: Linear, right: Linear) -> Linear:
        """The product of two expressions, exact where both are 0 or 1 (McCormick)."""
        for factor, other in ((left, right), (right, left)):
            if not factor.terms:
                return weighted([(factor.constant, other)])
        both = self.fraction()
        self.at_most(both, left)
        self.at_most(both, right)
        self.at_most(left + right - ONE, both)
        return both

    def at_most(self, left: Linear, right: Linear) -> None:
        """Require left ≤ right."""
        self._row(left - right, -inf)

    def equal(self, left: Linear, right: Linear) -> None:
        """Require left = right."""
        self._row(left - right, 0.0)

    def limit(self, parts: Sequence[tuple[float, Linear]], most: float) -> None:
        """Require Σ weight · expression ≤ `most` for weights of at least 0 and expressions that are 0 or 1.

        Expressions that break the limit alone are set to 0, so that the row is a sum of shares of the limit."""
        alone = most * (1.0 + _TOLERANCE)
        for weight, expression in parts:
            if weight > alone:
                self.at_most(expression, ZERO)
        if most > 0.0:
            shares = ((weight / most, expression) for weight, expression in parts if weight <= alone)
            self.at_most(weighted(shares), ONE)

    def _row(self, row: Linear, lower: float) -> None:
        """Require lower ≤ row ≤ 0."""
        if not row.terms:
            self._broken |= not lower - _TOLERANCE <= row.constant <= _TOLERANCE
            return
        self.row(row.terms, lower - row.constant, -row.constant)

    def row(self, terms: Mapping[int, float], lower: float, upper: float) -> None:
        """Require `lower` ≤ Σ factor · column ≤ `upper`, by column number."""
        self._rows.append(terms)
        self._lowers.append(lower)
        self._uppers.append(upper)

    def minimise(
        self, cost: Linear, *, gap: float, nodes: int, time_limit_s: float, without: Sequence[int] | np.ndarray = ()
    ) -> Solution:
        """The columns with the least `cost`: within a relative `gap`, or the best after that many `nodes` of branch and
        bound or that many seconds. The columns `without` stay 0."""
        columns = self.columns
        if self._broken:
            return Solution("infeasible", None, inf, inf)
        if not columns:
            return Solution("optimal", np.zeros(0), cost.constant, cost.constant)
        highs, scale = self.highs(cost)
        bound_columns(highs, without, 0.0, 0.0)
        for option, value in (
            ("mip_rel_gap", gap),
            ("mip_max_nodes", nodes),
            ("time_limit", max(0.01, time_limit_s)),
            ("mip_feasibility_tolerance", _TOLERANCE),
        ):
            highs.setOptionValue(option, value)
        highs.run()
        status, info = highs.getModelStatus(), highs.getInfo()
        if status in INFEASIBLE:
            return Solution("infeasible", None, inf, inf)
        bound = info.mip_dual_bound / scale
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return Solution("limit", None, inf, bound)
        best = _with_best_fractions(highs)
        values = np.array(best.getSolution().col_value)
        objective = best.getInfo().objective_function_value / scale
        if status != highspy.HighsModelStatus.kOptimal:
            return Solution("limit", values, objective, bound)
        # If a program is solved before any bound is needed, HiGHS reports the bound 0.
        return Solution("optimal", values, objective, max(bound, objective - gap * abs(objective)))

    def highs(self, cost: Linear, *, relaxed: bool = False) -> tuple[Quiet, float]:
        """HiGHS with the program, its binary columns `relaxed` to fractions or not; and the scale of its costs."""
        largest = max((abs(factor) for factor in cost.terms.values()), default=0.0)
        scale = _LARGEST_COST / largest if largest > 0.0 else 1.0
        highs = Quiet()
        highs.passModel(self._model(cost, scale, relaxed))
        return highs, scale

    def _model(self, cost: Linear, scale: float, relaxed: bool) -> highspy.HighsModel:
        columns, rows = self.columns, len(self._rows)
        model = highspy.HighsModel()
        lp = model.lp_
        lp.num_col_, lp.num_row_ = columns, rows
        costs = np.zeros(columns)
        costs[list(cost.terms)] = list(cost.terms.values())
        lp.col_cost_, lp.offset_ = costs * scale, cost.constant * scale
        lp.col_lower_, lp.col_upper_ = np.zeros(columns), np.ones(columns)
        lp.row_lower_, lp.row_upper_ = np.array(self._lowers), np.array(self._uppers)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *map(len, self._rows)], dtype=np.int32)
        lp.a_matrix_.index_ = np.array([column for row in self._rows for column in row], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([factor for row in self._rows for factor in row.values()])
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [] if relaxed else [kinds[integral] for integral in self._integral]
        return model


def bound_columns(highs: Quiet, columns: Sequence[int] | np.ndarray, lower: float, upper: float) -> None:
    """Give columns of a program in `highs` these bounds."""
    if count := len(columns):
        highs.changeColsBounds(count, np.array(columns, np.int32), np.full(count, lower), np.full(count, upper))


def _with_best_fractions(highs: Quiet) -> Quiet:
    """The solution of `highs` with the best fractions for its integers: within its gap, HiGHS may leave worse ones."""
    best = Quiet()
    best.passModel(highs.getFixedLp()[1])
    best.run()
    return best if best.getModelStatus() == highspy.HighsModelStatus.kOptimal else highs
