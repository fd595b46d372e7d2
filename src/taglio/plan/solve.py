"""From tables and limits to a plan: which precisions are allowed, what the error bound means in noise, and the answer.

Does not measure; see search.py for the loop that does.
"""

from collections.abc import Mapping, Sequence

from taglio.error.model import ErrorModel
from taglio.errors import BadOption
from taglio.model.graph import Graph, match
from taglio.plan.check import check
from taglio.plan.formulate import formulate
from taglio.plan.highs import solve
from taglio.plan.result import Interval, Limits, Plan, placements
from taglio.profile.fit import COVERAGE
from taglio.profile.result import Profile, predict
from taglio.quantize.effective import effective
from taglio.quantize.precision import FLOAT32, Assignment, Precision


def pinned(graph: Graph, max_error: float | None, keep_float: Sequence[str], force_int8: Sequence[str]) -> Limits:
    """Limits from name patterns. Raises BadOption for one that matches nothing or contradicts another."""
    names = match(graph, force_int8)
    computing = tuple(name for name in names if not graph.block(name).movement)
    limits = Limits(max_error, match(graph, keep_float), computing or names)
    _refuse_contradictions(graph, limits)
    return limits


def allowed_precisions(graph: Graph, profile: Profile, limits: Limits) -> dict[str, list[Precision]]:
    """The precisions each block may take. Raises BadOption for pins that contradict each other or the block."""
    _refuse_contradictions(graph, limits)
    allowed: dict[str, list[Precision]] = {}
    for block in graph.candidates():
        if block.movement:
            continue
        options = [precision for precision in profile.precisions if precision.fits(block)]
        if block.name in limits.float_blocks:
            options = [FLOAT32]
        elif block.name in limits.int8_blocks:
            options = [option for option in options if option.scheme is not None]
        allowed[block.name] = options
    return allowed


def _refuse_contradictions(graph: Graph, limits: Limits) -> None:
    both = set(limits.float_blocks) & set(limits.int8_blocks)
    if both:
        raise BadOption(f"block {min(both)} is held in float and in int8: drop one of the two pins")
    for name in limits.int8_blocks:
        block = graph.block(name)
        if block.refusal or block.movement:
            reason = block.refusal or "a movement operator follows its producer"
            raise BadOption(f"block {name} cannot be held in int8: {reason}")


def noise_limits(error: ErrorModel, bound: float, slack: float) -> dict[str, float]:
    """Largest noise sum per output for an error bound. `slack` multiplies the bound: 1 keeps the model's upper end
    under it, more trusts measurement over the model."""
    target = error.noise_target(bound) * slack
    return {output.output: output.noise_limit(target) for output in error.outputs}


def make_plan(
    graph: Graph,
    profile: Profile,
    error: ErrorModel | None,
    limits: Limits,
    *,
    slack: float = 1.0,
    time_limit_s: float = 60.0,
) -> Plan:
    """The fastest plan under `limits`, checked independently. Its status may be "infeasible" when pins force error."""
    bounds: Mapping[str, float] = {}
    if limits.max_error is not None and error is not None:
        bounds = noise_limits(error, limits.max_error, slack)
    allowed = allowed_precisions(graph, profile, limits)
    program = formulate(graph, profile, error, bounds, allowed)
    solution = solve(program, time_limit_s)
    chosen: dict[str, Precision] = {}
    by_name = {precision.name: precision for precision in profile.precisions}
    for name, value in zip(program.names, solution.values, strict=True):
        if name[0] == "block" and value > 0.5 and name[2] != FLOAT32.name:
            chosen[name[1]] = by_name[name[2]]
    plan = describe(graph, profile, error, limits, chosen, status=solution.status, gap=solution.gap)
    if solution.status != "infeasible":
        check(graph, profile, error, plan, objective_s=solution.objective / 1e3, noise_bounds=bounds)
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
    notes: Sequence[str] = (),
) -> Plan:
    """A plan from an assignment: what ONNX Runtime will make of it, with predictions and intervals."""
    whole = next(precision for precision in profile.precisions if precision.form == "whole")
    final = effective(graph, assignment, whole)
    guess = error.predict(graph, final) if error is not None else float("nan")
    upper = error.upper(guess) if error is not None else float("nan")
    return Plan(
        profile.model_sha256,
        profile.scheme,
        profile.precisions,
        limits,
        placements(graph, final),
        status,  # type: ignore[arg-type]
        gap,
        latency(profile, graph, final),
        Interval(0.0, guess, upper, error.confidence if error is not None else 0.0),
        None,
        tuple(notes),
    )


def latency(profile: Profile, graph: Graph, assignment: Assignment) -> Interval:
    """Predicted seconds of one inference."""
    seconds, width = predict(profile, graph, assignment).total_s, profile.interval_ratio
    return Interval(seconds / (1.0 + width), seconds, seconds * (1.0 + width), COVERAGE)
