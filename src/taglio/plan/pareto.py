"""Fronts of two aims: latency against error, energy or throughput. Every point is a whole plan; measures nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from taglio.errors import Infeasible
from taglio.plan.objective import Objective, parse_objective
from taglio.plan.place import Answer
from taglio.plan.result import Plan
from taglio.plan.workload import Workload

Axis = Literal["error", "energy", "throughput"]
AXES: tuple[Axis, ...] = ("error", "energy", "throughput")


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A plan no other beats in both: seconds of a request, and the other aim's predicted error, joules or requests a
    second. `bound` is the limit under which it was planned."""

    latency_s: float
    other: float
    bound: float
    gap: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class Front:
    """Points by latency; `tried` counts the plans made, `infeasible` the limits under which there was none."""

    axis: Axis
    points: tuple[FrontPoint, ...]
    tried: int
    infeasible: int


# Plan one workload by an objective.
Planner = Callable[[Workload, Objective], Answer]
_LATENCY = parse_objective("latency")


def front(
    workload: Workload,
    axis: Axis,
    plan: Planner,
    with_error: Callable[[Workload, float], Workload],
    *,
    points: int = 8,
    progress: Callable[[str, int, int], None] | None = None,
) -> Front:
    """The front of one model. `with_error` gives the workload another error bound.

    The ends are the best by each aim alone; between them the other aim is bounded at even steps and latency bettered.
    """
    found: list[FrontPoint] = []
    missing = 0
    limits = _limits(workload, axis, plan, points, found)
    for index, limit in enumerate(limits):
        try:
            answer = plan(_bounded(workload, axis, limit, with_error), _LATENCY)
            found.append(_point(axis, answer, limit))
        except Infeasible:
            missing += 1
        if progress:
            progress("front", index + 1, len(limits))
    return Front(axis, _undominated(axis, found), len(found), missing)


def _limits(workload: Workload, axis: Axis, plan: Planner, points: int, found: list[FrontPoint]) -> list[float]:
    """Where the other aim is bounded; the plans at the ends are put into `found`."""
    if axis == "error":
        bound = workload.limits.max_error or 0.01
        return [bound * 2.0 ** (step - points + 2) for step in range(points)]
    best = plan(workload, parse_objective("energy" if axis == "energy" else "throughput"))
    quick = plan(workload, _LATENCY)
    found += [_point(axis, answer, _value(axis, answer.plans[0])) for answer in (best, quick)]
    low, high = sorted((_value(axis, best.plans[0]), _value(axis, quick.plans[0])))
    if low <= 0.0 or high / low < 1.0 + 1e-6:
        return []
    return [low * (high / low) ** (step / (points - 1)) for step in range(1, points - 1)]


def _bounded(
    workload: Workload, axis: Axis, limit: float, with_error: Callable[[Workload, float], Workload]
) -> Workload:
    if axis == "error":
        return with_error(workload, limit)
    if axis == "energy":
        return replace(workload, limits=replace(workload.limits, max_energy_joules=limit))
    return replace(workload, limits=replace(workload.limits, min_rate_per_s=limit))


def _point(axis: Axis, answer: Answer, limit: float) -> FrontPoint:
    plan = answer.plans[0]
    return FrontPoint(plan.predicted_latency_s.value, _value(axis, plan), limit, answer.gap, plan)


def _value(axis: Axis, plan: Plan) -> float:
    if axis == "error":
        return plan.predicted_error.value
    interval = plan.predicted_joules if axis == "energy" else plan.predicted_rate_per_s
    return interval.value if interval is not None else 0.0


def _undominated(axis: Axis, points: Sequence[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Those that no other beats in both aims, by latency."""
    sign = -1.0 if axis == "throughput" else 1.0
    kept: list[FrontPoint] = []
    for point in sorted(points, key=lambda each: (each.latency_s, sign * each.other)):
        if not kept or sign * point.other < sign * kept[-1].other - 1e-12 * abs(point.other):
            kept.append(point)
    return tuple(kept)
