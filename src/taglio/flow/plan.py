"""The plan stage: solve, measure errors, time, refine the tables, solve again; the clock chooses. Writes nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf

from taglio.error.judge import fewest_samples
from taglio.error.loss import parse_metric
from taglio.error.measure import ErrorMeter
from taglio.error.model import ErrorModel
from taglio.errors import BadData, BadModel, BadOption, Infeasible, MeasurementFailed, TaglioError
from taglio.flow.answers import Answers, answers, judging
from taglio.flow.as_built import AsBuilt, unsure
from taglio.flow.build import quantized
from taglio.flow.by_hand import place_by_hand
from taglio.flow.finalists import PLAIN, Finals, by_the_clock, fastest_of, finalists, finals, judged, same_assignment
from taglio.flow.limits import Bounds, infeasible, limits_for, refuse_no_limit, user_limits
from taglio.flow.places import studied
from taglio.flow.rules import by_rules
from taglio.flow.search import Tried, best, corrected, keeps_pins, predicted_by, search, unsolved
from taglio.flow.unseen import CANDIDATES, Rejected
from taglio.flow.work import Work, affordable, require_own
from taglio.plan.one_machine import describe
from taglio.plan.result import Interval, Limits, Plan, placements
from taglio.profile.busy import doubt
from taglio.profile.measure import FLOAT_RUN, pure_assignments, refine
from taglio.profile.result import Profile
from taglio.profile.sessions import sessions_within
from taglio.profile.stopwatch import Effort, Timed
from taglio.progress import Progress

# Solved plans that are measured at least, and plans that rules measure which exclude block after block.
_FEWEST, _EXCLUDED = 3, 30
# Where predictions are off by more than this share, they rule no plan out.
UNSURE = 0.1
# Finalists whose times differ by less than this factor are told apart by openings, at most so many beside the winner.
_CLOSE, _RIVALS = 1.05, 2


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The plan, the finalists by name, their timings side by side, the winner, everything tried, and the profile and
    error model refined by the results (None: errors were not studied, because no plan can gain).

    `answers` are those of the float model, all-int8 and the winner as deployed; the errors of the others come from the
    search, which measured them on `inputs` held-out inputs. So many `candidates` were measured on the unseen inputs, of
    which those `rejected` were faster than the plan.
    """

    plan: Plan
    winner: str
    finalists: dict[str, Tried]
    timed: dict[str, Timed]
    answers: dict[str, Answers]
    tried: tuple[Tried, ...]
    profile: Profile
    error: ErrorModel | None
    inputs: int
    rejected: tuple[Rejected, ...] = ()
    candidates: int = 0

    def of(self, work: Work, name: str) -> "Decision":
        """The same with another of the finalists as the winner."""
        chosen = _chosen(work, self.finalists[name], self.tried)
        devices = dict(self.plan.devices())
        return replace(
            self, winner=name, plan=replace(chosen, placements=placements(work.graph, chosen.assignment(), devices))
        )

    def rivals(self) -> list[str]:
        """The fastest finalists that keep the limit as far as is known and that the finals do not tell from the winner,
        at most two."""
        if self.winner == FLOAT_RUN:
            return []
        winner_s = self.timed[self.winner].wall.median_s
        close = {
            name: self.timed[name].wall.median_s
            for name, finalist in self.finalists.items()
            if finalist.holds and name in self.timed and name not in (self.winner, FLOAT_RUN)
        }
        return sorted((name for name, seconds in close.items() if seconds <= _CLOSE * winner_s), key=close.__getitem__)[
            :_RIVALS
        ]

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
        finalist = judged(self.finalists[name], answered, limits)
        if not finalist.holds:
            return None
        finalists = {**self.finalists, name: finalist}
        known = replace(self, finalists=finalists, answers={**self.answers, name: answered}, candidates=candidates)
        return known.of(work, name)

    def ahead(self) -> float:
        """How many times as fast the float model is in the place of the profile as in the place where float is
        compared."""
        place = self.profile.conditions.runtime
        there = [name for name, each in self.finalists.items() if each.name == FLOAT_RUN and each.plan.runtime == place]
        seconds = [self.timed[name].wall.median_s for name in there if name in self.timed]
        return self.timed[FLOAT_RUN].wall.median_s / seconds[0] if seconds else 1.0

    def doubt(self) -> str | None:
        """A warning if the machine was busy while the profile or the finalists were timed."""
        last = max(each.others for each in self.timed.values())
        conditions = self.profile.conditions
        return doubt(max(last, conditions.others), conditions.reference_half_s)


