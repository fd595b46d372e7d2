"""The plan stage: solve, measure errors, race, refine the tables, solve and race again. Writes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taglio.error.model import ErrorModel
from taglio.errors import BadData, BadModel, BadOption, Infeasible, MeasurementFailed, TaglioError
from taglio.flow.answers import SOURCE_RUN, Answers, answers
from taglio.flow.by_hand import place_by_hand
from taglio.flow.explore import FEWEST, Explored, meters
from taglio.flow.finalists import (
    PLAIN,
    Judged,
    Raced,
    as_predicted,
    in_pure_forms,
    int8_of,
    judge,
    on_one_scale,
    with_answers,
)
from taglio.flow.ledger import NOT_RACED, Floats
from taglio.flow.limits import Bounds, infeasible, limits_for, refuse_no_limit, user_limits
from taglio.flow.places import studied
from taglio.flow.search import Tried, best
from taglio.flow.side_by_side import race
from taglio.flow.unseen import Rejected
from taglio.flow.work import Work, require_own
from taglio.plan.one_machine import describe
from taglio.plan.result import Interval, Limits, Plan, placements
from taglio.profile.busy import doubt
from taglio.profile.measure import FLOAT_RUN, pure_assignments
from taglio.profile.result import Profile
from taglio.profile.wall_time import WallTime
from taglio.progress import Progress
from taglio.runtimes.onnxruntime import NAME

# Finalists whose times differ by less than this factor are told apart by openings, at most so many beside the winner.
_CLOSE, _RIVALS = 1.05, 2


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The plan, the finalists by name, their times on one scale, the winner, everything tried, and the profile and
    error model refined by the results (None: errors were not studied, because no plan can gain).

    `answers` are those of the float model, all-int8 and the winner as deployed; the errors of the others come from the
    search, which measured them on `inputs` held-out inputs. So many `candidates` were measured on the unseen inputs, of
    which those `rejected` were faster than the plan. `others` is the share of the processors that other programs used
    while plans were raced.
    """

    plan: Plan
    winner: str
    finalists: dict[str, Tried]
    times: dict[str, WallTime]
    answers: dict[str, Answers]
    tried: tuple[Tried, ...]
    profile: Profile
    error: ErrorModel | None
    inputs: int
    rejected: tuple[Rejected, ...] = ()
    candidates: int = 0
    others: float = 0.0

    @property
    def int8(self) -> str:
        """The name of the finalist that is all-int8."""
        return int8_of(self.finalists, self.times)

    def of(self, work: Work, name: str) -> "Decision":
        """The same with another of the finalists as the winner."""
        chosen = _chosen(work, self.finalists[name], self.tried)
        devices = dict(self.plan.devices())
        return replace(
            self, winner=name, plan=replace(chosen, placements=placements(work.graph, chosen.assignment(), devices))
        )

    def rivals(self) -> list[str]:
        """The fastest finalists that keep the limit as far as is known and that the race does not tell from the winner,
        at most two."""
        if self.winner == FLOAT_RUN:
            return []
        most_s = _CLOSE * self.times[self.winner].median_s
        close = [
            name
            for name, finalist in self.finalists.items()
            if finalist.holds and name not in (self.winner, FLOAT_RUN)
            if name in self.times and self.times[name].median_s <= most_s
        ]
        return sorted(close, key=lambda name: self.times[name].median_s)[:_RIVALS]

    def accepting(self, work: Work, name: str, limits: Limits) -> "Decision | None":
        """The same with another finalist as the winner, if that runs on all held-out inputs and is accepted there."""
        answered = self.answers.get(name)
        candidates = self.candidates
        if answered is None:
            try:
                answered = answers(work, {name: self.finalists[name].plan}, limits)[name]
            except (BadData, BadModel):
                return None
            candidates += answered.unseen is not None and answered.keeps(limits)
        finalist = with_answers(self.finalists[name], answered, limits)
        if not finalist.holds:
            return None
        finalists = {**self.finalists, name: finalist}
        known = replace(self, finalists=finalists, answers={**self.answers, name: answered}, candidates=candidates)
        return known.of(work, name)

    def ahead(self) -> float:
        """The speed-up of the float model in the profile's place over the float model that results are compared
        with."""
        place = self.profile.conditions.runtime
        there = [name for name, plan in self.finalists.items() if plan.name == FLOAT_RUN and plan.runtime == place]
        seconds = [self.times[name].median_s for name in there if name in self.times]
        return self.times[FLOAT_RUN].median_s / seconds[0] if seconds else 1.0

    def doubt(self) -> str | None:
        """A warning if the machine was busy while the profile or the finalists were timed."""
        return doubt(max(self.others, self.profile.conditions.others))


