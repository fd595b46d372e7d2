"""Plan for one machine from its tables and limits: solve, describe and check the problem of one place.

Measures nothing; flow/search.py is the loop that measures.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf, isclose

from taglio.cluster.devices import local
from taglio.error.model import ErrorModel
from taglio.errors import BadOption
from taglio.model.graph import Graph, match
from taglio.plan.assemble import assemble
from taglio.plan.check import PlanIsWrong, check
from taglio.plan.costs import evaluate
from taglio.plan.describe import describe as describe_placed
from taglio.plan.result import LOCAL, Interval, Limits, Plan, placements
from taglio.plan.solve import GAP, solve
from taglio.plan.workload import Objective, Workload
from taglio.profile.result import Profile, predict
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment, Precision

# A gap that most plans reach in tenths of a second, and the time limit for reaching it.
_FINE, _FINE_S = 1e-3, 2.0


def pinned(graph: Graph, max_error: float | None, keep_float: Sequence[str], force_int8: Sequence[str]) -> Limits:
    """Limits from name patterns. Raises BadOption for a pattern that matches nothing or contradicts another."""
    names = match(graph, force_int8)
    computing = tuple(name for name in names if not graph.block(name).movement)
    floats = match(graph, keep_float, lambda block: block.has_choice)
    limits = Limits(max_error, floats, computing or names)
    refuse_contradictions(graph, limits)
    return limits


def refuse_contradictions(graph: Graph, limits: Limits) -> None:
    """Raise BadOption for pins that contradict each other or that a block cannot keep."""
    both = set(limits.float_blocks) & set(limits.int8_blocks)
    if both:
        raise BadOption(f"block {min(both)} is pinned to both float and int8: remove one of the pins")
    for name in limits.int8_blocks:
        block = graph.block(name)
        if block.refusal or block.movement:
            reason = block.refusal or "a movement operator follows its producer"
            raise BadOption(f"block {name} cannot be pinned to int8: {reason}")


def noise_limits(error: ErrorModel, bound: float, slack: float) -> dict[str, float]:
    """Largest noise sum per output for an error bound. `slack` multiplies the bound: at 1 the upper end of the
    prediction stays within it, above 1 the search relies on measuring instead."""
    target = error.noise_target(bound) * slack
    return {output.output: output.noise_limit(target) for output in error.outputs}


def make_plan(
    graph: Graph,
    profile: Profile,
    error: ErrorModel | None,
    limits: Limits,
    *,
    slack: float = 1.0,
    gap: float = GAP,
    time_limit_s: float = 60.0,
) -> Plan:
    """The fastest plan for one machine under `limits`, proven within `gap` (or less if that is quick), checked
    independently. Its status is "infeasible" if pins force an error above the limit."""
    refuse_contradictions(graph, limits)
    bounds: Mapping[str, float] = {}
    if limits.max_error is not None and error is not None:
        bounds = noise_limits(error, limits.max_error, slack)
    cluster, told = local(LOCAL), partial(describe, graph, profile, error, limits)
    work = Workload(graph.model_sha256, graph, {LOCAL: profile}, error, limits, None, bounds)
    assembled = assemble([work], cluster, Objective())
    placed = solve(assembled.problem, gap=min(gap, _FINE), time_limit_s=min(time_limit_s, _FINE_S))
    if placed.status == "time limit" and placed.gap > gap:
        placed = solve(assembled.problem, gap=gap, time_limit_s=time_limit_s, incumbent=placed.labels or None)
    if not placed.labels:
        return told({}, status="infeasible", gap=inf)
    (whole,) = describe_placed(assembled, evaluate(assembled.problem, placed.labels, placed.copies))
    check(graph, {LOCAL: profile}, error, cluster, whole, max_noise=bounds)
    plan = told(whole.assignment(), status="optimal" if placed.gap <= gap else "time limit", gap=placed.gap)
    if not isclose(plan.predicted_latency_s.value, whole.predicted_latency_s.value, rel_tol=1e-6, abs_tol=1e-9):
        raise PlanIsWrong(
            f"the plan takes {whole.predicted_latency_s.value * 1e3:.4f} ms by the planner's tables, "
            f"{plan.predicted_latency_s.value * 1e3:.4f} ms by the profile"
        )
    return plan


def describe(
    graph: Graph,
    profile: Profile,
    error: ErrorModel | None,
    limits: Limits,
    assignment: Mapping[str, Precision],
    *,
    status: str = "optimal",
    gap: float = 0.0,
) -> Plan:
    """A plan from an assignment, as ONNX Runtime will run it, with predictions and intervals."""
    whole = next(precision for precision in profile.precisions if precision.form == "whole")
    final = effective(graph, assignment, whole)
    guess = error.predict(graph, final) if error is not None else float("nan")
    upper = error.upper(guess) if error is not None else float("nan")
    return Plan(
        model_sha256=profile.model_sha256,
        scheme=profile.scheme,
        precisions=profile.precisions,
        limits=limits,
        placements=placements(graph, final),
        status=status,  # type: ignore[arg-type]
        gap=gap,
        predicted_latency_s=latency(profile, graph, final),
        predicted_error=Interval(0.0, guess, upper, error.confidence if error is not None else 0.0),
        runtime=profile.conditions.runtime,
    )


def latency(profile: Profile, graph: Graph, assignment: Assignment) -> Interval:
    """Predicted seconds of one inference."""
    return Interval.around(predict(profile, graph, assignment).total_s, profile.interval_ratio)
