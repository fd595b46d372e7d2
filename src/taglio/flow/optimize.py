"""The whole flow on one machine: profile, error, plan, build, time. Writes nothing."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isinf
from typing import Any

from taglio import weights
from taglio.arguments import positive
from taglio.confirm import race
from taglio.confirm.race import Patience
from taglio.confirm.speedup import Speedup
from taglio.cores import limited_to
from taglio.deploy.processor_needs import unsafe_processors
from taglio.error.doubts import deciding_steps, nothing_changed, saturating_sums
from taglio.error.runtime_part import left_for_int8
from taglio.errors import BadOption
from taglio.flow.answers import SOURCE_RUN, Answers, of_answers, of_unseen, on_calibration, unseen_of
from taglio.flow.build import Built, assemble
from taglio.flow.confirm import Confirmed, confirmed
from taglio.flow.curve import Level, costly, curve
from taglio.flow.deliver import needs_of_plan
from taglio.flow.error import doubts_without_study, error_model, refuse_constant_outputs
from taglio.flow.explore import UNSURE
from taglio.flow.finalists import in_places, same_assignment
from taglio.flow.fixed_shapes import fixed_shapes_line
from taglio.flow.gpu import on_gpus
from taglio.flow.joined_rows import row_errors
from taglio.flow.ledger import Measurement
from taglio.flow.limits import Bounds, limits_for, refuse_no_limit, steered, user_limits
from taglio.flow.opening import Model
from taglio.flow.outcome import Outcome, Point, Variant, drift_since
from taglio.flow.places import studied
from taglio.flow.plan import Decision, best_so_far, decide, float_stays
from taglio.flow.profile import AUTO, profiles, read_scheme
from taglio.flow.rate import RatePatience, rated
from taglio.flow.result import Result, result_of
from taglio.flow.running import LATENCY, Running, in_way, running
from taglio.flow.screen import Screened, screen
from taglio.flow.stopping import STOPPED, TimeIsUp, Watched
from taglio.flow.work import Work
from taglio.memory import peak_bytes
from taglio.model.quantized import already_quantized
from taglio.plan.one_machine import make_plan
from taglio.plan.result import Limits, Plan
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Profile, predict
from taglio.profile.sessions import sessions_within
from taglio.profile.wall_time import WallTime
from taglio.progress import Progress
from taglio.quantize.precision import UNCALIBRATED
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.openvino import MIXED
from taglio.ways.choose import Bursts, Goal
from taglio.ways.result import Rate

# What stages take at effort 1, roughly, by which a time limit is divided; the share of it that no effort changes
# (opening sessions, calibration); and the least effort.
_TYPICAL_S = {"screen": 14.0, "profile": 8.0, "error": 3.0, "plan": 8.0, "confirm": 12.0}
_FIXED, _LEAST = 0.6, 0.03
# The least share of its usual time that a race has at a low effort.
_LEAST_RACE = 0.5
# A race within a time limit takes at least this, and one after Ctrl-C at most _INTERRUPTED_S.
_LEAST_RACE_S, _INTERRUPTED_S = 5.0, 5.0
# Of a time limit, the share that is kept for timing the best so far, the race and the delivery, in seconds between two
# bounds; and what the delivery takes.
_RESERVED, _LEAST_RESERVED_S, _MOST_RESERVED_S, _DELIVERY_S = 0.35, 10.0, 40.0, 4.0
# The search over ways has at least this share of its usual time.
_LEAST_WAYS = 0.1
# Seconds for the fastest plan without a limit on its error.
_BOUND_S = 2.0
# A model of which only so many sessions may be opened in a stage is large; another is slow.
_FEW = 10


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
    confidence: float = 0.9,
    effort: float = 1.0,
    time_limit_s: float | None = None,
    objective: str = LATENCY,
    max_latency_s: float | None = None,
    cpus: int | None = None,
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
    run has one, half of the cores or all, whichever is fastest; `cpus` limits the cores, on Linux. `progress` is called
    with what is done, how much of it is done, and the total.

    The plan keeps the limit on all held-out inputs and is the fastest finalist, timed beside float and all-int8; if no
    int8 plan is both, the result is the float model. Raises Infeasible if blocks that are forced into int8 break the
    limit, BadModel, BadData or BadOption for unusable arguments.

    >>> result = taglio.optimize(model, max_error=0.02, effort=0.02, scheme="qdq-u8s8-asym-pc")
    >>> result.table.plan.holds(0.02), sorted(result.session().run(images[0]))
    (True, ['logits'])
    """
    clock = _Clock(positive("effort", effort), inf if time_limit_s is None else positive("time_limit_s", time_limit_s))
    wanted, user = read_scheme(scheme), refuse_no_limit(user_limits(max_error, min_score, max_drop))
    way = running(objective, max_latency_s, None if isinstance(model, Work) else settings)
    with limited_to(cpus):
        if isinstance(model, Work):
            if data is not None or settings:
                raise BadOption("`model` is already opened: give `data` and settings to taglio.Model instead")
            work = model
        else:
            user, settings = steered(user, settings)
            work = Model(model, data, **way.settings(settings))
        so_far = _SoFar()
        watched = Watched(progress, so_far.text)
        work, threads_remark = way.begun(work.telling(watched))
        limits = limits_for(work, user, keep_float, force_int8)
        assert limits.max_error is not None, "a limit was given"
        refuse_constant_outputs(work)
        clock.lap("load")
        interrupted = False
        try:
            search = _searched(work, wanted, limits, confidence, clock, so_far, watched)
        except (TimeIsUp, KeyboardInterrupt) as stop:
            interrupted = isinstance(stop, KeyboardInterrupt)
            if stop.args or so_far.screened is None or so_far.profile is None:  # SIGTERM, or nothing to deliver
                raise
            watched.end_s = inf
            search = _stopped(so_far.screened, so_far.profile, limits, clock)
        watched.end_s = inf
        patience = clock.patience(_INTERRUPTED_S if interrupted else inf)
        if way.rate is not None:
            ended = _rated(search, limits, way.rate, clock.rate_patience(patience))
        else:
            way = replace(way, threads=way.threads and not interrupted)
            ended = _raced(search, limits, way, patience, threads_remark)
        settled, screened, decision = ended.work, search.screened, ended.decision
        clock.lap("confirm")
        built = assemble(settled, decision.plan)
        clock.lap("build")
        notes = (
            *ended.remarks,
            *filter(None, [fixed_shapes_line(work, ended.speedup)]),
            *filter(None, [screened.note, search.why_float]),
            *search.doubts,
            *of_answers(decision.answers, decision.winner, limits, settled.data.held_out.labels),
            *of_unseen(settled, decision.answers[decision.winner], decision.rejected, decision.candidates, limits),
            *_of_inputs(settled, decision, built, limits),
            *_of_forms(decision.plan),
            *_of_rows(settled, decision.plan),
            *_of_bfloat16(settled, built),
            *unsafe_processors(needs_of_plan(decision.plan), decision.profile.conditions.machine.instructions),
            *on_gpus(settled, [*screened.usable]),
            *_left_out(work, screened, wanted),
            *already_quantized(settled.model.proto, work.setup.requantize),
        )
        rows = in_places(decision.finalists, decision.times, decision.answers, screened.places)
        outcome = replace(
            _outcome(settled, screened.schemes, decision, built, notes, clock),
            forms=screened.forms,
            places=rows if work.setup.runtime == AUTO else (),
            curve=search.curve,
            costly=costly(decision.error),
            speedup=ended.speedup,
            interrupted=interrupted,
            rate=ended.rate,
        )
        outcome = replace(outcome, drift=drift_since(decision.profile, outcome))
        settled.kept.forget("switchable")
        settled.kept.forget("answers")
        ours = settled.setup
        setup = replace(work.setup, bfloat16=ours.bfloat16, instead=ours.instead, source_threads=ours.source_threads)
        setup = in_way(setup, ours.way)
        later = settled.but(setup=setup)
        return result_of(later, wanted, decision.profile, decision.error, decision.plan, built, outcome)


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """What the search leaves: `work` with every block that cannot be int8 in float, the decision before the race, and
    for the report what was tried. `why_float` says why no plan was made, or is ""."""

    work: Work
    screened: Screened
    decision: Decision
    doubts: tuple[str, ...]
    curve: tuple[Level, ...] = ()
    why_float: str = ""


