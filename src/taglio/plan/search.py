"""Close the loop: solve, measure the plan's error, tighten or loosen the bound on noise, solve again. Times nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taglio.error.model import ErrorModel
from taglio.graph import Graph
from taglio.plan.result import Limits, Plan
from taglio.plan.solve import describe, latency, make_plan
from taglio.profile.result import Profile
from taglio.quantize.precision import FLOAT32, Assignment, Precision

# A plan may use this share of the bound before loosening is not worth another solve.
_CLOSE = 0.97
_STEP = 0.98


@dataclass(frozen=True, slots=True)
class Tried:
    """A plan and whether its measured error keeps the bound. `name` says where a plan that was not solved for comes
    from, such as float32; the solver's have none."""

    plan: Plan
    error: float
    holds: bool
    name: str = ""


def search(
    graph: Graph,
    profile: Profile,
    error: ErrorModel,
    limits: Limits,
    measure: Callable[[Assignment], float],
    *,
    rounds: int = 10,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Tried]:
    """Plans whose error was measured, in the order they were solved.

    Starts where the model's upper end meets the bound. A plan that breaks the bound is cut off: the noise it had is no
    longer allowed. One that leaves room has the bound on its predicted error raised in proportion. Between the loosest
    bound that held and the tightest that broke, halves.
    """
    bound = limits.max_error
    assert bound is not None, "an unbounded plan needs no search"

    def make(slack: float) -> Plan:
        return make_plan(graph, profile, error, limits, slack=slack)

    return search_by(make, lambda plan: measure(plan.assignment()), bound, rounds=rounds, progress=progress)


def search_by(
    make: Callable[[float], Plan | None],
    measure: Callable[[Plan], float],
    bound: float,
    *,
    rounds: int = 10,
    slack: float = 1.0,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Tried]:
    """The same for any way to make a plan for a slack on the bound (None: there is none), and to measure its error.
    `slack` is the first."""
    tried: list[Tried] = []
    seen: dict[str, float] = {}
    low, high = 0.0, float("inf")
    for index in range(rounds):
        plan = make(slack)
        if (
            plan is None or plan.status == "infeasible"
        ):  # blocks held in int8 are predicted to break the bound: only measuring tells
            low = max(low, slack)
            slack = 2.0 * slack if high == float("inf") else 0.5 * (low + high)
            continue
        key = plan.fingerprint()
        known = key in seen
        if not known:
            seen[key] = measure(plan)
            holds = seen[key] <= bound
            note = () if holds else (f"measured error {seen[key]:.4%} breaks the bound {bound:.4%}",)
            tried.append(Tried(replace(plan, measured_error=seen[key], notes=plan.notes + note), seen[key], holds))
        if progress:
            progress("search", index + 1, rounds)
        measured = seen[key]
        if measured <= bound:
            low = max(low, slack)
            if measured > _CLOSE * bound and not known:
                break
            following = slack * min(4.0, max(1.1, _STEP * bound / max(measured, 1e-12)))
            if known and high == float("inf") and low >= 64.0:
                break
        else:
            high = min(high, slack)
            following = slack * max(0.25, _STEP * bound / measured)
        if high < float("inf") and not low < following < high:
            following = 0.5 * (low + high)
        if high < float("inf") and high / max(low, 1e-9) < 1.01:
            break
        slack = following
    return tried


def unsolved(
    name: str, graph: Graph, profile: Profile, error: ErrorModel, limits: Limits, assignment: Assignment, value: float
) -> Tried:
    """An assignment that was not solved for, as a candidate; `value` is its measured error."""
    plan = describe(graph, profile, error, limits, assignment, status="measured")
    holds = limits.max_error is None or value <= limits.max_error
    return Tried(replace(plan, measured_error=value), value, holds, name)


def predicted_by(profile: Profile, graph: Graph, tried: Sequence[Tried]) -> list[Tried]:
    """The same plans with the latencies that `profile` predicts."""
    return [
        replace(each, plan=replace(each.plan, predicted_latency_s=latency(profile, graph, each.plan.assignment())))
        for each in tried
    ]


def damage_first(error: ErrorModel, everything: Assignment) -> list[str]:
    """The blocks of `everything` that were measured alone, those that hurt most first."""
    alone = {
        each.block: each.error for each in error.alone if everything.get(each.block, FLOAT32).name == each.precision
    }
    return sorted(alone, key=lambda name: -alone[name])


def exclude(
    order: Sequence[str], limits: Limits, everything: Assignment, measure: Callable[[Assignment], float]
) -> dict[str, Precision]:
    """`everything` but for the first blocks of `order`, as few of them as the bound needs.

    What tools do that exclude by a rule: by damage, as accuracy control does, or by FLOPs. It knows no times, so the
    solver's plans beat it where times differ between blocks; where they hardly do, it is a candidate that no error of
    the latency model can spoil. Bisection takes for granted that leaving out more hurts less.
    """
    assert limits.max_error is not None
    free = [name for name in order if name in everything and name not in limits.int8_blocks]

    def without(count: int) -> dict[str, Precision]:
        left_out = set(free[:count])
        return {name: precision for name, precision in everything.items() if name not in left_out}

    low, high = 0, len(free)
    while low < high:
        middle = (low + high) // 2
        if measure(without(middle)) <= limits.max_error:
            high = middle
        else:
            low = middle + 1
    return without(high)


def best(tried: Sequence[Tried], count: int) -> list[Tried]:
    """The `count` fastest by prediction among those that hold."""
    return sorted((each for each in tried if each.holds), key=lambda each: each.plan.predicted_latency_s.value)[:count]
