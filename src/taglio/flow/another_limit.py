"""Build a finished workspace for another limit: the fastest plan that keeps it, of those that were tried and those that
the tables allow. Times nothing but the race that confirms it.

Times of plans that were tried are those of the search, all on one scale. A plan that was not timed is assumed to be off
its prediction by the same factor as the timed ones in its place; it takes part in the race beside the fastest one that
was timed. Errors are measured again: on the inputs of the search for a new plan, and on all held-out inputs for the
candidates, fastest first, until one is accepted as `optimize` accepts it.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median

from taglio.error.loss import Bound, parse_metric
from taglio.error.runtime_part import left_for_int8
from taglio.errors import BadArtifact, BadOption
from taglio.flow import notes, workspace
from taglio.flow.clock import Clock
from taglio.flow.ending import Ended, by_race
from taglio.flow.outcome import Outcome
from taglio.flow.outcome_of import outcome_of
from taglio.flow.result import Result, result_of
from taglio.flow.workspace import ERROR, OUTCOME
from taglio.lab.build import assemble
from taglio.lab.work import Work
from taglio.plan.one_machine import make_plan
from taglio.plan.result import Interval, Limits
from taglio.plan.tables import Tables
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.wall_time import WallTime
from taglio.progress import Progress
from taglio.search.as_built import AsBuilt, shifted
from taglio.search.decide import Decision, decision_of
from taglio.search.explore import meters
from taglio.search.finalists import judge
from taglio.search.front import Point
from taglio.search.ledger import PLAIN, Entry, Key, Ledger
from taglio.search.limits import UserLimit
from taglio.search.search import keeps_pins, search, solve_s

# Plans that are solved and measured, and the share of a solve's usual time: a user waits for half a minute in all.
_SOLVED, _SOLVING = 3, 0.3


def for_another_limit(folder: Path, wanted: Sequence[UserLimit], progress: Progress | None = None) -> Result:
    """The result for the limits that are `wanted`, from the workspace `folder`; other limits of its run stay.

    Raises BadArtifact for a workspace that `optimize` did not write, BadOption for a limit that it has no measurements
    for, and Infeasible if no plan keeps the limits.
    """
    clock = Clock(1.0, inf)
    before = _outcome_in(folder)
    work, profile = workspace.reopen_profiled(folder)
    scheme = work.setup.scheme
    error = workspace.read_error(folder, work, profile) if (folder / f"{ERROR}.json").exists() else None
    limits = _relimited(workspace.read_plan(folder, work, profile).limits, wanted)
    work = work.telling(progress)
    clock.lap("load")
    tables = Tables(work.graph, profile, error)
    known = _KnownPlans(work, tables, limits, before)
    tried, guessed = known.tried(), known.guessed()
    guessed += known.planned([*tried, *guessed])
    work, first = work.in_place(before.float32.runtime), before.float32.runtime
    ledger = Ledger({entry.key: entry for entry in (*tried, *guessed)}, first)
    decision = decision_of(work, judge(work, ledger, limits), profile, error, before.search_samples)
    keys = {entry.key for entry in guessed}
    clock.lap("plan")
    ended = by_race(work, decision, limits, clock.patience(), _timed_rival(decision, keys))
    ended = _with_measured_times(ended, keys)
    clock.lap("confirm")
    built = assemble(work, ended.decision.plan)
    clock.lap("build")
    decision = ended.decision
    outcome = replace(
        _with_search(outcome_of(ended, built), before),
        stage_seconds=dict(clock.laps),
        notes=(*ended.notes, *notes.of_plan(work, decision, built, limits), *before.search_notes),
    )
    return result_of(work, scheme, tables, decision.plan, built, outcome)


def _outcome_in(folder: Path) -> Outcome:
    outcome = workspace.load_if_present(folder, OUTCOME, Outcome)
    if outcome is None:
        raise BadArtifact(
            f"{folder / OUTCOME}.json: is missing, and another limit needs what taglio optimize measured: run it, or "
            "taglio plan with this limit and then taglio build without one"
        )
    if outcome.rate is not None:
        raise BadOption("this plan was chosen for a rate, which no race of runs confirms: run taglio optimize again")
    return outcome


def _relimited(limits: Limits, wanted: Sequence[UserLimit]) -> Limits:
    """`limits` with the values that are `wanted`, as losses. Raises BadOption for a metric that was not limited."""
    for limit in wanted:
        name = parse_metric(limit.metric).name if limit.metric else limits.metric.name
        metrics = {metric.name: metric for metric in (limits.metric, *(bound.metric for bound in limits.also))}
        if name not in metrics:
            raise BadOption(
                f"`{limit.argument}` limits {name}, which was not measured: limit {' or '.join(metrics)}, or run "
                "taglio optimize again"
            )
        most = metrics[name].bound(limit.argument, limit.value)
        if name == limits.metric.name:
            limits = replace(limits, max_error=most)
        also = tuple(Bound(bound.metric, most) if bound.metric.name == name else bound for bound in limits.also)
        limits = replace(limits, also=also)
    return limits


class _KnownPlans:
    """What a workspace knows of plans, under other `limits`. `bases` are the errors of the float model by place."""

    def __init__(self, work: Work, tables: Tables, limits: Limits, before: Outcome) -> None:
        self._work, self._tables, self._limits, self._before = work, tables, limits, before
        floats = [point for point in before.points if point.name == FLOAT_RUN and point.error is not None]
        self.bases = {point.runtime: point.error or 0.0 for point in floats}
        # Predictions of points are at the speed of the races, those of the tables at that of the profile.
        here = [point for point in floats if point.runtime == tables.profile.conditions.runtime and point.predicted_s]
        self._drift = (here[0].predicted_s or 0.0) / tables.float_s if here and tables.float_s > 0.0 else 1.0

    def tried(self) -> list[Entry]:
        """The plans that were timed."""
        points = [(point, point.latency) for point in self._before.points]
        return [self._entry(point, wall) for point, wall in points if wall is not None]

    def guessed(self) -> list[Entry]:
        """The plans that were not timed, with the times to expect of them."""
        points = [point for point in self._before.points if point.latency is None]
        walls = [(point, self._guess(point.runtime, point.predicted_s)) for point in points]
        return [self._entry(point, wall) for point, wall in walls if wall is not None]

    def planned(self, others: Sequence[Entry]) -> list[Entry]:
        """New plans, with the times to expect of them."""
        names = [point.name for point in self._before.points if point.name.startswith("plan ")]
        first = 1 + max((int(name.removeprefix("plan ")) for name in names), default=0)
        new = [(entry, self._guess(entry.runtime, self._drift * entry.predicted_s)) for entry in self._solved(others)]
        timed = [(entry, wall) for entry, wall in new if wall is not None]
        return [replace(entry, name=f"plan {number}", wall=wall) for number, (entry, wall) in enumerate(timed, first)]

    def _guess(self, runtime: str, predicted_s: float | None) -> WallTime | None:
        """The time to expect from a prediction; None where no prediction was compared with a measurement."""
        ratios = [
            point.measured_s / point.predicted_s
            for point in self._before.points
            if point.runtime == runtime and point.measured_s and point.predicted_s
        ]
        if not ratios or not predicted_s:
            return None
        seconds = median(ratios) * predicted_s
        return WallTime(seconds, 0.0, seconds, seconds, 1, seconds)

    def _entry(self, point: Point, wall: WallTime) -> Entry:
        """A plan that was tried, under the limits."""
        limits, profile = self._limits, self._tables.profile
        forms = {precision.name: precision for precision in profile.precisions}
        assignment = {block: forms[form] for block, form in point.forms.items()}
        plan = self._tables.describe(limits, assignment)
        error = inf if point.error is None else point.error
        expected = Interval(0.0, point.error or 0.0, point.error or 0.0, 0.0)
        if self._tables.error is not None:
            expected = shifted(plan.predicted_error, self.bases.get(point.runtime, 0.0))
        seconds = plan.predicted_latency_s
        if point.runtime != profile.conditions.runtime:
            value = (point.predicted_s or point.measured_s or 0.0) / self._drift
            seconds = Interval(value, value, value, 0.0)
        plan = replace(
            plan,
            runtime=point.runtime,
            predicted_latency_s=seconds,
            predicted_error=expected,
            measured_error=point.error,
        )
        holds = limits.max_error is None or error <= limits.max_error
        holds = holds and keeps_pins(self._work.graph, limits, plan)
        is_solved = point.name not in PLAIN
        return Entry(plan, error, holds, point.name, is_solved, point.error, wall=wall)

    def _solved(self, others: Sequence[Entry]) -> list[Entry]:
        """Plans that the tables predict to be faster than the `others` in the same place, with measured errors."""
        work, limits, error = self._work, self._limits, self._tables.error
        place = self._tables.profile.conditions.runtime
        base = self.bases.get(place, 0.0)
        if error is None or limits.max_error is None or base >= limits.max_error or not work.graph.choices():
            return []
        within = replace(limits, max_error=left_for_int8(limits.max_error, base))
        there = [entry for entry in others if entry.runtime == place]
        best_s = min((entry.predicted_s for entry in there if entry.holds), default=inf)
        plan = make_plan(self._tables, within, time_limit_s=solve_s(_SOLVING))
        if plan.status == "infeasible" or plan.predicted_latency_s.value > (1.0 - work.budget.gain) * best_s:
            return []
        meter, _ = meters(work, self._tables.profile, limits, error.samples)
        solved = search(self._tables, within, meter, rounds=_SOLVED, effort=_SOLVING, progress=work.progress)
        as_built, tried = AsBuilt(limits, base), {entry.forms for entry in there}
        return [as_built.deployed(entry) for entry in solved if entry.holds and entry.forms not in tried]


def _timed_rival(decision: Decision, guessed: Collection[Key]) -> list[Entry]:
    """The fastest plan that was timed, if the winner was not: a race must show which of the two is faster."""
    out = {*guessed, decision.ledger.float32.key}
    if decision.winner.key not in guessed:
        return []
    return [entry for entry in decision.ledger.holding if entry.key not in out][:1]


def _with_search(outcome: Outcome, before: Outcome) -> Outcome:
    """An outcome with what the search found that `before` is from: the places that are out, notes, schemes, forms."""
    names = {(point.name, point.runtime) for point in outcome.points}
    others = tuple(point for point in before.points if (point.name, point.runtime) not in names)
    return replace(
        outcome,
        points=outcome.points + others,
        search_notes=before.search_notes,
        schemes=before.schemes,
        forms=before.forms,
        doubt=outcome.doubt or before.doubt,
    )


def _with_measured_times(ended: Ended, guessed: Collection[Key]) -> Ended:
    """The same without times that were `guessed`; that of the winner follows from the race."""
    decision, winner = ended.decision, ended.decision.winner
    ledger = decision.ledger.having(
        *(replace(decision.ledger.entries[key], wall=None) for key in guessed if key != winner.key)
    )
    if winner.key in guessed and winner.wall is not None and ended.speedup is not None:
        seconds = ledger.float32.measured_s / ended.speedup.ratio
        winner = replace(winner, wall=winner.wall.times(seconds / winner.measured_s))
        ledger = ledger.having(winner)
    return replace(ended, decision=replace(decision, ledger=ledger, winner=winner))
