"""Search plans by measured error: solve, measure, tighten or loosen the noise bound, solve again. Times nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp, inf, sqrt

from taglio.error.correct import corrected
from taglio.error.measure import ErrorMeter, Evidence
from taglio.error.model import ErrorModel
from taglio.model.graph import Graph
from taglio.plan.one_machine import make_plan
from taglio.plan.result import Limits, Plan
from taglio.plan.tables import Tables, error_interval
from taglio.progress import Progress, reported
from taglio.quantize.precision import Forms
from taglio.search.ledger import Entry

# A plan that uses this share of the bound is close enough: another solve would gain too little.
_CLOSE = 0.97
# The safety factor of a new aim.
_STEP = 0.98
# The least and the most by which the aim is tightened after a plan that broke the bound.
_TIGHTER, _TIGHTEST = 0.94, 0.4
# An aim so loose that the bound no longer restricts plans: if they do not change up to here, the search ends.
_FAR = 64.0
# Seconds for a solve at effort 1, and the least. On tables that were measured on a busy machine, a proof can take
# minutes.
_SOLVE_S, _LEAST_S = 3.0, 0.5


def keeps_pins(graph: Graph, limits: Limits, plan: Plan) -> bool:
    """Whether every pinned block has the form that it is pinned to. ONNX Runtime may not keep a pin to float: it runs a
    weightless block between int8 blocks in int8."""
    forms = plan.assignment().keys()
    in_float = (name for name in limits.float_blocks if not graph.block(name).movement)
    return forms.isdisjoint(in_float) and forms >= set(limits.int8_blocks)


def least_error(graph: Graph, limits: Limits, entries: Iterable[Entry]) -> Entry:
    """The plan with the smallest error among those that keep the pins; if none does, among all but float."""
    plans = [*entries]
    keeping = [entry for entry in plans if keeps_pins(graph, limits, entry.plan)]
    return min(keeping or [entry for entry in plans if entry.assignment] or plans, key=lambda entry: entry.error)


@dataclass(slots=True)
class _Aim:
    """Sets the factor on the `bound` with which the next plan is solved (`value`), so that its measured error comes
    close to the bound and keeps it.

    At 1 the upper end of the predicted error is at the bound, at `exact` the prediction itself. `loose` is the part of
    the factor that measured plans have set. If the solver finds a plan again, it is multiplied by at most `most`."""

    bound: float
    exact: float
    value: float = 1.0
    loose: float = 1.0
    most: float = 4.0

    def follow(self, error: float, *, is_new: bool) -> bool:
        """Set the next factor after a plan with this measured error; False if no better plan is left to find."""
        if is_new and _CLOSE * self.bound < error <= self.bound:
            return False
        share = self.bound / max(error, 1e-12)
        if error > self.bound:  # the solver prefers blocks whose noise is underestimated, so other plans may err too
            self.loose = min(1.0, self.loose) * min(_TIGHTER, max(_TIGHTEST, share**0.5))
            self.most = self.most**0.5
        elif is_new:
            self.loose = max(self.loose, min(1.0, _STEP * share * self.loose))
        else:  # a plan was found again: predictions of other plans are too pessimistic
            self.loose *= min(max(1.1, self.most), max(1.1, _STEP * share))
        self.value = _STEP * self.exact * self.loose
        return self.loose < _FAR


@dataclass(slots=True)
class _AimInSteps:
    """The same for a metric that moves in steps. It bisects between `held`, the largest noise of a plan that kept the
    bound, and `broke`, the least noise of one that broke it. `noise` is the noise at the bound according to the
    study."""

    bound: float
    noise: float
    value: float = 1.0
    held: float = 0.0
    broke: float = inf

    def follow(self, error: float, noise: float | None) -> bool:
        """Set the next factor after a plan with this measured error and L2 noise (None: as much as it was allowed);
        False if no better plan is left to find."""
        noise = self.value * self.noise if noise is None else noise
        if error <= self.bound:
            self.held = max(self.held, noise, self.value * self.noise)
        else:
            self.broke = min(self.broke, noise)
        aim = 2.0 * self.held if self.broke == inf else sqrt(self.broke * max(self.held, self.broke / 8.0))
        self.value = aim / max(self.noise, 1e-12)
        return self.value < _FAR and self.broke > 1.05 * self.held


class ErrorTarget:
    """The error limit `bound` of one model during a search. Measured plans correct the error model, and set the
    `factor` on the bound with which the next plan is solved."""

    def __init__(self, graph: Graph, error: ErrorModel, bound: float) -> None:
        self.bound, self._graph, self._studied = bound, graph, error
        upper, noise = exp(error.upper_log), error.noise_target(bound)
        self._near = noise * upper
        self._aim: _Aim | _AimInSteps = _Aim(bound, upper) if error.metric.smooth else _AimInSteps(bound, noise)

    @property
    def factor(self) -> float:
        """The factor on the bound: at 1 the upper end of the predicted error keeps it."""
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
        """Set the factor for the next plan after one was measured; False if no better plan is left to find."""
        if isinstance(self._aim, _Aim):
            return self._aim.follow(evidence.error, is_new=is_new)
        return self._aim.follow(evidence.error, max(evidence.l2.values(), default=None))


def search(
    tables: Tables,
    limits: Limits,
    meter: ErrorMeter,
    *,
    rounds: int = 10,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> list[Entry]:
    """Plans with measured errors, in the order in which they were solved, at most `rounds`. `effort` scales the time
    limit of each solve.

    The first plan is solved with the upper end of its predicted error at the bound. The measured error of each plan
    corrects the error model and the aim for the next, until a plan is close to the bound.
    """
    bound = limits.max_error
    assert bound is not None, "an unbounded plan needs no search"
    assert tables.error is not None, "a bound needs a study"
    tried, target = dict[Forms, Entry](), ErrorTarget(tables.graph, tables.error, bound)
    for _ in reported(range(rounds), "search", progress):
        corrected_tables = replace(tables, error=target.corrected(meter.measured.values()))
        plan = make_plan(corrected_tables, limits, slack=target.factor, time_limit_s=solve_s(effort))
        if plan.status == "infeasible":
            target.loosen()
            continue
        result = meter.evidence(plan.assignment())
        entry = _solved(plan, result, bound)
        is_new = entry.forms not in tried
        tried.setdefault(entry.forms, entry)
        if not target.follow(result, is_new=is_new):
            break
    return [*tried.values()]


def solve_s(effort: float) -> float:
    """The time limit of a solve, in seconds."""
    return max(_LEAST_S, effort * _SOLVE_S)


def _solved(plan: Plan, measured: Evidence, bound: float) -> Entry:
    error = measured.error
    return Entry(replace(plan, measured_error=error), error, error <= bound, solved=True, loss=measured.loss)


def from_rule(name: str, tables: Tables, limits: Limits, measured: Evidence) -> Entry:
    """The entry of an assignment that is not from the solver but from the rule `name`, with its `measured` error."""
    plan = tables.describe(limits, measured.assignment)
    holds = measured.error <= limits.allowed_error and keeps_pins(tables.graph, limits, plan)
    return Entry(replace(plan, measured_error=measured.error), measured.error, holds, name, loss=measured.loss)


def predicted_by(tables: Tables, entry: Entry) -> Entry:
    """The same plan with the latency that `tables` predict. Its predicted error becomes the one measured in the search,
    which is what to expect of the deployed file on more inputs."""
    assert tables.error is not None, "what was searched was studied"
    assert entry.loss is not None, "what was searched was measured"
    seconds, error = tables.latency(entry.assignment), error_interval(tables.error, entry.loss)
    return replace(entry, plan=replace(entry.plan, predicted_latency_s=seconds, predicted_error=error))


def best(entries: Iterable[Entry], count: int) -> list[Entry]:
    """The `count` fastest by prediction among the plans that keep the bound."""
    return sorted((entry for entry in entries if entry.holds), key=lambda entry: entry.predicted_s)[:count]
