"""Planning in one place: solve, measure errors, race the plans, refine the tables, solve and race again.

The latency of a plan depends on the layouts that its kernels use, and the random mixes of the profile may use others.
So plans are raced, and the profile is refined around the fastest. Plans by simple rules are raced too: they are fast
where the tables are wrong. A race of its own decides whether a plan is faster than float (flow/confirm.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf

from taglio.error.correct import corrected
from taglio.error.judge import fewest_samples
from taglio.error.loss import parse_metric
from taglio.error.measure import ErrorMeter
from taglio.error.model import ErrorModel
from taglio.error.runtime_part import left_for_int8, together
from taglio.errors import BadModel, Infeasible
from taglio.lab.build import quantized
from taglio.lab.side_by_side import race
from taglio.lab.work import Work
from taglio.plan.result import Interval, Limits
from taglio.plan.tables import Tables
from taglio.profile.effort import Effort
from taglio.profile.measure import FLOAT_RUN, refine
from taglio.profile.result import Profile
from taglio.profile.stopwatch import Timed
from taglio.quantize.precision import Assignment, Forms
from taglio.search.finalists import as_profiled, finalists
from taglio.search.ledger import INT8_RUN, PLAIN, Entry, Ledger
from taglio.search.limits import infeasible
from taglio.search.rules import by_rules
from taglio.search.search import from_rule, least_error, predicted_by, search

# The least number of solved plans whose errors are measured.
FEWEST = 3
# Predictions that may be off by more than this share exclude no plan.
UNSURE = 0.1


class PlaceSearch:
    """The search in one place: its tables, which measurements refine, and the plans that were tried. The times of all
    its races are on one scale. Races refine `profile` around the fastest plan, and measured errors correct `error`.

    `base` is the error of the float model in the place of `work`. Errors add up as vectors do, so the rest of the limit
    is for the forms (error/runtime_part.py). `meter` measures the errors of plans.
    """

    def __init__(
        self,
        work: Work,
        profile: Profile,
        error: ErrorModel,
        limits: Limits,
        base: float,
        meter: ErrorMeter,
    ) -> None:
        self.work, self.profile, self.error, self._meter = work, profile, error, meter
        assert limits.max_error is not None, "a search keeps a limit"
        self._limits, self._base = limits, base
        self._bound = left_for_int8(limits.max_error, base)
        self._studied = error
        self._entries = dict[Forms, Entry]()
        self._others = 0.0

    @property
    def ledger(self) -> Ledger:
        """The plans that were tried, with the errors to expect in this place. If none was raced, float and all int8
        have the times of the profile."""
        entries = [self._deployed(self._predicted(entry)) for entry in self._entries.values()]
        others = self._others
        if not self._raced:
            entries, others = as_profiled(self.profile, entries), self.profile.conditions.others
        named = [
            entry if entry.name else replace(entry, name=f"tried {number}") for number, entry in enumerate(entries, 1)
        ]
        return Ledger({entry.key: entry for entry in named}, self.profile.conditions.runtime, others)

    @property
    def most(self) -> int:
        """How many plans to race, float and all int8 included: at least one more than these, however slow or large the
        model is."""
        work = self.work
        return max(len(PLAIN) + 1, work.within(work.budget.refine_s).models())

    def explore(self) -> None:
        """Solve plans and measure their errors, race the best, refine the tables by their kernels, solve again, and
        race the plans that are now predicted to be faster. Raises Infeasible if no plan keeps the limits, and BadModel
        if float or all int8 does not run."""
        work, budget = self.work, self.work.budget
        self._try_rules()
        self._solve(budget.solved)
        if not self._holding:
            raise self._infeasible()
        # If the search is stopped from here on, the best of these plans is delivered.
        work.kept.put(("tried", self.profile.conditions.runtime), self.ledger)
        if self.profile.interval_ratio <= UNSURE and not self._may_gain():
            return
        runs = self._race(finalists(self._entries.values(), most=self.most))
        holding = [entry for entry in self._raced if entry.holds]
        if not holding:  # the runtime refused all plans that keep the limits
            return
        leader = min(holding, key=lambda entry: entry.measured_s)
        if not all(timed.kernels for _, timed in runs.values()):
            return
        self.profile = refine(work.model, work.graph, self.profile, runs, near=leader.assignment)
        self._solve(budget.solved_again)
        self._entries = {forms: self._predicted(entry) for forms, entry in self._entries.items()}
        new = finalists(self._able, but=self._raced)
        leader_s = self._entries[leader.forms].predicted_s
        if faster := [entry for entry in new if entry.predicted_s < leader_s]:
            self._race(faster, kernels=False)

    def search_again(self, room: float) -> bool:
        """Plan again within the share `room` of the limit, and race the new plans. False if there are none."""
        raced = self._raced
        solved = {entry.forms for entry in self._solve(self.work.budget.solved, room)}
        new = [entry for entry in self._able if not raced or entry.forms in solved]
        if chosen := finalists(new, but=raced, most=self.most):
            self._race(chosen, kernels=False)
        return bool(chosen)

    @property
    def _raced(self) -> list[Entry]:
        return [entry for entry in self._entries.values() if entry.wall is not None]

    @property
    def _able(self) -> list[Entry]:
        """The plans that the runtime did not refuse in a race."""
        return [entry for entry in self._entries.values() if not entry.refused]

    @property
    def _within(self) -> Limits:
        """The limits of the forms alone, without the error that the place adds by itself."""
        return replace(self._limits, max_error=self._bound)

    @property
    def _holding(self) -> list[Entry]:
        return [entry for entry in self._entries.values() if entry.holds]

    def _try_rules(self) -> None:
        """Begin with float, all int8 and plans by simple rules."""
        tables, limits = Tables(self.work.graph, self.profile, self._studied), self._within
        self._entries = {}
        for name, assignment in by_rules(tables.graph, self.profile, limits).items():
            measured = self._meter.evidence(assignment)
            self._add(from_rule(name, tables, limits, measured))

    def _infeasible(self) -> Infeasible:
        """The error that says why no plan keeps the limits."""
        limits = self._within
        least = least_error(self.work.graph, limits, self._entries.values())
        lost = "" if least.error < inf else self._meter.tally(least.assignment).lost()
        return infeasible(limits, least.error, lost)

    def _may_gain(self) -> bool:
        """Whether a plan is predicted to be faster than float by more than the budget's least gain. If none is, timing
        plans would only measure noise."""
        floats = [entry.predicted_s for entry in self._holding if entry.name == FLOAT_RUN]
        fastest_s = min(entry.predicted_s for entry in self._holding)
        return not floats or fastest_s <= (1.0 - self.work.budget.gain) * floats[0]

    def _race(self, chosen: Sequence[Entry], *, kernels: bool = True) -> dict[str, tuple[Assignment, Timed]]:
        """Race the `chosen` plans beside float. Returns the runs of the plans that ran, under the names of runs in a
        profile. Kernels are timed too unless that takes too long. Raises BadModel or BadData if float or all int8 does
        not run."""
        work = self.work
        models = {FLOAT_RUN: partial(work.builder(self.profile.scheme).build, {})}
        models |= {_as_run(entry.name): partial(quantized, work, entry.plan) for entry in chosen}
        is_affordable = len(chosen) <= work.within(work.budget.refine_s).models()
        raced = race(work, models, work.budget.refine_s, kernels=kernels and is_affordable)
        float_run = raced.timed[FLOAT_RUN]  # the first model of a race is never refused
        before = [entry.measured_s for entry in self._raced if entry.name == FLOAT_RUN]
        scale = before[0] / float_run.wall.median_s if before else 1.0
        runs = dict[str, tuple[Assignment, Timed]]()
        for entry in chosen:
            name = _as_run(entry.name)
            if refused := raced.refused.get(name):
                if entry.name == INT8_RUN:
                    raise BadModel(refused)
                self._entries[entry.forms] = replace(entry, holds=False, refused=refused)
                continue
            timed = raced.timed[name]
            runs[name] = entry.assignment, timed
            self._entries[entry.forms] = replace(entry, wall=timed.wall.times(scale))
        self._others = max([self._others, float_run.others, *(timed.others for _, timed in runs.values())])
        return runs

    def _solve(self, rounds: int, room: float = 1.0) -> list[Entry]:
        """Solve and measure plans within the share `room` of the limit, and correct the error model."""
        work, meter = self.work, self._meter
        rounds = min(rounds, Effort(work.budget.plans_s, meter.evaluation_s).runs(work.budget.solved, FEWEST))
        solved = search(
            Tables(work.graph, self.profile, self._studied),
            replace(self._limits, max_error=room * self._bound),
            meter,
            rounds=rounds,
            effort=work.effort,
            progress=work.progress,
        )
        self.error = corrected(self._studied, work.graph, [*meter.measured.values()], self._bound)
        for entry in solved:
            self._add(entry)
        return [self._entries[entry.forms] for entry in solved]

    def _add(self, entry: Entry) -> None:
        """Add a plan that was tried. A plan that was raced keeps its measurements."""
        before = self._entries.get(entry.forms, entry)
        kept = before if before.wall is not None or (before.solved and not entry.solved) else entry
        name, solved = before.name or entry.name, before.solved or entry.solved
        self._entries[entry.forms] = replace(kept, name=name, solved=solved)

    def _predicted(self, entry: Entry) -> Entry:
        """A plan with the predictions of the present tables."""
        return predicted_by(Tables(self.work.graph, self.profile, self.error), entry)

    def _deployed(self, entry: Entry) -> Entry:
        """A plan of the search under the full limits, with the error to expect in this place: that of its forms
        together with `base`."""
        predicted = entry.plan.predicted_error
        ends = (together(end, self._base) for end in (predicted.low, predicted.value, predicted.high))
        plan = replace(entry.plan, limits=self._limits, predicted_error=Interval(*ends))
        return replace(entry, plan=plan).with_error(together(entry.error, self._base), holds=entry.holds)


def _as_run(name: str) -> str:
    """The name of a finalist's run in a profile, where float has its own."""
    return name if name == FLOAT_RUN else f"finalist {name}"


def meter_of(work: Work, profile: Profile, limits: Limits, inputs: int = 0) -> ErrorMeter:
    """The meter of plans' errors in the search. It uses as many held-out inputs as the budget has time for: at most its
    `verify_inputs`, or the number of `inputs` that were studied if that is larger, and at least as many as the metrics
    need. The winning plan is judged on all held-out inputs."""
    work = work.settled(profile.scheme)
    switchable = work.switchable(profile.scheme)
    limit = limits.allowed_error
    fewest = max(map(fewest_samples, [parse_metric(work.setup.metric), *(bound.metric for bound in limits.also)]))
    verify_s = work.budget.verify_s
    count = work.within(verify_s).runs(max(work.budget.verify_inputs, inputs), fewest)
    meter = work.meter(switchable, count, limits.also, limit)
    if meter.evaluation_s > 2.0 * verify_s:  # reading the outputs takes long
        each_s = meter.evaluation_s / meter.samples
        meter = work.meter(switchable, Effort(verify_s, each_s).runs(meter.samples, fewest), limits.also, limit)
    return meter