@dataclass(slots=True)
class _SoFar:
    """What a search has when it is stopped: the races of forms, and the best profile."""

    screened: Screened | None = None
    profile: Profile | None = None

    def text(self) -> str:
        """What would be delivered now, to stand behind the name of a stage; "" if nothing would."""
        if self.screened is None:
            return ""
        tried = [each for plans in self.screened.work.kept.all("tried").values() for each in plans if each.holds]
        floats = [each.predicted_s for each in tried if each.name == FLOAT_RUN]
        fastest_s = min((each.predicted_s for each in tried), default=0.0)
        if not floats or fastest_s <= 0.0 or floats[0] <= fastest_s:
            return " (so far float32)"
        return f" (so far about {floats[0] / fastest_s:.2f} × as fast)"


def _stopped(screened: Screened, profile: Profile, limits: Limits, clock: "_Clock") -> _Search:
    """The best so far of a search that was stopped."""
    work, tried = screened.work.at(_LEAST), screened.work.kept.all("tried")
    if not tried:
        return _float_stays(screened, profile, limits, STOPPED, clock)
    decision = best_so_far(work, profile, tried, limits, screened.usable, screened.floats)
    clock.lap("plan")
    return _Search(work, screened, decision, (), why_float=STOPPED)


def _searched(
    work: Work,
    wanted: Scheme | None,
    limits: Limits,
    confidence: float,
    clock: "_Clock",
    so_far: _SoFar,
    watched: Watched,
) -> _Search:
    """Screen places and forms, profile, study errors, plan. Where a bound shows that no plan can be faster than float,
    what would follow is not measured."""
    assert limits.max_error is not None, "a limit was given"
    is_forced = bool(limits.int8_blocks)
    screened = screen(work.at(clock.effort("screen")), wanted, limits.max_error, limits.metric, is_forced=is_forced)
    clock.lap("screen")
    so_far.screened, so_far.profile = screened, screened.profile
    if screened.profile is not None:  # from here on there is something to deliver
        watched.end_s = clock.search_ends_s()
    settled, chosen, bases = screened.work, screened.scheme, screened.usable
    if not screened.planned:
        assert screened.profile is not None, "what is not planned was raced"
        return _float_stays(screened, screened.profile, limits, screened.why, clock)
    measured = profiles(settled.at(clock.effort("profile")), screened.planned, chosen, screened.mixes)
    clock.lap("profile")
    best, home = next(iter(measured.items()))
    so_far.profile, watched.end_s = home, clock.search_ends_s()
    if not is_forced and (why := _no_gain(settled, screened, measured, limits)):
        return _float_stays(screened, home, limits, why, clock)
    inner = left_for_int8(limits.max_error, bases.get(best, 0.0))
    error = error_model(
        settled.in_place(studied(measured)), home, near=inner, confidence=confidence, effort=clock.effort("error")
    )
    clock.lap("error")
    settled = settled.at(clock.effort("plan"))
    decision = decide(settled, measured, error, limits, floats=screened.floats, bases=bases)
    levels = curve(
        settled.graph,
        decision.profile,
        decision.error,
        limits,
        base=bases.get(decision.profile.conditions.runtime, 0.0),
        ahead=decision.ahead(),
        effort=settled.effort,
    )
    clock.lap("plan")
    doubts = tuple(note for note in error.notes if note != saturating_sums(chosen, saturates=True))  # of the plan
    return _Search(settled, screened, decision, doubts, levels)


