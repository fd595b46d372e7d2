"""Planning in one place: solve, measure errors, race the plans, refine the tables, solve and race again.

A plan's prediction depends on the layouts that its kernels use, and the random mixes of the profile are far from it.
So plans are raced, and the profile is refined around the fastest. Plans by simple rules are raced too: where the tables
are wrong, the clock shows it. Whether a plan is truly faster than float is for confirm.py to say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf

from taglio.error.correct import corrected
from taglio.error.judge import fewest_samples
from taglio.error.loss import parse_metric
from taglio.error.measure import ErrorMeter, Evidence
from taglio.error.model import ErrorModel
from taglio.errors import BadModel, Infeasible
from taglio.flow.answers import judging
from taglio.flow.as_built import AsBuilt, unsure
from taglio.flow.build import quantized
from taglio.flow.finalists import PLAIN, Raced, fastest_of, finalists, in_pure_forms, same_assignment
from taglio.flow.limits import infeasible
from taglio.flow.rules import by_rules
from taglio.flow.search import Tried, keeps_pins, predicted_by, search, unsolved
from taglio.flow.work import Work
from taglio.plan.result import Limits
from taglio.profile.effort import Effort
from taglio.profile.measure import FLOAT_RUN, refine
from taglio.profile.result import Profile
from taglio.profile.stopwatch import Timed
from taglio.profile.wall_time import WallTime

# Solved plans that are measured at least.
FEWEST = 3
# Where predictions are off by more than this share, they rule no plan out.
UNSURE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Explored:
    """The result of planning in one place: the plans tried, with their errors in that place, the race of the best of
    them, the profile refined around the fastest and the error model corrected by the measurements."""

    tried: list[Tried]
    raced: Raced
    profile: Profile
    error: ErrorModel


def explore(
    work: Work,
    profile: Profile,
    error: ErrorModel,
    limits: Limits,
    base: float,
    meters: tuple[ErrorMeter, Callable[[], ErrorMeter]],
) -> Explored:
    """The plans of the place that `work` is set up for, where the float model has the error `base`. `meters` are those
    of the function of this name. Raises Infeasible if no plan holds, BadModel if float or all-int8 does not run."""
    meter, full = meters
    there = _There(work, profile, error, limits, base, meter)
    tried = there.planned(full)
    # What is delivered if the search is stopped from here on.
    work.kept.put(("tried", profile.conditions.runtime), there.deployed(tried))
    if profile.interval_ratio <= UNSURE and not _may_gain(work, tried):
        return Explored(there.deployed(tried), in_pure_forms(profile, there.deployed(tried)), profile, there.error)
    first = there.race(finalists(tried, most=there.most))
    tried = [plan for plan in tried if not any(same_assignment(plan, refused) for refused in first.refused)]
    leader = first.plans[fastest_of(first.plans, first.walls)]
    there.place.follow(leader)
    if first.has_kernels:
        tried = there.refined(tried, first, leader)
        new = finalists(tried, but=[*first.plans.values()])
        (leader,) = there.predicted([leader])
        leader_s = leader.predicted_s
        if faster := {name: plan for name, plan in new.items() if plan.predicted_s < leader_s}:
            there.race(faster, kernels=False)
    return there.result(tried)


def explore_within(
    room: float, work: Work, profile: Profile, error: ErrorModel, limits: Limits, base: float, meter: ErrorMeter
) -> Explored | None:
    """Plan again with errors on all inputs of the `meter`, within the share `room` of the limit; None if even float
    breaks that, with the blocks that are forced to int8."""
    there = _There(work, profile, error, limits, base, meter)
    try:
        tried = there.searched(room)
    except Infeasible:
        return None
    there.race(finalists(tried, most=there.most), kernels=False)
    return there.result(tried)


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """Finalists that were raced beside float: their times, and themselves with the errors that they have as built.
    `refused` are those that do not run."""

    plans: dict[str, Tried]
    timed: dict[str, Timed]
    refused: tuple[Tried, ...]

    @property
    def walls(self) -> dict[str, WallTime]:
        """Wall times by name."""
        return {name: timed.wall for name, timed in self.timed.items()}

    @property
    def has_kernels(self) -> bool:
        """Whether kernels were timed, as the refinement of a profile needs."""
        return all(timed.kernels for timed in self.timed.values())


class _There:
    """A place with its tables, which measurements refine, and all races in it, on one scale."""

    def __init__(
        self, work: Work, profile: Profile, error: ErrorModel, limits: Limits, base: float, meter: ErrorMeter
    ) -> None:
        self.work, self.profile, self.error, self.meter = work, profile, error, meter
        self.place = AsBuilt(limits, base)
        self._studied, self._limits = error, limits
        self.evidence = list[Evidence]()
        self._plans, self._walls = dict[str, Tried](), dict[str, WallTime]()
        self._others = 0.0

    @property
    def most(self) -> int:
        """How many plans to race: one beside float and all-int8 of any model, however slow or large."""
        work = self.work
        return max(len(PLAIN) + 1, work.within(work.budget.refine_s).models())

    def planned(self, full: Callable[[], ErrorMeter]) -> list[Tried]:
        """`searched`. If nothing holds on the inputs of the meter, all those of `full` decide."""
        try:
            tried = self.searched()
        except Infeasible:
            if full() is self.meter:
                raise
            self.meter, self.evidence = full(), []
            tried = self.searched()
        return tried

    def searched(self, room: float = 1.0) -> list[Tried]:
        """Float, all-int8, plans by simple rules and by the search, each with its measured error, within the share
        `room` of the limit. Raises Infeasible if nothing holds."""
        work, meter, limits = self.work, self.meter, self.place.within()
        assert limits.max_error is not None, "errors are judged by a limit"
        limits = replace(limits, max_error=room * limits.max_error)
        tried = list[Tried]()
        for name, assignment in by_rules(work.graph, self.profile, limits).items():
            measured = meter.evidence(assignment) if assignment else Evidence({}, 0.0, 0.0, {})
            self.evidence.append(measured)
            plan = unsolved(name, work.graph, self.profile, self.error, limits, measured)
            tried.append(replace(plan, holds=plan.holds and keeps_pins(work.graph, limits, plan.plan)))
        tried = [*self._solved(limits, work.budget.solved), *tried]
        if not any(plan.holds for plan in tried):
            least = min(tried, key=lambda plan: plan.error)
            lost = "" if least.error < inf else meter.tally(least.assignment).lost()
            raise infeasible(limits, least.error, lost)
        return tried

    def refined(self, tried: Sequence[Tried], race: Race, leader: Tried) -> list[Tried]:
        """Refine the tables by the kernels of a race, around its `leader`: the plans `tried` as they are judged and
        predicted then, and those that are found by another search."""
        work = self.work
        runs = {_as_run(name): (plan.assignment, race.timed[name]) for name, plan in race.plans.items()}
        runs |= {FLOAT_RUN: ({}, race.timed[FLOAT_RUN])}
        self.profile = refine(work.model, work.graph, self.profile, runs, near=leader.assignment)
        judged = self.place.judged(work.graph, tried)
        judged += self._solved(self.place.within(), work.budget.solved_again)
        return self.predicted(judged)

    def race(self, chosen: Mapping[str, Tried], *, kernels: bool = True) -> Race:
        """Race the `chosen` plans beside float, and measure the errors of those that may hold as they are built.
        Kernels are timed too unless that takes too long. Raises BadModel if float or all-int8 does not run."""
        work, place = self.work, self.place
        unknown = [_as_run(name) for name, plan in chosen.items() if unsure(place.deployed(plan), self._limits)]
        models = {FLOAT_RUN: partial(work.builder(self.profile.scheme).build, {})}
        models |= {_as_run(name): partial(quantized, work, plan.plan) for name, plan in chosen.items()}
        effort = work.within(work.budget.refine_s)
        timings = work.time(
            models,
            effort,
            kernels=kernels and len(chosen) <= effort.models(),
            loss=judging(work, self._limits, self.meter.samples, unknown),
        )
        timed = timings.timed
        for name in (FLOAT_RUN, _as_run("int8")):
            if name in timings.refused:
                raise BadModel(timings.refused[name])
        ran = {name: plan for name, plan in chosen.items() if _as_run(name) in timed}
        for name, plan in ran.items():
            place.note(plan, timed[_as_run(name)].loss or 0.0)
        plans = dict(zip(ran, place.judged(work.graph, [*ran.values()]), strict=True))
        times = {FLOAT_RUN: timed[FLOAT_RUN]} | {name: timed[_as_run(name)] for name in ran}
        scale = self._walls[FLOAT_RUN].median_s / times[FLOAT_RUN].wall.median_s if self._walls else 1.0
        self._walls |= {name: time.wall.times(scale) for name, time in times.items() if name not in self._walls}
        self._plans |= plans
        self._others = max([self._others, *(time.others for time in times.values())])
        return Race(plans, times, tuple(plan for name, plan in chosen.items() if name not in ran))

    def predicted(self, tried: Sequence[Tried]) -> list[Tried]:
        """Plans as the tables predict them now."""
        return predicted_by(self.profile, self.error, self.work.graph, tried)

    def deployed(self, tried: Sequence[Tried]) -> list[Tried]:
        """Plans as expected in this place."""
        return [self.place.deployed(plan) for plan in self.predicted(tried)]

    def result(self, tried: Sequence[Tried]) -> Explored:
        """The plans `tried` and all races."""
        raced = dict(zip(self._plans, self.deployed([*self._plans.values()]), strict=True))
        return Explored(self.deployed(tried), Raced(raced, self._walls, self._others), self.profile, self.error)

    def _solved(self, limits: Limits, rounds: int) -> list[Tried]:
        work, meter = self.work, self.meter
        rounds = min(rounds, Effort(work.budget.plans_s, meter.evaluation_s).runs(work.budget.solved, FEWEST))
        searched = search(
            work.graph,
            self.profile,
            self._studied,
            limits,
            meter,
            self.evidence,
            rounds=rounds,
            effort=work.effort,
            progress=work.progress,
        )
        self.evidence = searched.evidence
        self.error = corrected(self._studied, work.graph, self.evidence, self.place.bound)
        return searched.tried


def _as_run(name: str) -> str:
    """The name of a finalist's run in a profile, where float has its own."""
    return name if name == FLOAT_RUN else f"finalist {name}"


