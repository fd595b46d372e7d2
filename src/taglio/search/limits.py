"""Convert what the user limits to the limits of a plan: names of blocks, and losses for values in a metric's unit.
Plans nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from taglio.arguments import number, patterns
from taglio.error.loss import ARGUMENTS, RELATIVE_L2, Argument, Bound, parse_metric
from taglio.error.measure import anchored
from taglio.errors import BadOption, Infeasible, plural
from taglio.lab.work import Work
from taglio.plan.one_machine import pinned
from taglio.plan.result import Limits

# One limit on the metric, or limits by metric name.
Bounds = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class UserLimit:
    """A limit as the user gives it, in the unit of its argument. An empty `metric` stands for that of the set-up."""

    argument: Argument
    metric: str
    value: float


def user_limits(
    max_error: Bounds | None = None,
    min_score: Bounds | None = None,
    max_drop: Bounds | None = None,
    *,
    required: bool = True,
) -> tuple[UserLimit, ...]:
    """The given limits; the first one steers the plan. Raises BadOption for a value that is not a number, and for no
    limit where one is `required`.

    `max_error` limits errors, `min_score` is the least score, and `max_drop` how much worse than float a score may be.
    """
    limits: list[UserLimit] = []
    for argument, bounds in zip(ARGUMENTS, (max_error, min_score, max_drop), strict=True):
        if bounds is not None:
            by_metric = bounds if isinstance(bounds, Mapping) else {"": bounds}
            limits += [UserLimit(argument, name, number(argument, value)) for name, value in by_metric.items()]
    if required and not limits:
        raise BadOption(
            "`max_error` is missing: give the largest error allowed, such as 0.01 for 1 %, or for a task `max_drop` or "
            "`min_score`"
        )
    return tuple(limits)


def steered(limits: tuple[UserLimit, ...], settings: dict[str, Any]) -> tuple[tuple[UserLimit, ...], dict[str, Any]]:
    """The limits, and the `settings` with the metric that steers the plan. If `settings` names no metric, that of the
    first limit steers, and a limit without a name is on relative L2. Raises BadOption for an argument that does not
    suit its metric, before a model is opened."""
    default = settings.get("metric")
    if limits and not default:
        limits = tuple(replace(limit, metric=limit.metric or RELATIVE_L2) for limit in limits)
        settings = {**settings, "metric": limits[0].metric}
    for limit in limits:
        if name := limit.metric or (default if isinstance(default, str) else ""):  # else the set-up refuses it
            parse_metric(name).suits(limit.argument, limit.value)
    return limits, settings


def limits_for(
    work: Work, wanted: Sequence[UserLimit], keep_float: Sequence[str] = (), force_int8: Sequence[str] = ()
) -> Limits:
    """Limits, as losses, from name patterns and from what the user `wanted`.

    Raises BadOption for a limit that even the float model breaks, or whose argument does not suit its metric; BadData
    if a task does not fit the outputs or labels, or tells no model from another, or a user's function fails on the
    float model.
    """
    names = (patterns("keep_float", keep_float), patterns("force_int8", force_int8))
    limits = pinned(work.graph, *names)
    return _losses(work, wanted, limits) if wanted else limits


def _losses(work: Work, wanted: Sequence[UserLimit], limits: Limits) -> Limits:
    """`limits` with those that were `wanted`, converted from the metrics' units to losses. The set-up's metric, which
    steers the plan, must be limited."""
    metric = work.metric
    metrics = [work.limited(limit.metric) if limit.metric else metric for limit in wanted]
    names, argument = [metric.name for metric in metrics], wanted[0].argument
    if len(set(names)) < len(names):
        raise BadOption(f"`{argument}` limits a metric twice: {', '.join(names)}: give one limit each")
    if metric.name not in names:
        raise BadOption(
            f"`{argument}` limits {', '.join(names)}, but not {metric.name}, which steers the search: limit it too"
        )
    pairs = [*zip(wanted, metrics, strict=True)]
    for limit, limited in pairs:
        limited.suits(limit.argument, limit.value)
    own = wanted[names.index(metric.name)]
    others = [(limit, other) for limit, other in pairs if limit is not own]
    measure = work.measure(metric, [Bound(other, limit.value) for limit, other in others])
    measure = anchored(measure, work.float_answers, every=True)
    for limited in (measure.metric, *(bound.metric for bound, _ in measure.others)):
        if limited.worst_input and not limited.by_input:
            scored = " scored against labels" if limited.labelled else ""
            raise BadOption(
                f"`limit_on` worst-input: {limited.name}{scored} has no value for one input: limit the pool, or "
                "another metric, such as relative-l2"
            )
    also = tuple(
        Bound(bound.metric, bound.metric.bound(limit.argument, limit.value))
        for (limit, _), (bound, _) in zip(others, measure.others, strict=True)
    )
    return replace(limits, max_error=measure.metric.bound(own.argument, own.value), metric=measure.metric, also=also)


def infeasible(limits: Limits, reached: float, lost: str = "", remark: str = "") -> Infeasible:
    """The error that says that no plan keeps `limits`. `reached` is the smallest error of the plans that were tried; it
    is infinite if each of them loses an output, and `lost` says what one of them does to it. `remark` says by how much
    float itself is off."""
    pins = f"with {plural(len(limits.int8_blocks), 'block')} forced to int8 " if limits.int8_blocks else ""
    why = f"; {remark}" if remark else ""
    assert limits.max_error is not None
    metric = limits.metric
    if reached == inf and lost:
        return Infeasible(
            f"no plan {pins}keeps the outputs: {lost}, which no limit allows: force fewer blocks to int8{why}"
        )
    if limits.also:
        bounds = [Bound(metric, limits.max_error), *limits.also]
        all_limits = ", ".join(f"{bound.metric.title} {bound.metric.limit(bound.max_error)}" for bound in bounds)
        return Infeasible(
            f"no plan {pins}keeps {all_limits}: the best exceeds a limit by a factor of "
            f"{bounds[0].share(reached):.2f}: loosen the limits, `{metric.argument}` first, or force fewer blocks to "
            f"int8{why}"
        )
    allow = f"allow that much with `{metric.argument}`, or force fewer blocks to int8"
    return Infeasible(
        f"no plan {pins}keeps the {metric.title} {metric.limit(limits.max_error)}: "
        f"the best has {metric.text(reached)}: {allow}{why}"
    )