def plan(
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

    >>> plan = taglio.plan(model, profile, error, max_error=0.02, effort=0.02)
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


@dataclass(frozen=True, slots=True, eq=False)
class Explored:
    """The result of planning in one place: the plans tried, with their errors in that place, the fastest by the clock,
    the profile refined around it and the error model corrected by the measurements. If no plan `may_gain` on float,
    only float and all int8 are finalists."""

    tried: list[Tried]
    leader: Tried | None
    profile: Profile
    error: ErrorModel
    may_gain: bool = True

    def finalists(self) -> dict[str, Tried]:
        """The plans to time beside those of other places, by name."""
        if not self.may_gain:
            return {each.name: each for each in self.tried if each.name in PLAIN}
        return finalists(self.tried, self.leader)


def decide(
    work: Work,
    measured: Mapping[str, Profile],
    model: ErrorModel,
    limits: Limits,
    *,
    bases: Mapping[str, float] | None = None,
    devices: Mapping[str, str] | None = None,
) -> Decision:
    """Plan in each place that was `measured`, and let the clock choose among the finalists of all places.

    `bases` gives the error of the float model in each place where a model may be deployed; the first is where float is
    compared. Default: the measured places. `devices` are those of blocks that are placed by hand.
    """
    if limits.max_error is None:
        raise BadOption("`max_error` is missing: give the worst that is allowed, such as 0.01 for 1 %")
    bases = bases or dict.fromkeys(measured, 0.0)
    first = next(iter(measured.values()))
    work = work.settled(first.scheme).in_place(next(iter(bases)))
    meter, full = meters(work.in_place(studied(measured)), first, limits, model.samples)
    found: dict[str, Explored] = {}
    refusals: list[TaglioError] = []
    for place, profile in measured.items():
        try:
            found[place] = _explored(work.in_place(place), profile, model, limits, (meter, full), bases[place])
        except (Infeasible, BadModel, MeasurementFailed) as error:
            refusals.append(error)
    if not found:
        raise refusals[0]
    tried = [each for explored in found.values() for each in explored.tried]
    by_place = {place: explored.finalists() for place, explored in found.items()}
    most = sessions_within(work.budget.plans_s, work.model.proto)
    again_s = _FEWEST * len(work.data.held_out.samples) * meter.evaluation_s / meter.samples
    patient = again_s <= work.budget.plans_s
    # One candidate for unseen inputs is kept for a second search.
    last = finals(work, by_place, bases, limits, meter.samples, most, CANDIDATES - 1 if patient else CANDIDATES)
    rejected, candidates = last.rejected, last.measured
    left = CANDIDATES - candidates
    more = left > 0 and (meter.samples < len(work.data.held_out.samples) or bool(rejected))
    if more and (patient or last.winner is None) and _none_but_plain(last):
        place, best_there = next(iter(found.items()))
        room = min((each.room for each in rejected), default=1.0)
        again = _again(work, best_there, full(), AsBuilt(limits, bases[place]), room)
        if again:
            by_place = {place: finalists(again, None)}
            last = finals(work, by_place, bases, limits, full().samples, most, left)
            rejected, candidates = (*rejected, *last.rejected), candidates + last.measured
            tried += again
    final, timed, winner, answered = last.finalists, last.timed, last.winner, last.answers
    if winner is None:
        losses = [f"{part.name} {part.lost}" for each in answered.values() for part in each.parts if part.lost]
        least = min([each.needed for each in rejected] or [each.error for each in final.values()])
        raise infeasible(limits, least, next(iter(losses), ""), work.agreement.remark)
    final = {
        name: each if each.plan.runtime in found or name not in timed else by_the_clock(each, timed[name])
        for name, each in final.items()
    }
    place = final[winner].plan.runtime
    known = found[place if place in found else next(iter(found))]
    chosen = _chosen(work, final[winner], tried)
    return Decision(
        plan=replace(chosen, placements=placements(work.graph, chosen.assignment(), devices)),
        winner=winner,
        finalists=final,
        timed=timed,
        answers=answered,
        tried=tuple(tried),
        profile=known.profile,
        error=known.error,
        inputs=meter.samples,
        rejected=rejected,
        candidates=candidates,
    )


def float_stays(
    work: Work, profile: Profile, int8_error: float, limits: Limits, bases: Mapping[str, float]
) -> Decision:
    """The decision where no mix of forms can be faster than float: the clock chooses among the float models of all
    places. `profile` has float and all int8, whose error is `int8_error`. Raises Infeasible if not even float holds."""
    work = work.settled(profile.scheme)
    pure, place = pure_assignments(work.graph, profile.precisions), profile.conditions.runtime
    tried = {}
    for name, assignment, error in ((FLOAT_RUN, {}, bases[place]), ("int8", pure["int8"], int8_error)):
        plan = describe(work.graph, profile, None, limits, assignment, status="measured")
        plan = replace(plan, predicted_error=Interval(0.0, error, error, 0.0), measured_error=error)
        holds = limits.max_error is None or error <= limits.max_error
        tried[name] = Tried(plan, error, holds, name)
    return decided_by_the_clock(work, profile, {place: tried}, limits, bases)


def best_so_far(
    work: Work, profile: Profile, tried: Mapping[str, Sequence[Tried]], limits: Limits, bases: Mapping[str, float]
) -> Decision:
    """The decision among float, all int8 and the best plan that was `tried` in each place, for a search that was
    stopped."""
    by_place = {}
    for place, plans in tried.items():
        by_place[place] = {each.name: each for each in plans if each.name in PLAIN}
        if fastest := best([plan for plan in plans if not plan.name], 1):
            by_place[place]["plan 1"] = fastest[0]
    return decided_by_the_clock(work.settled(profile.scheme), profile, by_place, limits, bases)


def decided_by_the_clock(
    work: Work,
    profile: Profile,
    by_place: Mapping[str, Mapping[str, Tried]],
    limits: Limits,
    bases: Mapping[str, float],
) -> Decision:
    """The decision among finalists by place. Raises Infeasible if none holds."""
    work = work.in_place(next(iter(bases)))
    inputs, most = len(work.data.held_out.samples), len(bases) + sum(map(len, by_place.values()))
    last = finals(work, by_place, bases, limits, inputs, most)
    if last.winner is None:
        raise infeasible(limits, min(each.error for each in last.finalists.values()), "", work.agreement.remark)
    tried = [each for plans in by_place.values() for each in plans.values()]
    final = {
        name: each if name not in last.timed else by_the_clock(each, last.timed[name])
        for name, each in last.finalists.items()
    }
    return Decision(
        plan=_chosen(work, final[last.winner], tried),
        winner=last.winner,
        finalists=final,
        timed=last.timed,
        answers=last.answers,
        tried=tuple(tried),
        profile=profile,
        error=None,
        inputs=inputs,
        rejected=last.rejected,
        candidates=last.measured,
    )


def _explored(
    work: Work,
    measured: Profile,
    model: ErrorModel,
    limits: Limits,
    meters: tuple[ErrorMeter, Callable[[], ErrorMeter]],
    base: float,
) -> Explored:
    """Plan, time the plans' kernels, refine the profile around the fastest, plan again; in the place of the set-up,
    where the float model has the error `base`.

    A plan's prediction depends on the layouts that its kernels use, and the random mixes of the profile are far from
    it. Plans by simple rules are timed too: where the tables are wrong, the clock shows it.
    """
    place, (meter, full) = AsBuilt(limits, base), meters
    study = model
    tried = _searched(work, measured, model, place.within(), meter, full)
    model = corrected(study, work.graph, tried, place.bound)
    # What is delivered if the search is stopped from here on.
    work.kept.put(("tried", measured.conditions.runtime), [place.deployed(each) for each in tried])
    known, leader = measured, None
    chosen = finalists(tried, leader)
    may_gain = measured.interval_ratio > UNSURE or _may_gain(work, tried)
    is_affordable = len(chosen) <= sessions_within(work.budget.plans_s, work.model.proto)
    if may_gain and is_affordable and len(chosen) * work.setup.run_s <= work.budget.plans_s:
        timed = _timed_in_place(work, measured, chosen, place, limits, meter.samples)
        tried = [each for each in tried if not any(same_assignment(each, chosen[name]) for name in timed.refused)]
        chosen = timed.judged
        # That few runs do not show that it is faster than float leaves it in the finals, which do.
        leader = chosen[fastest_of(chosen, timed.times)]
        place.follow(leader)
        runs = {_as_run(name): (each.plan.assignment(), timed.times[name]) for name, each in chosen.items()}
        runs |= {FLOAT_RUN: ({}, timed.times[FLOAT_RUN])}
        known = refine(work.model, work.graph, known, runs, " 1", near=leader.plan.assignment())
        rounds = min(work.budget.solved_again, _solved(work, meter))
        tried = place.judged(work.graph, tried)
        tried += search(
            work.graph,
            known,
            model,
            place.within(),
            meter.error,
            rounds=rounds,
            effort=work.effort,
            progress=work.progress,
        )
        model = corrected(study, work.graph, tried, place.bound)
        tried = predicted_by(known, model, work.graph, tried)

    def deployed(some: Sequence[Tried]) -> list[Tried]:
        return [place.deployed(each) for each in predicted_by(known, model, work.graph, some)]

    return Explored(deployed(tried), deployed([leader])[0] if leader else None, known, model, may_gain)


@dataclass(frozen=True, slots=True, eq=False)
class _TimedPlans:
    """Finalists of one place that were timed there with their kernels: their times, and themselves with the errors that
    they have there. `refused` are those that do not run."""

    times: dict[str, Timed]
    judged: dict[str, Tried]
    refused: tuple[str, ...]


def _timed_in_place(
    work: Work, profile: Profile, chosen: Mapping[str, Tried], place: AsBuilt, limits: Limits, inputs: int
) -> _TimedPlans:
    """Time the `chosen` plans beside float, and measure on so many `inputs` the errors of those that may hold."""
    losses, refused = dict[str, float](), dict[str, str]()
    asked = [_as_run(name) for name, each in chosen.items() if unsure(place.deployed(each), limits)]
    models = {FLOAT_RUN: partial(work.builder(profile.scheme).build, {})}
    models |= {_as_run(name): partial(quantized, work, each.plan) for name, each in chosen.items()}
    judge = judging(work, limits, inputs, asked, losses)
    timed = work.time(models, Effort(budget_s=work.budget.refine_s), kernels=True, refused=refused, opened=judge)
    if FLOAT_RUN in refused:
        raise BadModel(refused[FLOAT_RUN])
    there = {name: each for name, each in chosen.items() if _as_run(name) in timed}
    for name, each in there.items():
        place.note(each, losses.get(_as_run(name), 0.0))
    judged_there = dict(zip(there, place.judged(work.graph, [*there.values()]), strict=True))
    times = {FLOAT_RUN: timed[FLOAT_RUN]} | {name: timed[_as_run(name)] for name in there}
    return _TimedPlans(times, judged_there, tuple(name for name in chosen if name not in there))


def _as_run(name: str) -> str:
    """The name of a finalist's run in a profile, where float has its own."""
    return name if name == FLOAT_RUN else f"finalist {name}"


def _may_gain(work: Work, tried: Sequence[Tried]) -> bool:
    """Whether a plan is predicted to be faster than float by more than the budget's least gain. If none is, timing
    plans would only measure noise."""
    holding = [each.plan.predicted_latency_s.value for each in tried if each.holds]
    floats = [each.plan.predicted_latency_s.value for each in tried if each.name == FLOAT_RUN]
    return not floats or min(holding) <= (1.0 - work.budget.gain) * floats[0]


def _again(work: Work, there: Explored, meter: ErrorMeter, place: AsBuilt, room: float) -> list[Tried]:
    """The plans of another search on all inputs of the `meter`, within the share `room` of the limit; none if even
    float breaks that, with the blocks that are forced to int8."""
    within = place.within()
    assert within.max_error is not None, "a plan that was rejected had a limit"
    try:
        tried = _searched(work, there.profile, there.error, replace(within, max_error=room * within.max_error), meter)
    except Infeasible:
        return []
    return [place.deployed(each) for each in predicted_by(there.profile, there.error, work.graph, tried)]


def _none_but_plain(last: Finals) -> bool:
    """Whether only float is left after others were rejected on unseen inputs, or only float or all-int8 although some
    plans were expected to hold."""
    if last.rejected:
        return last.winner in (None, FLOAT_RUN)
    plain = last.winner is None or last.finalists[last.winner].name in PLAIN
    others = [each.holds for each in last.finalists.values() if each.name not in PLAIN]
    return plain and bool(others) and not any(others)


def _chosen(work: Work, winner: Tried, tried: Sequence[Tried]) -> Plan:
    """The winner's plan with its measured results."""
    chosen = replace(winner.plan, measured_error=winner.error, shapes=work.measured_shapes)
    if not winner.name:
        return chosen
    there = [each for each in tried if not each.name and each.plan.runtime == chosen.runtime]
    # On a busy machine the savings at boundaries may add up to the whole time: that predicts nothing.
    solved = best([each for each in there if each.plan.predicted_latency_s.value > 0.0], 1)
    ahead = solved[0].plan.predicted_latency_s.value if solved else chosen.predicted_latency_s.value
    return replace(chosen, gap=max(0.0, chosen.predicted_latency_s.value / ahead - 1.0))


def _searched(
    work: Work,
    measured: Profile,
    model: ErrorModel,
    limits: Limits,
    meter: ErrorMeter,
    full: Callable[[], ErrorMeter] | None = None,
) -> list[Tried]:
    """Float, all-int8, plans by simple rules and by the search, each with its measured error.

    If nothing holds on `meter`, `full` decides. Raises Infeasible if nothing holds there either.
    """
    rounds = _solved(work, meter)
    tried = search(
        work.graph, measured, model, limits, meter.error, rounds=rounds, effort=work.effort, progress=work.progress
    )
    patient = _EXCLUDED * meter.evaluation_s <= work.budget.plans_s
    for name, assignment in by_rules(work.graph, measured, model, limits, meter, excluding=patient).items():
        errors = meter.errors(assignment) if assignment else (0.0, 0.0)
        candidate = unsolved(name, work.graph, measured, model, limits, assignment, errors)
        tried.append(replace(candidate, holds=candidate.holds and keeps_pins(work.graph, limits, candidate.plan)))
    if not any(each.holds for each in tried):
        if full is not None and full() is not meter:
            return _searched(work, measured, model, limits, full())
        best = min(tried, key=lambda each: each.error)
        raise infeasible(limits, best.error, "" if best.error < inf else meter.tally(best.plan.assignment()).lost())
    return tried


def meters(
    work: Work, profile: Profile, limits: Limits, inputs: int = 0
) -> tuple[ErrorMeter, Callable[[], ErrorMeter]]:
    """Two meters of a plan's error: one for searching, on as many held-out inputs as the budget has for that, or as
    many `inputs` as were studied, but as many as the metrics need; and what makes the one on all inputs (the same meter
    if those are all)."""
    work = work.settled(profile.scheme)
    switchable = work.switchable(profile.scheme)
    limit = inf if limits.max_error is None else limits.max_error
    fewest = max(map(fewest_samples, [parse_metric(work.setup.metric), *(each.metric for each in limits.also)]))
    verify_s = work.budget.verify_s
    count = work.affordable(verify_s, max(work.budget.verify_inputs, inputs), fewest)
    first = work.meter(switchable, count, limits.also, limit)
    if first.evaluation_s > 2.0 * verify_s:  # reading the outputs takes long
        each_s = first.evaluation_s / first.samples
        first = work.meter(switchable, affordable(each_s, verify_s, first.samples, fewest), limits.also, limit)
    if first.samples == len(work.data.held_out.samples):
        return first, lambda: first
    return first, cache(lambda: work.meter(switchable, None, limits.also, limit))


def _solved(work: Work, meter: ErrorMeter) -> int:
    """How many solved plans to measure with `meter`."""
    return affordable(meter.evaluation_s, work.budget.plans_s, work.budget.solved, _FEWEST)
