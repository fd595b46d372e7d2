"""The plan stage: solve, measure errors, race, refine the tables, solve and race again. Writes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taglio.error.model import ErrorModel
from taglio.errors import BadData, BadModel, Infeasible, MeasurementFailed, TaglioError
from taglio.lab.side_by_side import race
from taglio.lab.work import Work, require_own
from taglio.plan.result import Interval, Limits, Plan
from taglio.plan.tables import Tables
from taglio.profile.busy import doubt
from taglio.profile.measure import FLOAT_RUN, pure_assignments
from taglio.profile.result import Profile
from taglio.progress import Progress
from taglio.runtimes.onnxruntime import NAME
from taglio.search.answers import answers, source_answers
from taglio.search.explore import FEWEST, PlaceSearch, meter_of
from taglio.search.finalists import Verdict, as_predicted, as_profiled, float_in, judge, on_one_scale
from taglio.search.ledger import INT8_RUN, PLAIN, Answers, Entry, Ledger, Measurement, Places
from taglio.search.limits import Bounds, infeasible, limits_for, user_limits
from taglio.search.places import studied
from taglio.search.search import best, least_error
from taglio.search.unseen import Rejected


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The `plan`, its entry `winner` in the `ledger` of all that was tried, and the `profile` and `error` model as the
    results refined them (None: errors were not studied, because no plan can gain).

    The search measured errors on `inputs` held-out inputs. `candidates` is how many plans were measured on the unseen
    inputs; those that were `rejected` there are faster than the plan. `source` is the source model where another one is
    planned instead.
    """

    plan: Plan
    winner: Entry
    ledger: Ledger
    profile: Profile
    error: ErrorModel | None
    inputs: int
    rejected: tuple[Rejected, ...] = ()
    candidates: int = 0
    source: Entry | None = None

    @property
    def answers(self) -> Answers:
        """The answers of the plan."""
        assert self.winner.answers is not None, "a plan is accepted by its answers"
        return self.winner.answers

    def tables(self, work: Work) -> Tables:
        """The refined tables, of the blocks of `work` that the scheme can quantise."""
        return Tables(work.settled(self.profile.scheme).graph, self.profile, self.error)

    def of(self, work: Work, entry: Entry) -> "Decision":
        """The same with another entry as the winner."""
        return replace(self, winner=entry, plan=_chosen(work, entry, self.ledger))

    def accepting(self, work: Work, entry: Entry) -> "Decision | None":
        """The same with another entry as the winner, if it runs on all held-out inputs and is accepted there."""
        answer, candidates, limits = entry.answers, self.candidates, self.plan.limits
        if answer is None:
            try:
                answer = answers(work, entry.plan, limits)
            except (BadData, BadModel):
                return None
            candidates += answer.unseen is not None and answer.keeps(limits)
        accepted = replace(entry, answers=answer).with_error(answer.judged, holds=answer.accepted(limits))
        if not (entry.holds and accepted.holds):
            return None
        return replace(self, ledger=self.ledger.having(accepted), candidates=candidates).of(work, accepted)

    def doubt(self) -> str | None:
        """A warning if the machine was busy while the profile or the finalists were timed."""
        return doubt(max(self.ledger.others, self.profile.conditions.others))


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
    effort: float = 1.0,
    progress: Progress | None = None,
) -> Plan:
    """The fastest plan that keeps the limits on held-out inputs: `max_error`, `min_score` and `max_drop`, as in
    `taglio.optimize`.

    The finalists are timed beside float and all int8, as in `taglio.optimize`. `keep_float` and `force_int8` are name
    patterns of blocks. Raises Infeasible if no plan keeps the limit.

    >>> plan = taglio.plan_model(model, profile, error, max_error=0.02, effort=0.02)
    >>> plan.measured_error <= 0.02
    True
    """
    require_own(work, profile=profile, error=error)
    work = work.telling(progress).at(effort).settled(profile.scheme)
    wanted = user_limits(max_error, min_score, max_drop)
    limits = limits_for(work, wanted, keep_float, force_int8)
    measured = {profile.conditions.runtime: profile}
    return decide(work, measured, error, limits).plan


def decide(
    work: Work,
    measured: Mapping[str, Profile],
    model: ErrorModel,
    limits: Limits,
    *,
    places: Places | None = None,
) -> Decision:
    """Plan in each place that was `measured`, race the plans, and take the fastest of all places that is accepted.

    `places` has the results of the float model in every place; None stands for the measured places, in which the float
    model then counts as exact. Raises Infeasible if no plan is accepted.
    """
    places = places or Places(tuple(Measurement(place, FLOAT_RUN) for place in measured))
    first = next(iter(measured.values()))
    work = work.settled(first.scheme).in_place(next(iter(places.errors)))
    meter = meter_of(work.in_place(studied(measured)), first, limits, model.samples)
    searches: dict[str, PlaceSearch] = {}
    refusals: list[TaglioError] = []
    for place, profile in measured.items():
        try:
            search = PlaceSearch(work.in_place(place), profile, model, limits, places.errors[place], meter)
            search.explore()
            searches[place] = search
        except (Infeasible, BadData, BadModel, MeasurementFailed) as error:
            refusals.append(error)
    if not searches:
        raise refusals[0]
    again_s = FEWEST * meter.evaluation_s

    def ledger() -> Ledger:
        return on_one_scale({place: search.ledger for place, search in searches.items()}, places)

    def search_again(place: str, room: float, is_needed: bool) -> Ledger | None:
        is_worth_it = place in searches and (is_needed or again_s <= work.budget.plans_s)
        return ledger() if is_worth_it and searches[place].search_again(room) else None

    judged = judge(work, ledger(), limits, search_again)
    search = searches.get("" if judged.winner is None else judged.winner.runtime, next(iter(searches.values())))
    return decision_of(work, judged, search.profile, search.error, meter.samples)


