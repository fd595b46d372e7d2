"""Search plans by measured error: solve, measure, tighten or loosen the noise bound, solve again. Times nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import median
from typing import Protocol, TypeVar

from taglio.error.model import ErrorModel
from taglio.model.graph import Graph
from taglio.plan.one_machine import describe, latency, make_plan
from taglio.plan.result import Interval, Limits, Plan
from taglio.profile.result import Profile
from taglio.progress import Progress, reported
from taglio.quantize.precision import Assignment

# Share of the bound beyond which loosening is not worth another solve; safety factor of a new slack.
_CLOSE = 0.97
_STEP = 0.98
# A slack so large that a plan unchanged by it is not restricted by the bound.
_FAR = 64.0
# Seconds for a solve at effort 1, and the least. Tables measured on a busy machine can take minutes to prove.
_SOLVE_S, _LEAST_S = 3.0, 0.5
# Plans with an error within this factor of the bound correct the error model, if there are at least this many.
_NEAR, _FEWEST = 3.0, 3


@dataclass(frozen=True, slots=True)
class Tried:
    """A plan and whether its measured error keeps the bound. `name` is the origin of a plan not from the solver, such
    as float32, otherwise "". `refused` says why it does not run in its place; `built` whether its error was measured as
    built for its place, or in float32 arithmetic. `loss` is the error by itself, even if a part is lost or a further
    limit broken; None if only `error` is known."""

    plan: Plan
    error: float
    holds: bool
    name: str = ""
    refused: str = ""
    built: bool = False
    loss: float | None = None

    @property
    def assignment(self) -> Assignment:
        """The form of every block that is not float."""
        return self.plan.assignment()

    @property
    def predicted_s(self) -> float:
        """The predicted seconds of a run."""
        return self.plan.predicted_latency_s.value

    @property
    def runtime(self) -> str:
        """The place of the plan."""
        return self.plan.runtime


def key_of(assignment: Assignment) -> tuple[tuple[str, str], ...]:
    """A key that is equal for equal assignments."""
    return tuple(sorted((block, precision.name) for block, precision in assignment.items()))


def keeps_pins(graph: Graph, limits: Limits, plan: Plan) -> bool:
    """Whether the blocks that are pinned to float stay so: ONNX Runtime runs a weightless one between int8 blocks in
    int8."""
    return plan.assignment().keys().isdisjoint(name for name in limits.float_blocks if not graph.block(name).movement)


def search(
    graph: Graph,
    profile: Profile,
    error: ErrorModel,
    limits: Limits,
    measure: Callable[[Assignment], float],
    *,
    rounds: int = 10,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> list[Tried]:
    """Plans with measured errors, in the order they were solved; `effort` scales the time limit of each.

    Starts with the upper end of the predicted error at the bound. A plan that breaks the bound lowers the allowed noise
    below its own; one that leaves room raises it in proportion. Bisects between the loosest bound that held and the
    tightest that broke.
    """
    bound = limits.max_error
    assert bound is not None, "an unbounded plan needs no search"

    limit_s = solve_s(effort)

    def make(slacks: Sequence[float]) -> Plan | None:
        plan = make_plan(graph, profile, error, limits, slack=slacks[0], time_limit_s=limit_s)
        return None if plan.status == "infeasible" else plan

    solved = search_by(make, lambda plan: [measure(plan.assignment())], [bound], rounds=rounds, progress=progress)
    return [_tried(plan, errors[0], bound) for plan, errors in solved]


def solve_s(effort: float) -> float:
    """The time limit of a solve, in seconds."""
    return max(_LEAST_S, effort * _SOLVE_S)


def _tried(plan: Plan, error: float, bound: float) -> Tried:
    holds = error <= bound
    note = () if holds else (f"measured error {error:.4%} breaks the bound {bound:.4%}",)
    return Tried(replace(plan, measured_error=error, notes=plan.notes + note), error, holds)


class Solved(Protocol):
    """A solver's result: two with the same fingerprint are the same."""

    def fingerprint(self) -> str:
        """A string that identifies it."""


_Solved = TypeVar("_Solved", bound=Solved)