def plan_model(
    work: Work,
    profile: Profile,
    error: ErrorModel,
    *,
    max_error: Bounds | None = None,
    min_score: Bounds | None = None,
    max_drop: Bounds | None = None,
    keep_float: Sequence[str] = (),
    force_int8: Sequence[str] = (),
    pins: Sequence[str] = (),
    cuts: Sequence[str] = (),
    devices: Sequence[str] = (),
    effort: float = 1.0,
    progress: Progress | None = None,
) -> Plan:
    """The fastest plan that keeps the limits on held-out inputs: `max_error`, `min_score` and `max_drop`, as in
    `taglio.optimize`.

    The finalists are timed beside float and all-int8, as in `taglio.optimize`. `keep_float` and `force_int8` are name
    patterns of blocks; `pins` ("DEVICE=PATTERN"), or `cuts` (tensors) and `devices`, place blocks by hand. Raises
    Infeasible if no plan keeps the limit.

    >>> plan = taglio.plan_model(model, profile, error, max_error=0.02, effort=0.02)
    >>> plan.measured_error <= 0.02
    True
    """
    require_own(work, profile=profile, error=error)
    work = work.telling(progress).at(effort).settled(profile.scheme)
    wanted = refuse_no_limit(user_limits(max_error, min_score, max_drop))
    limits = limits_for(work, wanted, keep_float, force_int8)
    devices_of = place_by_hand(work.graph, pins, cuts, devices)
    measured = {profile.conditions.runtime: profile}
    return decide(work, measured, error, limits, devices=devices_of).plan


def decide(
    work: Work,
    measured: Mapping[str, Profile],
    model: ErrorModel,
    limits: Limits,
    *,
    floats: Floats = NOT_RACED,
    bases: Mapping[str, float] | None = None,
    devices: Mapping[str, str] | None = None,
) -> Decision:
    """Plan in each place that was `measured`, and let the clock choose among the finalists of all places.

    `bases` gives the error of the float model in each place where a model may be deployed; the first is where float is
    compared. Default: the measured places. `floats` are the times of the float model in these places. `devices` are
    those of blocks that are placed by hand.
    """
    if limits.max_error is None:
        raise BadOption("`max_error` is missing: give the worst that is allowed, such as 0.01 for 1 %")
    bases = bases or dict.fromkeys(measured, 0.0)
    first = next(iter(measured.values()))
    work = work.settled(first.scheme).in_place(next(iter(bases)))
    meter, full = meters(work.in_place(studied(measured)), first, limits, model.samples)
    explored: dict[str, Explored] = {}
    refusals: list[TaglioError] = []
    for place, profile in measured.items():
        try:
            there = Explored(work.in_place(place), profile, model, limits, bases[place], (meter, full))
            there.explore()
            explored[place] = there
        except (Infeasible, BadData, BadModel, MeasurementFailed) as error:
            refusals.append(error)
    if not explored:
        raise refusals[0]
    again_s = FEWEST * len(work.data.held_out.samples) * meter.evaluation_s / meter.samples
    best_place = next(iter(explored))

    def raced() -> Raced:
        return on_one_scale({place: there.raced for place, there in explored.items()}, floats, bases)

    def search_again(place: str, room: float, is_needed: bool) -> Raced | None:
        there = explored[place if place in explored else best_place]
        is_worth_it = is_needed or again_s <= work.budget.plans_s
        return raced() if is_worth_it and there.search_again(room) else None

    judged = judge(work, raced(), limits, search_again)
    tried = [plan for there in explored.values() for plan in there.tried]
    place = best_place if judged.winner is None else judged.finalists[judged.winner].runtime
    there = explored[place if place in explored else best_place]
    decision = decision_of(work, judged, tried, there.profile, there.error, there.meter.samples)
    plan = decision.plan
    return replace(decision, plan=replace(plan, placements=placements(work.graph, plan.assignment(), devices)))