def float_stays(work: Work, profile: Profile, int8_error: float, limits: Limits, places: Places) -> Decision:
    """The decision where no mix of forms can be faster than float: the fastest float model of all places. `profile` has
    float and all int8, whose error is `int8_error`. Raises Infeasible if even float breaks a limit."""
    work = work.settled(profile.scheme)
    pure, place = pure_assignments(work.graph, profile.precisions), profile.conditions.runtime
    timed, entries = {run.name for run in profile.runs}, list[Entry]()
    for name, assignment, error in ((FLOAT_RUN, {}, places.errors[place]), (INT8_RUN, pure[INT8_RUN], int8_error)):
        if name not in timed or (name == INT8_RUN and not assignment):
            continue
        plan = Tables(work.graph, profile).describe(limits, assignment)
        plan = replace(plan, predicted_error=Interval(0.0, error, error), measured_error=error)
        entries.append(Entry(plan, error, error <= limits.allowed_error, name))
    by_name = {entry.key: entry for entry in as_profiled(profile, entries)}
    return _among(work, profile, {place: Ledger(by_name, place, profile.conditions.others)}, limits, places)


def best_so_far(
    work: Work,
    profile: Profile,
    tried: Mapping[str, Ledger],
    limits: Limits,
    places: Places,
) -> Decision:
    """The decision among float, all int8 and the best plan that was `tried` in each place, by their predicted times,
    for a search that was stopped."""
    by_place = {}
    for place, ledger in tried.items():
        solved = [entry for entry in ledger.entries.values() if entry.solved and entry.name not in PLAIN]
        plain = [entry for entry in ledger.entries.values() if entry.name in PLAIN]
        some = [*plain, *(replace(entry, name="plan 1") for entry in best(solved, 1))]
        entries = {entry.key: as_predicted(entry) for entry in some}
        by_place[place] = replace(ledger, entries={**ledger.entries, **entries})
    return _among(work.settled(profile.scheme), profile, by_place, limits, places)


def _among(
    work: Work,
    profile: Profile,
    by_place: Mapping[str, Ledger],
    limits: Limits,
    places: Places,
) -> Decision:
    """The decision among finalists of each place, without a study of errors."""
    work = work.in_place(next(iter(places.errors)))
    judged = judge(work, on_one_scale(by_place, places), limits)
    return decision_of(work, judged, profile, None, len(work.data.held_out.samples))


def decision_of(work: Work, judged: Verdict, profile: Profile, error: ErrorModel | None, inputs: int) -> Decision:
    """The decision for the winner of a race. Raises Infeasible if no finalist holds."""
    ledger, winner = judged.ledger, judged.winner
    if winner is None:
        limits = ledger.float32.plan.limits
        parts = [part for entry in ledger.raced if entry.answers for part in entry.answers.parts]
        losses = [f"{part.name} {part.lost}" for part in parts if part.lost]
        needed = [plan.needed for plan in judged.rejected] or [least_error(work.graph, limits, ledger.raced).error]
        raise infeasible(limits, min(needed), next(iter(losses), ""), work.agreement.remark)
    return Decision(
        plan=_chosen(work, winner, ledger),
        winner=winner,
        ledger=ledger,
        profile=profile,
        error=error,
        inputs=inputs,
        rejected=judged.rejected,
        candidates=judged.candidates,
        source=_source(work, ledger),
    )


def _source(work: Work, ledger: Ledger) -> Entry | None:
    """The source, timed in ONNX Runtime beside the float model that is planned instead of it; None if the source itself
    is planned."""
    source, limits = work.replaced, ledger.float32.plan.limits
    if source is None:
        return None
    raced = race(
        work,
        {"source": lambda: source.proto, FLOAT_RUN: lambda: work.model.proto},
        work.budget.refine_s,
        places={"source": NAME, FLOAT_RUN: work.setup.options().runtime},
    )
    times = raced.all()
    wall = times["source"].wall.times(ledger.float32.measured_s / times[FLOAT_RUN].wall.median_s)
    answered = source_answers(work, limits)
    return replace(float_in(NAME, ledger.float32, answered.error, wall), answers=answered)


def _chosen(work: Work, winner: Entry, ledger: Ledger) -> Plan:
    """The winner's plan with its measured results."""
    chosen = replace(winner.plan, measured_error=winner.error, shapes=work.measured_shapes)
    if winner.solved:
        return chosen
    solved = [entry for entry in ledger.entries.values() if entry.solved and entry.runtime == chosen.runtime]
    # On a busy machine the savings at boundaries may add up to the whole time: that predicts nothing.
    fastest = best([entry for entry in solved if entry.predicted_s > 0.0], 1)
    gap = chosen.predicted_latency_s.value / fastest[0].predicted_s - 1.0 if fastest else 0.0
    return replace(chosen, gap=max(0.0, gap))
