"""The plan with the shortest period (busy seconds of the busiest device or link), and a lower bound on any plan's.

1. Priced, the busy seconds of all devices and links add up: with prices λ ≥ 0 a plan's period T is at least
   min (Σ λ load + min(0, (1 − Σ λ) · aim)) over all plans with a period up to `aim`. This is eliminated as in solve.py.
   Copies and labels that alone take longer than `aim` are left out, so a lower aim gives a higher bound. Of the
   components' overhead, that of one component of each model counts.
2. An evolutionary search (evolution.py) starts from the answers at prices near the best.
3. Lower aims, by bisection between the bound and the period found, raise the bound.

Plans are compared by their busy time with all overhead of their components.
"""

import time
from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.costs import Costs, evaluate
from taglio.cluster.planning.cutting_planes import Plane, maximise
from taglio.cluster.planning.describe import period_s
from taglio.cluster.planning.elimination import TooWide
from taglio.cluster.planning.evolution import evolve
from taglio.cluster.planning.path_search import PeriodSearch
from taglio.cluster.planning.problem import Totals
from taglio.cluster.planning.relaxation import Relaxation
from taglio.cluster.planning.resources import busy_times, request_shares
from taglio.cluster.planning.solve import Undecided, solve

# Shares of the time: for a first plan that keeps the limits, for the bound before the search, and for it afterwards.
_FIRST, _BOUND, _RAISING = 0.1, 0.15, 0.2
# Answers at prices near the best that the search starts from.
_ANSWERS = 16


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
    core = _core(assembled, search.value, gap, time.perf_counter() + _BOUND * time_limit_s)
    low = min(core.bound, 1.0) * search.value
    until, high = deadline - _RAISING * time_limit_s, inf
    for _ in evolve(search, until, starts=core.answers(), good_enough=low / (1.0 - gap)):
        if search.value < high:  # tensors have few sizes, so an aim just below a plan often proves it at once
            high = (1.0 - 0.9 * gap) * search.value
            low = max(low, min(_core(assembled, high, gap, deadline).bound, 1.0) * high)
        if low >= (1.0 - gap) * search.value:
            break
    high = (1.0 - 0.9 * gap) * search.value
    while low < 0.999 * high and time.perf_counter() < deadline:
        aim = sqrt(low * high)
        raised = min(_core(assembled, aim, gap, deadline).bound, 1.0) * aim
        low, high = max(low, raised), high if raised == aim else aim
    best = evaluate(assembled.problem, search.best.labels, search.best.copies)
    period = period_s(assembled, best)
    return best, period, min(low, period)


@dataclass(frozen=True, slots=True, eq=False)
class _Core:
    """The problem restricted to periods up to an aim: its costs and the bound as a share of the aim; also the best
    prices and their tables, unless the graph is too wide for them."""

    costs: Costs
    bound: float
    prices: np.ndarray | None = None
    relaxation: Relaxation | None = None

    def answers(self) -> list[np.ndarray]:
        """The best labels at some prices near the best."""
        if self.prices is None or self.relaxation is None:
            return []
        rng = np.random.default_rng(0)
        factors = rng.lognormal(0.0, 0.6, (_ANSWERS, len(self.prices)))
        return [self.relaxation.run(self.costs.price((self.prices + 0.01) * factor))[1] for factor in factors]


def _core(assembled: Assembled, aim: float, gap: float, deadline: float) -> _Core:
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
    busy = np.array([costs.limited.unary[..., 1 + row].any() for row in range(len(costs.rows))])
    alive = costs.possible()
    if not alive.any(axis=1).all():
        return _Core(costs, inf)
    try:
        relaxation = Relaxation(costs, alive)
    except TooWide:
        return _Core(costs, 0.0)

    def oracle(prices: np.ndarray) -> Plane:
        priced, paid = costs.price(prices), float(prices[periods].sum())
        least, labels = relaxation.run(priced)
        bound = least + paid + min(0.0, 1.0 - paid)
        # The period, 0 or 1 in shares of the aim, that is best at these prices.
        slope = costs.account(priced, labels).rows - np.where(periods, float(paid > 1.0), costs.uppers)
        return Plane(bound, bound - float(prices @ slope), slope)

    best = maximise(
        oracle,
        np.where(periods & busy, 1.0 / max(1, (periods & busy).sum()), 0.0),
        tolerance=0.1 * gap,
        calls=80,
        reach=0.5,
        stop=lambda bound: bound > 1.0 or time.perf_counter() > deadline,
    )
    return _Core(costs, best.bound, best.multipliers, relaxation)
