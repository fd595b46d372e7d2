"""Pareto fronts of latency against error, energy or throughput. Every point is a full plan per model. Measures nothing.

For several models, latency and joules are means over their mix of requests, and throughput is requests per second of
the mix. A bound on energy is the same factor on each model's least energy, a bound on error the same factor on each
model's error bound; the error of a point is the first model's bound times the largest share that any model uses of its
own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from taglio.cluster.planning.describe import period_s
from taglio.cluster.planning.place import Answer
from taglio.cluster.planning.resources import request_shares
from taglio.cluster.planning.workload import Objective, Workload, parse_objective
from taglio.errors import Infeasible
from taglio.plan.one_machine import noise_limits
from taglio.plan.result import Plan
from taglio.progress import Progress, reported

Axis = Literal["error", "energy", "throughput"]
AXES: tuple[Axis, ...] = ("error", "energy", "throughput")


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A plan that no other beats in both aims: seconds per request, and predicted error, joules or requests per second.
    `bound` is the limit under which it was planned. `others` are the plans of all models after the first."""

    latency_s: float
    other: float
    bound: float
    gap: float
    plan: Plan
    others: tuple[Plan, ...] = ()


@dataclass(frozen=True, slots=True)
class Front:
    """Points sorted by latency; `tried` counts the plans made, `infeasible` the limits that no plan kept."""

    axis: Axis
    points: tuple[FrontPoint, ...]
    tried: int
    infeasible: int


# Plans workloads for an objective.
Planner = Callable[[Sequence[Workload], Objective], Answer]
_LATENCY = parse_objective("latency")
# The error bound if none is given.
_ERROR = 0.01


def front(
    workloads: Sequence[Workload], axis: Axis, plan: Planner, *, points: int = 8, progress: Progress | None = None
) -> Front:
    """The front of one model, or of several on the same devices.

    The end points are the best plans by each single aim; between them the other aim is bounded at even steps and
    latency is minimised.
    """
    ends = [] if axis == "error" else _ends(workloads, axis, plan)
    planned, infeasible = [*ends], 0
    for limit, works in reported(_limited(workloads, axis, ends, points), "front", progress):
        try:
            planned.append(_point(axis, workloads, plan(works, _LATENCY), limit))
        except Infeasible:
            infeasible += 1
    return Front(axis, _undominated(axis, planned), len(planned), infeasible)


def _ends(works: Sequence[Workload], axis: Axis, plan: Planner) -> list[FrontPoint]:
    """The best plan by the other aim, and the best by latency."""
    best = plan(works, parse_objective("energy" if axis == "energy" else "throughput"))
    quick = plan(works, _LATENCY)
    return [_point(axis, works, answer, _value(axis, works, answer)) for answer in (best, quick)]


def _limited(
    works: Sequence[Workload], axis: Axis, ends: Sequence[FrontPoint], points: int
) -> list[tuple[float, list[Workload]]]:
    """Limits on the other aim between the `ends`, each with the workloads under it."""
    if axis == "error":
        return [
            (factor * _error(works[0]), [with_error(work, factor * _error(work)) for work in works])
            for factor in (2.0 ** (step - points + 2) for step in range(points))
        ]
    low, high = sorted(end.bound for end in ends)
    if low <= 0.0 or high / low < 1.0 + 1e-6:
        return []
    limits = [low * (high / low) ** (step / (points - 1)) for step in range(1, points - 1)]

    def under(limit: float) -> list[Workload]:
        if axis == "energy":
            best = ends[0]
            least = zip(works, map(_joules, (best.plan, *best.others)), strict=True)
            return [work.with_limits(max_energy_joules=own * limit / best.bound) for work, own in least]
        if len(works) == 1:
            return [works[0].with_limits(min_rate_per_s=limit)]
        rates = [limit * float(share) for share in request_shares(works)]
        return [
            replace(work, rate_per_s=max(work.rate_per_s or 0.0, rate)) for work, rate in zip(works, rates, strict=True)
        ]

    return [(limit, under(limit)) for limit in limits]


def with_error(workload: Workload, max_error: float | None) -> Workload:
    """A workload with another error limit, which the upper end of its predicted error keeps."""
    if max_error is None:
        return workload
    assert workload.error is not None, "a model is placed with its error model"
    bounds = noise_limits(workload.error, max_error, 1.0)
    return replace(workload, noise_limits=bounds).with_limits(max_error=max_error)


def _error(work: Workload) -> float:
    return work.limits.max_error or _ERROR


def _joules(plan: Plan) -> float:
    return 0.0 if plan.predicted_joules is None else plan.predicted_joules.value


def _point(axis: Axis, works: Sequence[Workload], answer: Answer, limit: float) -> FrontPoint:
    shares = request_shares(works)
    latency_s = sum(s * plan.predicted_latency_s.value for s, plan in zip(shares, answer.plans, strict=True))
    first, *others = answer.plans
    return FrontPoint(float(latency_s), _value(axis, works, answer), limit, answer.gap, first, tuple(others))


def _value(axis: Axis, works: Sequence[Workload], answer: Answer) -> float:
    plans = answer.plans
    if axis == "error":
        used = [plan.predicted_error.value / _error(work) for plan, work in zip(plans, works, strict=True)]
        return _error(works[0]) * max(used)
    if axis == "energy":
        return float(request_shares(works) @ np.array([*map(_joules, plans)]))
    busiest = period_s(answer.assembled, answer.totals)
    return 1.0 / busiest if busiest > 0.0 else 0.0


def _undominated(axis: Axis, points: Sequence[FrontPoint]) -> tuple[FrontPoint, ...]:
    """The points that no other beats in both aims, sorted by latency."""
    sign = -1.0 if axis == "throughput" else 1.0
    kept: list[FrontPoint] = []
    for point in sorted(points, key=lambda point: (point.latency_s, sign * point.other)):
        if not kept or sign * point.other < sign * kept[-1].other - 1e-12 * abs(point.other):
            kept.append(point)
    return tuple(kept)