def _no_gain(work: Work, screened: Screened, measured: Mapping[str, Profile], limits: Limits) -> str:
    """Why no plan can be faster than the fastest float model, whatever the limit on its error; "" if one may be."""
    floats = {place.variant.runtime: place.seconds for place in screened.places if not place.refused}
    fastest_s = min((seconds for seconds in floats.values() if seconds is not None), default=None)
    free = replace(limits, max_error=None, also=())
    best = inf
    for place, profile in measured.items():
        plan = make_plan(work.graph, profile, None, free, time_limit_s=_BOUND_S)
        share = plan.predicted_latency_s.value / max(predict(profile, work.graph, {}).total_s, 1e-12)
        own_s = floats.get(place)
        best = min(best, share if own_s is None or fastest_s is None else share * own_s / fastest_s)
    if best <= 1.0 - work.budget.gain or any(profile.interval_ratio > UNSURE for profile in measured.values()):
        return ""
    return f"by the profile no mix of forms is faster than float32 here: the fastest takes {best:.0%} of its time"


def _float_stays(screened: Screened, profile: Profile, limits: Limits, why: str, clock: "_Clock") -> _Search:
    """The result without a plan."""
    work, place = screened.work.at(clock.effort("plan")), profile.conditions.runtime
    errors = [row.error for row in screened.forms if (row.variant.form, row.variant.runtime) == ("int8", place)]
    int8_error = errors[0] if errors and errors[0] is not None else 0.0
    decision = float_stays(work, profile, int8_error, limits, screened.usable, screened.floats)
    doubts = doubts_without_study(work, profile)
    clock.lap("plan")
    return _Search(work, screened, decision, doubts, why_float=why)


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """What is delivered: the decision after the race or the search over ways, and what was confirmed of it."""

    work: Work
    decision: Decision
    speedup: Speedup | None
    rate: Rate | None
    remarks: tuple[str, ...]


