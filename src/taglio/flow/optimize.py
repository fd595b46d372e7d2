"""The whole flow on one machine: profile, error, plan, build, time. Writes nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from taglio.arguments import positive
from taglio.cores import limited_to
from taglio.error.model import ErrorModel
from taglio.errors import BadOption
from taglio.flow import notes
from taglio.flow.clock import LEAST, Clock
from taglio.flow.confirm import Ended, confirmed
from taglio.flow.error import doubts_without_study, error_model, refuse_constant_outputs
from taglio.flow.fixed_shapes import fixed_shapes_note
from taglio.flow.opening import Model
from taglio.flow.outcome_of import outcome_of
from taglio.flow.profile import AUTO, profiles, read_scheme
from taglio.flow.rate import LATENCY, goal_of, rated
from taglio.flow.result import Result, result_of
from taglio.flow.stopping import STOPPED, TimeIsUp, Watched
from taglio.flow.threads import with_threads
from taglio.lab.build import assemble
from taglio.lab.work import Work
from taglio.notes import Kind, Note
from taglio.plan.result import Limits
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Profile
from taglio.progress import Progress
from taglio.quantize.scheme import Scheme
from taglio.search.decide import Decision, best_so_far, decide, float_stays
from taglio.search.ledger import INT8_RUN, Ledger
from taglio.search.limits import Bounds, limits_for, steered, user_limits
from taglio.search.places import studied
from taglio.search.screen import Screened, screen

# A race after Ctrl-C takes at most this.
_INTERRUPTED_S = 5.0


def optimize(
    model: Any,
    data: Any = None,
    *,
    max_error: Bounds | None = None,
    min_score: Bounds | None = None,
    max_drop: Bounds | None = None,
    keep_float: Sequence[str] = (),
    force_int8: Sequence[str] = (),
    scheme: str | Scheme = AUTO,
    effort: float = 1.0,
    time_limit_s: float | None = None,
    objective: str = LATENCY,
    max_latency_s: float | None = None,
    cpus: int | None = None,
    reuse: ErrorModel | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """The fastest form of `model` whose output keeps a limit on held-out `data`, built and measured.

    `model` is a path, bytes or an `onnx.ModelProto`, with `data` and `settings` (labels, calibration, shapes,
    preprocess, metric, seed, threads, runtime and more) as for `taglio.Model`; or an opened `taglio.Model`. `max_error`
    limits an error (relative L2 unless `metric` says otherwise), `min_score` is the least score of a task, sqnr or
    function, and `max_drop` how much worse than float a task or function may be. Each is a number, or a dict by metric
    such as {"ctc": 0.01}; the first one, in this order, steers the plan, unless `metric` names another. Blocks that
    match a pattern in `keep_float` stay float, those in `force_int8` become int8. `scheme` is the int8 form ("auto":
    the best of several), `effort` scales the time given to measuring; `time_limit_s` lowers it, stage by stage, to
    finish within so many seconds (what each stage needs at least may exceed them). `objective` "rate" seeks the most
    items per second instead of the shortest run, over threads, runs at once and items joined in a run; with
    `max_latency_s` the highest rate of requests at which 19 of 20 are answered within 0.9 of it. Without `threads`, a
    run has one, half of the cores or all, whichever is fastest; `cpus` limits the cores, on Linux. `reuse` is the error
    model of an earlier result: its errors are not measured again if model, data, scheme and versions are the same.
    `progress` is called with what is done, how much of it is done, and the total.

    The plan keeps the limit on all held-out inputs and is the fastest finalist, timed beside float and all int8; if no
    int8 plan is both, the result is the float model. Raises Infeasible if blocks that are forced into int8 break the
    limit, BadModel, BadData or BadOption for unusable arguments.

    >>> result = taglio.optimize(model, max_error=0.02, effort=0.02, scheme="qdq-u8s8-asym-pc")
    >>> result.table.plan.holds(0.02), sorted(result.session().run(images[0]))
    (True, ['logits'])
    """
    clock = Clock(positive("effort", effort), inf if time_limit_s is None else positive("time_limit_s", time_limit_s))
    wanted, user = read_scheme(scheme), user_limits(max_error, min_score, max_drop)
    goal = goal_of(objective, max_latency_s, settings.get("threads"))
    with limited_to(cpus):
        chooses_threads = goal is None and not isinstance(model, Work) and settings.get("threads") is None
        if isinstance(model, Work):
            if data is not None or settings:
                raise BadOption("`model` is already opened: give `data` and settings to taglio.Model instead")
            work = model
        else:
            user, settings = steered(user, settings)
            # Forms for a rate are chosen for runs of one thread, which is usually best where several run at once.
            threads = 1 if goal is not None and goal.threads is None else settings.get("threads")
            work = Model(model, data, **{**settings, "threads": threads})
        search = _Search(wanted, clock, progress)
        work = work.telling(search.watched)
        work, threads_note = with_threads(work) if chooses_threads else (work, None)
        limits = limits_for(work, user, keep_float, force_int8)
        refuse_constant_outputs(work)
        clock.lap("load")
        try:
            result = search.run(work, limits, reuse)
        except (TimeIsUp, KeyboardInterrupt) as stop:
            result = search.stopped(limits, stop)
        patience = clock.patience(_INTERRUPTED_S if result.interrupted else inf)
        if goal is not None:
            ended = rated(result.work, result.decision, goal, clock.rate_share(patience))
        else:
            settled = result.work
            if chooses_threads and not result.interrupted:
                settled, plan_threads_note = with_threads(settled, result.decision.plan)
                threads_note = plan_threads_note or threads_note
            ended = confirmed(settled, result.decision, patience)
        clock.lap("confirm")
        return search.delivered(work, result, ended, threads_note)


@dataclass(frozen=True, slots=True, eq=False)
class _SearchResult:
    """What the search leaves: `work` with every block that cannot be int8 in float, the decision before the race, and
    for the report doubts about the errors. `reused` is how many errors were not measured again. `why_float` says why no
    plan was made."""

    work: Work
    decision: Decision
    doubts: tuple[Note, ...]
    reused: int = 0
    why_float: Note | None = None
    interrupted: bool = False


class _Search:
    """A search, and what it has so far: the races of forms, and the best profile. `watched` ends it when the time is
    up."""

    def __init__(self, wanted: Scheme | None, clock: Clock, progress: Progress | None) -> None:
        self._wanted, self._clock = wanted, clock
        self._screened: Screened | None = None
        self._profile: Profile | None = None
        self.watched = Watched(progress, self._so_far)

    def run(self, work: Work, limits: Limits, reuse: ErrorModel | None) -> _SearchResult:
        """Screen places and forms, profile, study errors, plan. Where a bound shows that no plan can be faster than
        float, what would follow is not measured."""
        assert limits.max_error is not None, "a limit was given"
        clock, is_forced = self._clock, bool(limits.int8_blocks)
        there = work.at(clock.effort("screen"))
        screened = screen(there, self._wanted, limits.max_error, limits.metric, is_forced=is_forced)
        clock.lap("screen")
        self._screened, self._profile = screened, screened.profile
        if screened.profile is not None and not is_forced:  # from here on there is something to deliver
            self.watched.end_s = clock.search_ends_s()
        settled, chosen = screened.work, screened.scheme
        if not screened.planned:
            return self._float_stays(limits, screened.why)
        measured = profiles(settled.at(clock.effort("profile")), screened.planned, chosen, screened.mixes)
        clock.lap("profile")
        self._profile = next(iter(measured.values()))
        if not is_forced:
            self.watched.end_s = clock.search_ends_s()
        there = settled.in_place(studied(measured))
        error = error_model(there, self._profile, effort=clock.effort("error"), reuse=reuse)
        clock.lap("error")
        settled = settled.at(clock.effort("plan"))
        decision = decide(settled, measured, error, limits, places=screened.places)
        self._ended()
        # Whether sums saturate depends on the plan's forms, of which notes on the plan tell.
        doubts = tuple(note for note in error.notes if note.kind is not Kind.SATURATION)
        reused = error.evaluations if error is reuse else 0
        return _SearchResult(settled, decision, doubts, reused)

    def stopped(self, limits: Limits, stop: TimeIsUp | KeyboardInterrupt) -> _SearchResult:
        """The best so far of a search that was stopped. Raises `stop` if nothing can be delivered, as where blocks are
        forced into int8, and for SIGTERM, which has arguments."""
        self.watched.end_s = inf
        if stop.args or self._screened is None or self._profile is None:
            raise stop
        tried = self._screened.work.kept.all("tried")
        if not tried and limits.int8_blocks:
            raise stop
        if tried:
            work = self._screened.work.at(LEAST)
            decision = best_so_far(work, self._profile, tried, limits, self._screened.places)
            self._ended()
            result = _SearchResult(work, decision, (), why_float=STOPPED)
        else:
            result = self._float_stays(limits, STOPPED)
        return replace(result, interrupted=isinstance(stop, KeyboardInterrupt))

    def delivered(self, work: Work, result: _SearchResult, ended: Ended, threads_note: Note | None) -> Result:
        """The result for the report and to be written, of a model that was opened as `work`."""
        settled, screened, decision = ended.work, self._screened, ended.decision
        assert screened is not None, "what is delivered was screened"
        built = assemble(settled, decision.plan)
        self._clock.lap("build")
        search_notes = (*result.doubts, *notes.of_search(screened, work, wants_scheme=self._wanted is not None))
        plan_notes = (
            *ended.notes,
            *filter(None, [threads_note, fixed_shapes_note(work, ended.speedup), result.why_float]),
            *notes.of_plan(settled, decision),
        )
        outcome = replace(
            outcome_of(ended, built, screened.places),
            stage_seconds=dict(self._clock.laps),
            notes=(*plan_notes, *search_notes),
            search_notes=search_notes,
            forms=screened.forms,
            interrupted=result.interrupted,
            reused_errors=result.reused,
        )
        settled.kept.forget("switchable")
        settled.kept.forget("answers")
        return result_of(settled, self._wanted, decision.tables(settled), decision.plan, built, outcome)

    def _float_stays(self, limits: Limits, why: Note | None) -> _SearchResult:
        """The result without a plan."""
        screened, profile = self._screened, self._profile
        assert screened is not None, "what is not planned was raced"
        assert profile is not None, "what is not planned was raced"
        work, place = screened.work.at(self._clock.effort("plan")), profile.conditions.runtime
        errors = [row.error for row in screened.forms if (row.form, row.runtime) == (INT8_RUN, place)]
        int8_error = errors[0] if errors and errors[0] is not None else 0.0
        decision = float_stays(work, profile, int8_error, limits, screened.places)
        doubts = doubts_without_study(work)
        self._ended()
        return _SearchResult(work, decision, doubts, why_float=why)

    def _ended(self) -> None:
        """No time limit ends what follows the search."""
        self._clock.lap("plan")
        self.watched.end_s = inf

    def _so_far(self) -> str:
        """What would be delivered now, to stand behind the name of a stage; "" if nothing would."""
        if self._screened is None:
            return ""
        ledgers: Iterable[Ledger] = self._screened.work.kept.all("tried").values()
        holding = [entry for ledger in ledgers for entry in ledger.entries.values() if entry.holds]
        floats = [entry.predicted_s for entry in holding if entry.name == FLOAT_RUN]
        fastest_s = min((entry.predicted_s for entry in holding), default=0.0)
        if not floats or fastest_s <= 0.0 or floats[0] <= fastest_s:
            return " (so far float32)"
        return f" (so far about {floats[0] / fastest_s:.2f} × as fast)"