def _may_gain(work: Work, tried: Sequence[Tried]) -> bool:
    """Whether a plan is predicted to be faster than float by more than the budget's least gain. If none is, timing
    plans would only measure noise."""
    holding = [plan.predicted_s for plan in tried if plan.holds]
    floats = [plan.predicted_s for plan in tried if plan.name == FLOAT_RUN]
    return not floats or min(holding) <= (1.0 - work.budget.gain) * floats[0]


def meters(
    work: Work, profile: Profile, limits: Limits, inputs: int = 0
) -> tuple[ErrorMeter, Callable[[], ErrorMeter]]:
    """Two meters of a plan's error: one for searching, on as many held-out inputs as the budget has for that, or as
    many `inputs` as were studied, but as many as the metrics need; and what makes the one on all inputs (the same meter
    if those are all)."""
    work = work.settled(profile.scheme)
    switchable = work.switchable(profile.scheme)
    limit = inf if limits.max_error is None else limits.max_error
    fewest = max(map(fewest_samples, [parse_metric(work.setup.metric), *(bound.metric for bound in limits.also)]))
    verify_s = work.budget.verify_s
    count = work.within(verify_s).runs(max(work.budget.verify_inputs, inputs), fewest)
    first = work.meter(switchable, count, limits.also, limit)
    if first.evaluation_s > 2.0 * verify_s:  # reading the outputs takes long
        each_s = first.evaluation_s / first.samples
        first = work.meter(switchable, Effort(verify_s, each_s).runs(first.samples, fewest), limits.also, limit)
    if first.samples == len(work.data.held_out.samples):
        return first, lambda: first
    return first, cache(lambda: work.meter(switchable, None, limits.also, limit))