def _raced(search: _Search, limits: Limits, way: Running, patience: Patience, threads_remark: str) -> _Ended:
    """Confirm what the search decided by a race, with the threads that suit it. `threads_remark` is on those that it
    was measured with."""
    work, threads_remark = way.fitted(search.work, search.decision.plan, threads_remark)
    decision, confirmation = _confirmed(work, search.decision, limits, patience)
    remarks = (*confirmation.remarks, *filter(None, [threads_remark]))
    return _Ended(work, decision, confirmation.speedup, None, remarks)


def _rated(search: _Search, limits: Limits, goal: Goal, patience: RatePatience) -> _Ended:
    """Choose and confirm the way in which the plans that the search found have the highest rate."""
    found = rated(search.work, search.decision, limits, goal, patience)
    work = search.work.but(setup=in_way(search.work.setup, found.rate.way))
    return _Ended(work, found.decision, None, found.rate, found.remarks())


def _confirmed(work: Work, decision: Decision, limits: Limits, patience: Patience) -> tuple[Decision, Confirmed]:
    """The decision after the race: the winner, a rival that openings show to be faster, or float where it keeps all
    limits and no gain is shown. A slow model has no rivals: each would be run on all held-out inputs."""
    ends = {decision.plan.fingerprint(): decision}
    is_slow = work.setup.run_s * len(work.data.all_held_out.samples) > work.budget.plans_s
    names = [] if is_slow else decision.rivals()
    rivals = {decision.of(work, name).plan.fingerprint(): name for name in names}
    plans = [decision.plan, *(decision.of(work, name).plan for name in rivals.values())]

    def accepted(plan: Plan) -> bool:
        key = plan.fingerprint()
        if key not in ends and (end := decision.accepting(work, rivals[key], limits)) is not None:
            ends[key] = end
        return key in ends

    as_float = decision.finalists.get(FLOAT_RUN)
    float_plan = None
    if as_float is not None and as_float.holds and work.replaced is None:
        float_stays = decision.of(work, FLOAT_RUN)
        float_plan = float_stays.plan
        ends.setdefault(float_plan.fingerprint(), float_stays)
    confirmation = confirmed(work, plans, float_plan, patience, accepted)
    return ends[confirmation.plan.fingerprint()], confirmation


