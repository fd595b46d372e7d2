"""The plan with the shortest period (busy seconds of the busiest device or link), and a lower bound on any plan's.

1. The program (formulate.py) whose objective is the largest busy time, relaxed to fractions, bounds the period of all
   plans with a period up to `aim`. Copies and labels that alone take longer than `aim` are left out, so a lower aim
   gives a higher bound. Of the components' overhead, that of one component of each model counts.
2. An evolutionary search (evolution.py) starts from labels near the fractions.
3. Lower aims, by bisection between the bound and the period found, raise the bound.

Plans are compared by their busy time with all overhead of their components.
"""

import time
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt

import numpy as np

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.costs import Costs, evaluate
from taglio.cluster.planning.describe import period_s
from taglio.cluster.planning.evolution import evolve
from taglio.cluster.planning.formulate import Formulation
from taglio.cluster.planning.path_search import PeriodSearch
from taglio.cluster.planning.problem import Totals
from taglio.cluster.planning.resources import busy_times, request_shares
from taglio.cluster.planning.solve import SHARES, Undecided, near, solve
from taglio.plan.highs import Quiet

# Shares of the time: for a first plan that keeps the limits, for the bound before the search, and for it afterwards.
_FIRST, _BOUND, _RAISING = 0.1, 0.4, 0.2


def fastest_stream(assembled: Assembled, gap: float, time_limit_s: float) -> tuple[Totals, float, float] | None:
    """A placement, its period (`period_s`) and a lower bound on any. None if no placement keeps the limits. Raises
    Undecided."""
    deadline, search = time.perf_counter() + time_limit_s, PeriodSearch(assembled)
    first_s = _FIRST * time_limit_s
    placed = solve(assembled.problem, gap=10 * gap, time_limit_s=first_s, patience_s=time_limit_s)
    if placed.status == "infeasible":
        return None
    if placed.labels:
        search.offer(search.costs.totals(placed.labels, placed.copies))
    if search.best is None:
        raise Undecided
    relaxation = _relaxed(assembled, search.value, time.perf_counter() + _BOUND * time_limit_s)
    low = min(relaxation.bound, 1.0) * search.value
    until, high = deadline - _RAISING * time_limit_s, inf
    plans = relaxation.plans(gap, until)
    for labels, copies in plans:
        search.offer(search.costs.totals(labels, copies))
    starts = [labels for labels, _ in plans]
    for _ in evolve(search, until, starts=starts, good_enough=low / (1.0 - gap)):
        if search.value < high:  # tensors have few sizes, so an aim just below a plan often proves it at once
            high = (1.0 - 0.9 * gap) * search.value
            low = max(low, min(_relaxed(assembled, high, deadline).bound, 1.0) * high)
        if low >= (1.0 - gap) * search.value:
            break
    high = (1.0 - 0.9 * gap) * search.value
    while 0.0 < low < 0.999 * high and time.perf_counter() < deadline:
        aim = sqrt(low * high)
        raised = min(_relaxed(assembled, aim, deadline).bound, 1.0) * aim
        low, high = max(low, raised), high if raised == aim else aim
    best = evaluate(assembled.problem, search.best.labels, search.best.copies)
    period = period_s(assembled, best)
    return best, period, min(low, period)


@dataclass(frozen=True, slots=True, eq=False)
class _Relaxation:
    """The problem restricted to periods up to an aim, relaxed to fractions: a bound as a share of the aim, and the
    program with its solution, None if it has none."""

    bound: float
    formulation: Formulation | None = None
    highs: Quiet | None = None

    def plans(self, gap: float, deadline: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """Labels and copies near the solution."""
        if self.formulation is None or self.highs is None:
            return []
        found = (near(self.formulation, self.highs, share, gap, deadline) for share in SHARES)
        return [self.formulation.plan(solution.values) for solution in found if solution.values is not None]


def _relaxed(assembled: Assembled, aim: float, deadline: float) -> _Relaxation:
    """The problem restricted to periods up to an aim; above 1 its bound shows that there are none."""
    problem = assembled.problem
    unweighted = tuple(replace(resource, weight=0.0) for resource in problem.resources)
    periods_of = busy_times(assembled.workloads, assembled.cluster, request_shares(assembled.workloads), aim, "period")
    costs = Costs(replace(problem, resources=(*unweighted, *periods_of), constant=0.0))
    first = 1 + len(unweighted)
    periods = np.array([first <= row.column < first + len(periods_of) for row in costs.rows])
    # The overhead of a device's component is spread over the model's nodes: all of it counts if all nodes are there.
    spread_s = assembled.overhead_s[problem.model] / np.bincount(problem.model)[problem.model][:, None]
    for index in np.flatnonzero(periods).tolist():
        resource, unit = costs.problem.resources[costs.rows[index].column - 1], costs.rows[index].unit
        overhead = spread_s * resource.models[problem.model][:, None] * resource.device / unit
        costs.limited.unary[..., 1 + index] += np.repeat(overhead, costs.forms, axis=1)
    if not costs.possible().any(axis=1).all():
        return _Relaxation(inf)
    formulation = Formulation(costs, largest=periods)
    highs, bound, _ = formulation.relaxed(deadline)
    return _Relaxation(bound, formulation, highs) if isfinite(bound) else _Relaxation(max(0.0, bound))
