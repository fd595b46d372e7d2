"""Planning in one place: solve, measure errors, race the plans, refine the tables, solve and race again.

A plan's prediction depends on the layouts that its kernels use, and the random mixes of the profile are far from it.
So plans are raced, and the profile is refined around the fastest. Plans by simple rules are raced too: where the tables
are wrong, the clock shows it. Whether a plan is truly faster than float is for confirm.py to say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf

from taglio.error.correct import corrected
from taglio.error.judge import fewest_samples
from taglio.error.loss import parse_metric
from taglio.error.measure import ErrorMeter, Evidence
from taglio.error.model import ErrorModel
from taglio.errors import BadModel, Infeasible
from taglio.flow.answers import judged_on
from taglio.flow.as_built import AsBuilt, unsure
from taglio.flow.build import quantized
from taglio.flow.finalists import PLAIN, Raced, fastest_of, finalists, in_pure_forms
from taglio.flow.limits import infeasible
from taglio.flow.rules import by_rules
from taglio.flow.search import Tried, keeps_pins, key_of, predicted_by, search, unsolved
from taglio.flow.side_by_side import race
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
# Errors of plans that are raced are measured if that takes no longer than this.
_JUDGED_S = 30.0


class Explored:
    """What is found in one place: its tables, which measurements refine, the plans tried, and all races in it, on one
    scale. `profile` is refined around the fastest plan, and `error` corrected by what was measured.

    `base` is the error of the float model in the place that `work` is set up for, `meters` are those of the function of
    this name.
    """

    def __init__(
        self,
        work: Work,
        profile: Profile,
        error: ErrorModel,
        limits: Limits,
        base: float,
        meters: tuple[ErrorMeter, Callable[[], ErrorMeter]],
    ) -> None:
        self.work, self.profile, self.error = work, profile, error
        self.meter, self._full = meters
        self.place = AsBuilt(limits, base)
        self._studied, self._limits = error, limits
        self._evidence = list[Evidence]()
        self._tried = list[Tried]()
        self._plans, self._walls = dict[str, Tried](), dict[str, WallTime]()
        self._refused = set[object]()
        self._others = 0.0

    @property
    def tried(self) -> list[Tried]:
        """The plans tried, as expected in this place."""
        return [self.place.deployed(plan) for plan in self._predicted(self._tried)]

    @property
    def raced(self) -> Raced:
        """The races of the best plans beside float, or float and all int8 as they were profiled."""
        if not self._plans:
            return in_pure_forms(self.profile, self.tried)
        plans = [self.place.deployed(plan) for plan in self._predicted([*self._plans.values()])]
        return Raced(dict(zip(self._plans, plans, strict=True)), self._walls, self._others)

    @property
    def may_gain(self) -> bool:
        """Whether a plan is predicted to be faster than float by more than the budget's least gain. If none is, timing
        plans would only measure noise."""
        holding = [plan.predicted_s for plan in self._tried if plan.holds]
        floats = [plan.predicted_s for plan in self._tried if plan.name == FLOAT_RUN]
        return not floats or min(holding) <= (1.0 - self.work.budget.gain) * floats[0]

    @property
    def most(self) -> int:
        """How many plans to race: one beside float and all-int8 of any model, however slow or large."""
        work = self.work
        return max(len(PLAIN) + 1, work.within(work.budget.refine_s).models())

    def explore(self) -> None:
        """Plan, and race what may be fastest. Raises Infeasible if no plan holds.

        Raises BadModel if float or all-int8 does not run.
        """
        self.plan()
        # What is delivered if the search is stopped from here on.
        self.work.kept.put(("tried", self.profile.conditions.runtime), self.tried)
        if self.profile.interval_ratio > UNSURE or self.may_gain:
            self.race_and_refine()

    def plan(self) -> None:
        """Try float, all-int8, plans by simple rules and by the search. If nothing holds on the inputs of the meter,
        all inputs decide. Raises Infeasible if nothing holds there either."""
        try:
            self._tried = self._searched()
        except Infeasible:
            if not self._use_all_inputs():
                raise
            self._tried = self._searched()

    def search_again(self, room: float) -> bool:
        """Plan again within the share `room` of the limit, with errors on all inputs, and race what is new. False if
        there is nothing new to measure."""
        if not self._use_all_inputs() and room == 1.0:
            return False
        before = [] if self._plans else self._tried
        limits = self.place.within()
        solved = self._solved(replace(limits, max_error=room * self.place.bound), self.work.budget.solved)
        self._tried = [*self._tried, *solved]
        if new := finalists(self._able([*before, *solved]), but=[*self._plans.values()], most=self.most):
            self._race(new, kernels=False)
        return bool(new)

    def race_and_refine(self) -> None:
        """Race the best plans, refine the tables by their kernels, and race what is then predicted to be faster."""
        timed = self._race(finalists(self._tried, most=self.most))
        self._tried = self._able(self._tried)
        leader = self._plans[fastest_of(self._plans, self._walls)]
        self.place.follow(leader)
        if all(run.kernels for run in timed.values()):
            self._refine(timed, leader)
            (leader,) = self._predicted([leader])
            new = finalists(self._able(self._tried), but=[*self._plans.values()])
            if faster := {name: plan for name, plan in new.items() if plan.predicted_s < leader.predicted_s}:
                self._race(faster, kernels=False)

    def _use_all_inputs(self) -> bool:
        """Measure errors on all inputs from here on; False if that was so before."""
        if self._full() is self.meter:
            return False
        self.meter, self._evidence = self._full(), []
        return True

    def _searched(self) -> list[Tried]:
        """Plans with their measured errors. Raises Infeasible if none holds."""
        work, meter, limits = self.work, self.meter, self.place.within()
        tried = list[Tried]()
        for name, assignment in by_rules(work.graph, self.profile, limits).items():
            measured = meter.evidence(assignment) if assignment else Evidence({}, 0.0, 0.0, {})
            self._evidence.append(measured)
            plan = unsolved(name, work.graph, self.profile, self.error, limits, measured)
            tried.append(replace(plan, holds=plan.holds and keeps_pins(work.graph, limits, plan.plan)))
        tried = [*self._solved(limits, work.budget.solved), *tried]
        if not any(plan.holds for plan in tried):
            least = min(tried, key=lambda plan: plan.error)
            lost = "" if least.error < inf else meter.tally(least.assignment).lost()
            raise infeasible(limits, least.error, lost)
        return tried

    def _race(self, chosen: Mapping[str, Tried], *, kernels: bool = True) -> dict[str, Timed]:
        """Race the `chosen` plans beside float, and measure the errors of those that may hold as they are built: the
        times of those that ran, and of float. Kernels are timed too unless that takes too long. Raises BadModel or
        BadData if float or all-int8 does not run."""
        work, place, count = self.work, self.place, self.meter.samples
        models = {FLOAT_RUN: partial(work.builder(self.profile.scheme).build, {})}
        models |= {_as_run(name): partial(quantized, work, plan.plan) for name, plan in chosen.items()}
        unknown = [_as_run(name) for name, plan in chosen.items() if unsure(place.deployed(plan), self._limits)]
        is_affordable = len(chosen) <= work.within(work.budget.refine_s).models()
        raced = race(
            work,
            models,
            work.budget.refine_s,
            kernels=kernels and is_affordable,
            error_of=judged_on(work, self._limits, count),
            judged=unknown if work.setup.run_s * count * len(unknown) <= _JUDGED_S else (),
        )
        for name, plan in chosen.items():
            result = raced[_as_run(name)]
            if result.refused and name == "int8":
                raise BadModel(result.refused)
            if result.refused:
                self._refused.add(key_of(plan.assignment))
            place.note(plan, result.error or 0.0)
        timed = {name: run for name in (FLOAT_RUN, *chosen) if (run := raced[_as_run(name)].timed) is not None}
        ran = {name: plan for name, plan in chosen.items() if name in timed}
        scale = self._walls[FLOAT_RUN].median_s / timed[FLOAT_RUN].wall.median_s if self._walls else 1.0
        self._walls |= {name: run.wall.times(scale) for name, run in timed.items() if name not in self._walls}
        self._plans |= zip(ran, place.judged(work.graph, [*ran.values()]), strict=True)
        self._others = max([self._others, *(run.others for run in timed.values())])
        return timed

    def _able(self, tried: Sequence[Tried]) -> list[Tried]:
        """Of the plans `tried`, those that were not refused in a race."""
        return [plan for plan in tried if key_of(plan.assignment) not in self._refused]

    def _refine(self, timed: Mapping[str, Timed], leader: Tried) -> None:
        """Refine the tables by the kernels of a race, around its `leader`. Plans are judged and predicted by them, and
        searched again."""
        work = self.work
        runs = {_as_run(name): (plan.assignment, timed[name]) for name, plan in self._plans.items()}
        runs |= {FLOAT_RUN: ({}, timed[FLOAT_RUN])}
        self.profile = refine(work.model, work.graph, self.profile, runs, near=leader.assignment)
        judged = self.place.judged(work.graph, self._tried)
        judged += self._solved(self.place.within(), work.budget.solved_again)
        self._tried = self._predicted(judged)

    def _predicted(self, tried: Sequence[Tried]) -> list[Tried]:
        """Plans as the tables predict them now."""
        return predicted_by(self.profile, self.error, self.work.graph, tried)

    def _solved(self, limits: Limits, rounds: int) -> list[Tried]:
        work, meter = self.work, self.meter
        rounds = min(rounds, Effort(work.budget.plans_s, meter.evaluation_s).runs(work.budget.solved, FEWEST))
        searched = search(
            work.graph,
            self.profile,
            self._studied,
            limits,
            meter,
            self._evidence,
            rounds=rounds,
            effort=work.effort,
            progress=work.progress,
        )
        self._evidence = searched.evidence
        self.error = corrected(self._studied, work.graph, self._evidence, self.place.bound)
        return searched.tried


def _as_run(name: str) -> str:
    """The name of a finalist's run in a profile, where float has its own."""
    return name if name == FLOAT_RUN else f"finalist {name}"


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
