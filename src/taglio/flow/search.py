"""Search plans by measured error: solve, measure, tighten or loosen the noise bound, solve again. Times nothing."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, inf, isfinite, sqrt

from taglio.error.correct import corrected
from taglio.error.measure import ErrorMeter, Evidence
from taglio.error.model import ErrorModel
from taglio.model.graph import Graph
from taglio.plan.one_machine import describe, latency, make_plan
from taglio.plan.result import Interval, Limits, Plan
from taglio.profile.result import Profile
from taglio.progress import Progress, reported
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment

# Share of the bound beyond which loosening is not worth another solve; safety factor of a new slack.
_CLOSE = 0.97
_STEP = 0.98
# The least and the most by which the aim is tightened after a plan that broke the bound.
_TIGHTER, _TIGHTEST = 0.94, 0.4
# Half of a plan that breaks the bound by more than this factor is measured too.
_FAR_OFF = 1.2
# A slack so large that a plan unchanged by it is not restricted by the bound.
_FAR = 64.0
# Seconds for a solve at effort 1, and the least. Tables measured on a busy machine can take minutes to prove.
_SOLVE_S, _LEAST_S = 3.0, 0.5


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


@dataclass(slots=True)
class _Aim:
    """The factor on the limit of predicted errors for the next plan, whose errors keep the `bound`. `exact` is the one
    at which the prediction itself is at the bound, not its upper end. A plan that is found again loosens it by at most
    a factor of `most`."""

    bound: float
    exact: float
    value: float = 1.0
    loose: float = 1.0
    most: float = 4.0

    def follow(self, error: float, *, is_new: bool) -> bool:
        """Set the next factor after a plan with this error; False if there is nothing left to find."""
        if is_new and _CLOSE * self.bound < error <= self.bound:
            return False
        share = self.bound / max(error, 1e-12)
        if error > self.bound:  # blocks that were never measured seem harmless: those in the plan are not alone
            self.loose = min(1.0, self.loose) * min(_TIGHTER, max(_TIGHTEST, share**0.5))
            self.most = self.most**0.5
        elif is_new:
            self.loose = max(self.loose, min(1.0, _STEP * share * self.loose))
        else:  # what the measured plans say of others is too pessimistic
            self.loose *= min(max(1.1, self.most), max(1.1, _STEP * share))
        self.value = _STEP * self.exact * self.loose
        return self.loose < _FAR


@dataclass(slots=True)
class _AimInSteps:
    """The same for a metric that moves in steps: bisects between the largest noise that held and the least that
    broke. `noise` is that of the limit as the study saw it."""

    bound: float
    noise: float
    value: float = 1.0
    held: float = 0.0
    broke: float = inf

    def follow(self, error: float, noise: float | None) -> bool:
        """Set the next factor after a plan with this error and L2 noise (None: as much as it was allowed); False if
        there is nothing left to find."""
        noise = self.value * self.noise if noise is None else noise
        if error <= self.bound:
            self.held = max(self.held, noise, self.value * self.noise)
        else:
            self.broke = min(self.broke, noise)
        aim = 2.0 * self.held if self.broke == inf else sqrt(self.broke * max(self.held, self.broke / 8.0))
        self.value = aim / max(self.noise, 1e-12)
        return self.value < _FAR and self.broke > 1.05 * self.held


class ErrorTarget:
    """The error limit `bound` of one model in a search: plans that were measured correct the error model and set the
    `factor` on the limit of predicted errors for the next plan."""

    def __init__(self, graph: Graph, error: ErrorModel, bound: float) -> None:
        self.bound, self._graph, self._studied = bound, graph, error
        upper, noise = exp(error.upper_log), error.noise_target(bound)
        self._near = noise * upper
        self._aim: _Aim | _AimInSteps = _Aim(bound, upper) if error.metric.smooth else _AimInSteps(bound, noise)

    @property
    def factor(self) -> float:
        """The factor on the limit: at 1 the upper end of the predicted error keeps it."""
        return self._aim.value

    def corrected(self, evidence: Iterable[Evidence]) -> ErrorModel:
        """The error model that agrees with the measured `evidence`."""
        return corrected(self._studied, self._graph, [*evidence], self._near)

    def allow(self, factor: float) -> None:
        """Raise the factor to this one, if it is smaller."""
        self._aim.value = max(self._aim.value, factor)

    def loosen(self) -> None:
        """Double the factor after no plan was found: only measuring tells whether pinned blocks break the limit."""
        self._aim.value *= 2.0

    def follow(self, evidence: Evidence, *, is_new: bool) -> bool:
        """Set the factor for the plan after the one that was measured; False if there is nothing left to find."""
        if isinstance(self._aim, _Aim):
            return self._aim.follow(evidence.error, is_new=is_new)
        return self._aim.follow(evidence.error, max(evidence.l2.values(), default=None))


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """The plans of a search, in the order they were solved, and all that was measured, also before."""

    tried: list[Tried]
    evidence: list[Evidence]


def search(
    graph: Graph,
    profile: Profile,
    error: ErrorModel,
    limits: Limits,
    meter: ErrorMeter,
    known: Sequence[Evidence] = (),
    *,
    rounds: int = 10,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> Searched:
    """Plans with measured errors; `effort` scales the time limit of each. `known` was measured before.

    Starts with the upper end of the predicted error at the bound. Then each plan is measured and corrects the error
    model, with which the next is solved, until one is close to the bound.
    """
    bound = limits.max_error
    assert bound is not None, "an unbounded plan needs no search"
    tried, measured_by_forms = list[Tried](), {key_of(evidence.assignment): evidence for evidence in known}

    def measured(assignment: Assignment) -> Evidence:
        key = key_of(assignment)
        if key not in measured_by_forms:
            measured_by_forms[key] = meter.evidence(assignment)
        return measured_by_forms[key]

    target = ErrorTarget(graph, error, bound)
    for _ in reported(range(rounds), "search", progress):
        model = target.corrected(measured_by_forms.values())
        plan = make_plan(graph, profile, model, limits, slack=target.factor, time_limit_s=solve_s(effort))
        if plan.status == "infeasible":
            target.loosen()
            continue
        result = measured(plan.assignment())
        is_new = all(key_of(other.assignment) != key_of(plan.assignment()) for other in tried)
        if is_new:
            tried.append(_tried(plan, result, bound))
            if result.error > _FAR_OFF * bound and (half := _half(graph, model, plan)):
                measured(half)
        if not target.follow(result, is_new=is_new):
            break
    return Searched(tried, [*measured_by_forms.values()])


def _half(graph: Graph, error: ErrorModel, plan: Plan) -> Assignment:
    """The blocks of a plan that are predicted to add least and half of its noise together. Measured apart, they tell
    which blocks are to blame for an error that was not expected."""
    assignment, predicted = plan.assignment(), dict[str, float]()
    for output in error.outputs:
        for term in output.blocks:
            if term.block in assignment and assignment[term.block].name == term.precision:
                predicted[term.block] = max(predicted.get(term.block, 0.0), term.own)
    order = sorted(predicted, key=predicted.__getitem__)
    sums = [*accumulate(predicted[block] for block in order)]
    count = bisect_right(sums, sums[-1] / 2.0) if sums else 0
    chosen = {block: assignment[block] for block in order[:count]}
    whole = next(precision for precision in plan.precisions if precision.form == "whole")
    return effective(graph, chosen, whole) if count < len(order) else {}


def solve_s(effort: float) -> float:
    """The time limit of a solve, in seconds."""
    return max(_LEAST_S, effort * _SOLVE_S)


def _tried(plan: Plan, measured: Evidence, bound: float) -> Tried:
    error, holds = measured.error, measured.error <= bound
    note = () if holds else (f"measured error {error:.4%} breaks the bound {bound:.4%}",)
    return Tried(replace(plan, measured_error=error, notes=plan.notes + note), error, holds, loss=measured.loss)


def unsolved(
    name: str,
    graph: Graph,
    profile: Profile,
    error: ErrorModel,
    limits: Limits,
    measured: Evidence,
) -> Tried:
    """An assignment that is not from the solver, as a candidate, with what was `measured` of it."""
    plan = describe(graph, profile, error, limits, measured.assignment, status="measured")
    holds = limits.max_error is None or measured.error <= limits.max_error
    return Tried(replace(plan, measured_error=measured.error), measured.error, holds, name, loss=measured.loss)


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


def best(tried: Sequence[Tried], count: int) -> list[Tried]:
    """The `count` fastest by prediction among the plans that keep the bound."""
    return sorted((plan for plan in tried if plan.holds), key=lambda plan: plan.predicted_s)[:count]