def float_stays(
    work: Work, profile: Profile, int8_error: float, limits: Limits, bases: Mapping[str, float], floats: Floats
) -> Decision:
    """The decision where no mix of forms can be faster than float: the fastest float model of all places. `profile` has
    float and all int8, whose error is `int8_error`. Raises Infeasible if not even float holds."""
    work = work.settled(profile.scheme)
    pure, place = pure_assignments(work.graph, profile.precisions), profile.conditions.runtime
    tried = []
    for name, assignment, error in ((FLOAT_RUN, {}, bases[place]), ("int8", pure["int8"], int8_error)):
        plan = describe(work.graph, profile, None, limits, assignment, status="measured")
        plan = replace(plan, predicted_error=Interval(0.0, error, error, 0.0), measured_error=error)
        holds = limits.max_error is None or error <= limits.max_error
        tried.append(Tried(plan, error, holds, name))
    return _among(work, profile, {place: in_pure_forms(profile, tried)}, limits, bases, floats)


def best_so_far(
    work: Work,
    profile: Profile,
    tried: Mapping[str, Sequence[Tried]],
    limits: Limits,
    bases: Mapping[str, float],
    floats: Floats,
) -> Decision:
    """The decision among float, all int8 and the best plan that was `tried` in each place, by their predicted times,
    for a search that was stopped."""
    by_place = {}
    for place, plans in tried.items():
        some = {plan.name: plan for plan in plans if plan.name in PLAIN}
        if fastest := best([plan for plan in plans if not plan.name], 1):
            some["plan 1"] = fastest[0]
        by_place[place] = as_predicted(some)
    return _among(work.settled(profile.scheme), profile, by_place, limits, bases, floats)


def _among(
    work: Work,
    profile: Profile,
    by_place: Mapping[str, Raced],
    limits: Limits,
    bases: Mapping[str, float],
    floats: Floats,
) -> Decision:
    """The decision among finalists of each place, without a study of errors."""
    work = work.in_place(next(iter(bases)))
    race = on_one_scale(by_place, floats, bases)
    tried = [plan for raced in by_place.values() for plan in raced.finalists.values()]
    inputs = len(work.data.held_out.samples)
    return decision_of(work, judge(work, race, limits), tried, profile, None, inputs)


def decision_of(
    work: Work,
    judged: Judged,
    tried: Sequence[Tried],
    profile: Profile,
    error: ErrorModel | None,
    inputs: int,
) -> Decision:
    """The decision for the winner of a race. Raises Infeasible if no finalist holds."""
    if judged.winner is None:
        limits = next(iter(judged.finalists.values())).plan.limits
        losses = [
            f"{part.name} {part.lost}" for answer in judged.answers.values() for part in answer.parts if part.lost
        ]
        least = min([plan.needed for plan in judged.rejected] or [plan.error for plan in judged.finalists.values()])
        raise infeasible(limits, least, next(iter(losses), ""), work.agreement.remark)
    return Decision(
        plan=_chosen(work, judged.finalists[judged.winner], tried),
        winner=judged.winner,
        finalists=judged.finalists,
        times=judged.times | _source_time(work, judged.times[FLOAT_RUN]),
        answers=judged.answers,
        tried=tuple(tried),
        profile=profile,
        error=error,
        inputs=inputs,
        rejected=judged.rejected,
        candidates=judged.measured,
        others=judged.others,
    )


def _source_time(work: Work, float_time: WallTime) -> dict[str, WallTime]:
    """The time of a source that is not planned itself, in ONNX Runtime, beside the float model that is, which took
    `float_time` before."""
    source = work.replaced
    if source is None:
        return {}
    raced = race(
        work,
        {SOURCE_RUN: lambda: source.proto, FLOAT_RUN: lambda: work.model.proto},
        work.budget.refine_s,
        places={SOURCE_RUN: NAME, FLOAT_RUN: work.setup.options().runtime},
    )
    source_time, own = raced[SOURCE_RUN].timed, raced[FLOAT_RUN].timed
    if source_time is None or own is None:
        raise MeasurementFailed(raced[FLOAT_RUN].refused)
    return {SOURCE_RUN: source_time.wall.times(float_time.median_s / own.wall.median_s)}


def _chosen(work: Work, winner: Tried, tried: Sequence[Tried]) -> Plan:
    """The winner's plan with its measured results."""
    chosen = replace(winner.plan, measured_error=winner.error, shapes=work.measured_shapes)
    if not winner.name:
        return chosen
    there = [plan for plan in tried if not plan.name and plan.runtime == chosen.runtime]
    # On a busy machine the savings at boundaries may add up to the whole time: that predicts nothing.
    solved = best([plan for plan in there if plan.predicted_s > 0.0], 1)
    gap = chosen.predicted_latency_s.value / solved[0].predicted_s - 1.0 if solved else 0.0
    return replace(chosen, gap=max(0.0, gap))