def _outcome(
    work: Work,
    schemes: tuple[Measurement, ...],
    decision: Decision,
    built: Built,
    notes: tuple[str, ...],
    clock: "_Clock",
) -> Outcome:
    plan = decision.plan
    final, times, answered, int8 = decision.finalists, decision.times, decision.answers, decision.int8

    def variant(label: str, name: str, size_bytes: int) -> Variant:
        each = final[name]
        return Variant(
            name=label,
            latency=times[name],
            predicted_latency_s=each.predicted_s,
            error=answered[name].error,
            predicted_error=each.plan.predicted_error.value,
            size_bytes=size_bytes,
            int8_blocks=len(each.assignment),
            accuracy=answered[name].accuracy,
            parts=answered[name].parts,
            error_upper=answered[name].error_upper,
            worst_input=answered[name].worst_input,
            judged=None if isinf(answered[name].judged) else answered[name].judged,
            others=answered[name].others,
            runtime=each.runtime,
        )

    float_size = weights.size_bytes((work.replaced or work.model).proto)
    int8_size = weights.size_bytes(work.builder(plan.scheme).build(final[int8].assignment))
    points = []
    for index, each in enumerate(decision.tried):
        name = next((name for name, other in final.items() if same_assignment(each, other)), "")
        error = answered[name].error if name in answered else each.error
        if not isfinite(error):  # lost its information: has no place between speed and error
            continue
        points.append(
            Point(
                name or each.name or f"tried {index + 1}",
                each.predicted_s,
                times[name].median_s if name in times else None,
                error,
                len(each.assignment),
                each.holds,
            )
        )
    assert plan.limits.max_error is not None
    return Outcome(
        model=work.model.name,
        model_sha256=work.model.sha256,
        conditions=decision.profile.conditions,
        scheme=str(plan.scheme),
        schemes=schemes,
        max_error=plan.limits.max_error,
        status=plan.status,
        gap=plan.gap,
        blocks=len(work.graph.blocks),
        candidates=len(work.graph.candidates()),
        calibration_samples=len(work.data.calibration.samples),
        held_out_samples=len(work.data.all_held_out.samples),
        float32=_float_only(times[SOURCE_RUN], answered[SOURCE_RUN], float_size, NAME)
        if SOURCE_RUN in times
        else variant("float32", FLOAT_RUN, float_size)
        if FLOAT_RUN in final
        else _float_only(times[FLOAT_RUN], answered[FLOAT_RUN], float_size, final[int8].runtime),
        int8=variant("int8", int8, int8_size),
        plan=variant("plan", decision.winner, built.size_bytes),
        points=tuple(points),
        stage_seconds=dict(clock.laps),
        peak_memory_bytes=peak_bytes(),
        plan_sha256=plan.fingerprint(),
        metric=plan.limits.metric,
        doubt=decision.doubt(),
        notes=notes,
        also=plan.limits.also,
        search_samples=decision.inputs,
        unseen=unseen_of(work, decision.answers[decision.winner], decision.candidates),
        input_errors=answered[decision.winner].by_input,
    )


def _left_out(work: Work, screened: Screened, wanted: Scheme | None) -> tuple[str, ...]:
    """What was not compared because the model is slow or large, if no scheme was `wanted`."""
    if wanted is not None:
        return ()
    able = any(form.fits(block) for form in UNCALIBRATED.values() for block in work.graph.blocks)
    if screened.forms or not screened.planned:
        return ()
    left = ["schemes"] if work.graph.candidates() else []
    left += ["forms without calibration"] if able else []
    large = f"{len(work.model.proto.graph.node):,} operators take long to open"
    why = f"a run takes {work.setup.run_s:.2g} s" if sessions_within(0.0, work.model.proto) > _FEW else large
    line = f"{why}: {' and '.join(left)} were not compared"
    return (f"{line}; a higher effort compares them",) if left else ()