@dataclass(slots=True)
class _Slack:
    """The factor on one bound on the predicted error: the next to try, the loosest that held, the tightest that
    broke."""

    value: float
    low: float = 0.0
    high: float = inf

    def loosen(self) -> None:
        """Loosen after no plan was found: blocks pinned to int8 are predicted to break the bound, which only measuring
        can decide."""
        self.low = max(self.low, self.value)
        self.value = 2.0 * self.value if self.high == inf else 0.5 * (self.low + self.high)

    def follow(self, measured: float, bound: float, *, known: bool) -> bool:
        """Set the next value after a plan with this error (`known`: seen before); False if it stays the same."""
        if measured <= bound:
            self.low = max(self.low, self.value)
            following = self.value * min(4.0, max(1.1, _STEP * bound / max(measured, 1e-12)))
            if bound == inf or (known and self.high == inf and self.low >= _FAR):
                return False
            if known:  # a little more room changed nothing: try the most
                following = max(following, _FAR)
        else:
            self.high = min(self.high, self.value)
            following = self.value * max(0.25, _STEP * bound / measured)
            if self.low >= self.high:  # it held earlier, but no longer with the other models' current plans
                self.low = 0.0
        if self.high < inf and not self.low < following < self.high:
            following = 0.5 * (self.low + self.high)
        if self.high < inf and self.high / max(self.low, 1e-9) < 1.01:
            self.value = self.low
            return False
        self.value = following
        return True


def search_by(
    make: Callable[[Sequence[float]], _Solved | None],
    measure: Callable[[_Solved], Sequence[float]],
    bounds: Sequence[float],
    *,
    rounds: int = 10,
    slacks: Sequence[float] | None = None,
    progress: Progress | None = None,
) -> list[tuple[_Solved, Sequence[float]]]:
    """Every plan made with its errors: the search for several bounds. `make` plans for a slack per bound (None: no
    plan), `measure` returns an error per bound. An infinite bound is no bound. `slacks` are the starting values."""
    found: list[tuple[_Solved, Sequence[float]]] = []
    seen: dict[str, Sequence[float]] = {}
    now = [_Slack(value) for value in (slacks or [1.0] * len(bounds))]
    for _ in reported(range(rounds), "search", progress):
        made = make([slack.value for slack in now])
        if made is None:
            for slack in now:
                slack.loosen()
            continue
        key = made.fingerprint()
        known = key in seen
        if not known:
            seen[key] = measure(made)
            found.append((made, seen[key]))
        held = [_CLOSE * bound < error <= bound or bound == inf for error, bound in zip(seen[key], bounds, strict=True)]
        if all(held) and not known:
            break
        goes_on = [
            slack.follow(error, bound, known=known) for slack, error, bound in zip(now, seen[key], bounds, strict=True)
        ]
        if not any(goes_on):
            break
    return found


def unsolved(
    name: str,
    graph: Graph,
    profile: Profile,
    error: ErrorModel,
    limits: Limits,
    assignment: Assignment,
    errors: tuple[float, float],
) -> Tried:
    """An assignment that is not from the solver, as a candidate; `errors` are its measured ones (ErrorMeter.errors)."""
    plan = describe(graph, profile, error, limits, assignment, status="measured")
    value, loss = errors
    holds = limits.max_error is None or value <= limits.max_error
    return Tried(replace(plan, measured_error=value), value, holds, name, loss=loss)


def predicted_by(profile: Profile, error: ErrorModel, graph: Graph, tried: Sequence[Tried]) -> list[Tried]:
    """The same plans with latencies predicted by `profile`, and as predicted errors those measured in the search: what
    is expected of the deployed file, on more inputs. `error` predicts where no such figure is known: a plan of the
    solver's lost an output's information, or has further limits."""

    def again(each: Tried) -> Plan:
        assignment, loss = each.assignment, each.loss
        if loss is None and isfinite(each.error) and not each.plan.limits.also:
            loss = each.error
        guess = error.predict(graph, assignment) if loss is None else loss
        interval = Interval(0.0, guess, error.upper(guess), error.confidence)
        return replace(each.plan, predicted_latency_s=latency(profile, graph, assignment), predicted_error=interval)

    return [replace(each, plan=again(each)) for each in tried]


def corrected(error: ErrorModel, graph: Graph, tried: Sequence[Tried], bound: float) -> ErrorModel:
    """`error` scaled by the median ratio of measured to predicted error over different plans near the bound.

    A study uses few inputs, and plans are measured on more: if a network's error varies between inputs, all predictions
    are off by one factor. Metrics that change in steps are not scaled.
    """
    near = {tuple(plan.assignment): plan for plan in tried if bound / _NEAR < plan.error < bound * _NEAR}
    guesses = {key: error.predict(graph, plan.assignment) for key, plan in near.items()}
    ratios = [near[key].error / guess for key, guess in guesses.items() if guess > 0.0]
    return error.scaled(median(ratios)) if error.metric.smooth and len(ratios) >= _FEWEST else error


def best(tried: Sequence[Tried], count: int) -> list[Tried]:
    """The `count` fastest by prediction among the plans that keep the bound."""
    return sorted((plan for plan in tried if plan.holds), key=lambda plan: plan.predicted_s)[:count]
