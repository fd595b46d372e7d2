"""The limits of a plan, from what the user asks for: block names and values in a metric's unit. Plans nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from taglio.arguments import number, patterns
from taglio.error.judge import fewest_samples
from taglio.error.loss import Bound, parse_metric
from taglio.error.measure import anchored
from taglio.errors import BadData, BadOption, Infeasible, plural
from taglio.flow.work import Work
from taglio.plan.one_machine import pinned
from taglio.plan.result import Limits

# One limit on the metric, or limits by metric name.
Bounds = float | Mapping[str, float]


def steered(max_error: Bounds, settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` with a metric: the first limited one, if `settings` names none and no limit is without a metric's
    name."""
    if isinstance(max_error, Mapping) and max_error and "" not in max_error:
        return {"metric": next(iter(max_error)), **settings}
    return settings


def limits_for(
    work: Work, max_error: Bounds | None, keep_float: Sequence[str] = (), force_int8: Sequence[str] = ()
) -> Limits:
    """Limits, as losses, from name patterns and from one limit in the metric's unit, or several by metric ("": the
    set-up's).

    Raises BadOption for a limit that even the float model breaks, BadData if a task does not fit the outputs or labels,
    or tells no model from another, or a user's function fails on the float model.
    """
    given = dict(max_error) if isinstance(max_error, Mapping) else {} if max_error is None else {"": max_error}
    bounds = {name: number("max_error", value) for name, value in given.items()}
    names = (patterns("keep_float", keep_float), patterns("force_int8", force_int8))
    also = tuple(Bound(parse_metric(name), value) for name, value in bounds.items() if name)
    return _losses(work, replace(pinned(work.graph, bounds.get(""), *names), also=also))


def _losses(work: Work, limits: Limits) -> Limits:
    """`limits` converted from the metrics' units to losses. If only named metrics are limited, the set-up's must be one
    of them."""
    metric = parse_metric(work.setup.metric)
    if limits.max_error is None:
        if not limits.also:
            return limits
        own = next((each for each in limits.also if each.metric.name == metric.name), None)
        if own is None:
            named = ", ".join(each.metric.name for each in limits.also)
            raise BadOption(f"`max_error` limits {named}, but not {metric.name}, which steers the search: limit it too")
        others = tuple(each for each in limits.also if each is not own)
        limits = replace(limits, max_error=own.max_error, also=others)
    names = [metric.name, *(each.metric.name for each in limits.also)]
    if len(set(names)) < len(names):
        raise BadOption(f"`max_error` limits a metric twice: {', '.join(names)}: give one limit each")
    held_out = work.data.held_out
    measure = work.measure(metric, limits.also)
    for each in (metric, *(bound.metric for bound in limits.also)):
        if len(held_out.samples) < fewest_samples(each):
            few = f"{len(held_out.samples)} held-out inputs are too few"
            raise BadData(f"metric {each.name}: {few}: it needs at least {fewest_samples(each)} samples, add more")
    measure = anchored(measure, work.float_answers, every=True)
    assert limits.max_error is not None, "the set-up's metric has a limit"
    also = tuple(Bound(each.metric, each.metric.bound(each.max_error)) for each, _ in measure.others)
    return replace(limits, max_error=measure.metric.bound(limits.max_error), metric=measure.metric, also=also)


def infeasible(limits: Limits, reached: float, lost: str = "") -> Infeasible:
    """The error if no plan holds; `reached` is the smallest error of those tried, infinite if each loses an output:
    `lost` says what one of them does."""
    pins = f"with {plural(len(limits.int8_blocks), 'block')} forced to int8 " if limits.int8_blocks else ""
    assert limits.max_error is not None
    metric = limits.metric
    if reached == inf and lost:
        return Infeasible(f"no plan {pins}keeps the outputs: {lost}, which no limit allows: force fewer blocks to int8")
    if limits.also:
        bounds = [Bound(metric, limits.max_error), *limits.also]
        told = ", ".join(f"{each.metric.title} {each.metric.limit(each.max_error)}" for each in bounds)
        return Infeasible(
            f"no plan {pins}keeps {told}: the best exceeds a limit by a factor of {bounds[0].share(reached):.2f}: "
            "raise the limits with `max_error`, or force fewer blocks to int8"
        )
    return Infeasible(
        f"no plan {pins}keeps the {metric.title} {metric.limit(limits.max_error)}: "
        f"the best has {metric.text(reached)}: allow that much with `max_error`, or force fewer blocks to int8"
    )