def _of_inputs(work: Work, decision: Decision, built: Built, limits: Limits) -> tuple[str, ...]:
    """What the held-out inputs do not show, or the calibration inputs show otherwise."""
    int8_blocks, error = len(decision.plan.assignment()), decision.answers[decision.winner].error
    inputs, steps = len(set(work.digests[1])), deciding_steps(work.model.proto.graph)
    step = nothing_changed(limits.metric, error, int8_blocks, inputs, steps)
    again = on_calibration(work, built, limits) if error > 0.0 else ""
    return tuple(each for each in (step, again) if each)


def _of_forms(plan: Plan) -> tuple[str, ...]:
    """How many blocks of a plan are in each form without calibration, if any is."""
    used = Counter(each.name for each in plan.assignment().values() if each.uncalibrated)
    counts = [f"{count} of the plan's blocks in {name}" for name, count in used.items()]
    return (f"{', '.join(counts)}: float in and out, no calibrated range",) if counts else ()


def _of_rows(work: Work, plan: Plan) -> tuple[str, ...]:
    """What int8-dynamic does to rows that share a batch, if the plan has blocks in it and the batch stays dynamic."""
    if not any(each.form == "dynamic" for each in plan.assignment().values()):
        return ()
    errors = row_errors(work, work.builder(plan.scheme).build(plan.assignment()))
    return () if errors is None else (str(errors),)


def _of_bfloat16(work: Work, built: Built) -> tuple[str, ...]:
    """How many blocks compute in bfloat16, for a model that mixes it with float32."""
    low = set(built.bfloat16)
    count = sum(bool(low & set(block.outputs)) for block in work.graph.blocks)
    return (f"{MIXED} computes {count} of {len(work.graph.blocks)} blocks in bfloat16 if in float",) if count else ()


def _float_only(wall: WallTime, answered: Answers, size_bytes: int, runtime: str) -> Variant:
    row = Variant("float32", wall, wall.median_s, answered.error, 0.0, size_bytes, 0, answered.accuracy)
    return replace(row, others=answered.others, runtime=runtime)


class _Clock:
    """Seconds by stage, and the effort of the next within a time limit."""

    def __init__(self, effort: float, limit_s: float) -> None:
        self.laps: dict[str, float] = {}
        self._effort, self._limit_s = effort, limit_s
        self._begun = self._last = time.perf_counter()

    def effort(self, stage: str) -> float:
        """The effort at which this stage and those after it typically take what is left of the time."""
        stages = [*_TYPICAL_S]
        typical_s = sum(_TYPICAL_S[each] for each in stages[stages.index(stage) :])
        left_s = self._limit_s - sum(self.laps.values())
        return min(self._effort, max(_LEAST, (left_s / typical_s - _FIXED) / (1.0 - _FIXED)))

    def search_ends_s(self) -> float:
        """When the search must end so that the race and the delivery fit into the time limit, by
        time.perf_counter()."""
        reserve_s = min(_MOST_RESERVED_S, max(_LEAST_RESERVED_S, _RESERVED * self._limit_s))
        return self._begun + self._limit_s - reserve_s

    def patience(self, most_s: float = inf) -> Patience:
        """How long the race may take within the time limit, at most `most_s`. A low effort shortens it less than the
        search: its result is what is told."""
        usual, share = race.USUAL, max(_LEAST_RACE, min(1.0, self._effort))
        usual = replace(usual, seconds=share * usual.seconds, slow_seconds=share * usual.slow_seconds)
        left_s = min(most_s, max(_LEAST_RACE_S, self._limit_s - sum(self.laps.values()) - _DELIVERY_S))
        return replace(usual, seconds=min(usual.seconds, left_s), slow_seconds=min(usual.slow_seconds, left_s))

    def rate_patience(self, usual: Patience) -> RatePatience:
        """How long the search over ways and their confirmation may take, where a race may take as long as `usual`."""
        share = usual.seconds / race.USUAL.seconds * min(1.0, max(_LEAST_WAYS, self._effort))
        effort, whole = Bursts(), RatePatience()
        return replace(whole, effort=replace(effort, seconds=share * effort.seconds), seconds=share * whole.seconds)

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now
