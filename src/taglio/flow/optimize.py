"""The whole flow on one machine: profile, error, plan, build, time. Writes nothing."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, isinf
from typing import Any

from taglio import weights
from taglio.arguments import positive
from taglio.error.doubts import nothing_changed
from taglio.errors import BadOption
from taglio.flow.answers import Answers, of_answers, on_calibration
from taglio.flow.build import Built, assemble
from taglio.flow.choose_place import left_for_int8, studied
from taglio.flow.choose_repairs import RepairResult, choose_repairs
from taglio.flow.choose_scheme import SchemeResult
from taglio.flow.curve import costly, curve
from taglio.flow.error import error_model
from taglio.flow.finalists import in_places, same_assignment
from taglio.flow.gpu import on_gpus
from taglio.flow.limits import Bounds, limits_for, steered
from taglio.flow.opening import Model
from taglio.flow.outcome import Outcome, Point, Variant
from taglio.flow.plan import Decision, decide
from taglio.flow.profile import AUTO, profiles, read_scheme
from taglio.flow.result import Result, result_of
from taglio.flow.settle import Settled, settle
from taglio.flow.work import Work
from taglio.memory import peak_bytes
from taglio.model.quantized import already_quantized
from taglio.plan.result import Limits, Plan
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.sessions import sessions_within
from taglio.profile.stopwatch import Timed
from taglio.progress import Progress
from taglio.quantize.precision import UNCALIBRATED
from taglio.quantize.scheme import Scheme
from taglio.runtimes.openvino import MIXED

# What stages take at effort 1, roughly, by which a time limit is divided; and the least effort.
_TYPICAL_S = {"scheme": 60.0, "repair": 20.0, "profile": 50.0, "error": 60.0, "plan": 80.0}
_LEAST = 0.01
# A model of which only so many sessions may be opened in a stage is large; another is slow.
_FEW = 10


def optimize(
    model: Any,
    data: Any = None,
    *,
    max_error: Bounds,
    keep_float: Sequence[str] = (),
    force_int8: Sequence[str] = (),
    scheme: str | Scheme = AUTO,
    confidence: float = 0.9,
    effort: float = 1.0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """The fastest form of `model` whose output changes by at most `max_error` on held-out `data`, built and measured.

    `model` is a path, bytes or an `onnx.ModelProto`, with `data` and `settings` (labels, calibration, shapes,
    preprocess, metric, seed, threads, runtime and more) as for `taglio.Model`; or an opened `taglio.Model`. `max_error`
    is in the unit of the metric; for a task it is how much worse than float the score may be. Several limits are a dict
    by metric, such as {"relative-l2": 0.03, "ctc": 0.01}; the first steers the search. Blocks that match a pattern in
    `keep_float` stay float, those in `force_int8` become int8. `scheme` is the int8 form ("auto": the best of several),
    `effort` scales the time given to measuring; `time_limit_s` lowers it, stage by stage, to finish within so many
    seconds (what each stage needs at least may exceed them). `progress` is called with what is done, how much of it is
    done, and the total.

    The plan keeps the limit on all held-out inputs and is the fastest finalist, timed beside float and all-int8; if no
    int8 plan is both, the result is the float model. Raises Infeasible if blocks that are forced into int8 break the
    limit, BadModel, BadData or BadOption for unusable arguments.

    >>> result = taglio.optimize(model, max_error=0.02, effort=0.02, scheme="qdq-u8s8-asym-pc")
    >>> result.table.plan.holds(0.02), sorted(result.session().run(images[0]))
    (True, ['logits'])
    """
    clock = _Clock(positive("effort", effort), inf if time_limit_s is None else positive("time_limit_s", time_limit_s))
    wanted = read_scheme(scheme)
    if isinstance(model, Work):
        if data is not None or settings:
            raise BadOption("`model` is already opened: give `data` and settings to taglio.Model instead")
        work = model
    else:
        work = Model(model, data, **steered(max_error, settings))
    work = work.telling(progress)
    limits = limits_for(work, max_error, keep_float, force_int8)
    if limits.max_error is None:
        raise BadOption("`max_error` is missing: give the worst that is allowed, such as 0.01 for 1 %")
    clock.lap("load")
    found = settle(work.at(clock.effort("scheme")), wanted, limits.max_error, limits.metric)
    settled, places = found.work, found.places
    if places.schemes or len(places.results) > 1:
        clock.lap("scheme")
    chosen, repairs = found.scheme, tuple[RepairResult, ...]()
    if any(each.scheme == places.scheme and each.error > limits.max_error for each in places.schemes):
        chosen, repairs = choose_repairs(
            settled.in_place(studied(places.planned)).at(clock.effort("repair")), chosen, limits.metric
        )
        settled.kept.forget("builder", but=chosen)  # each holds a copy of the weights
        clock.lap("repair")
    settled.builder(chosen)
    clock.lap("calibrate")
    measured = profiles(settled.at(clock.effort("profile")), places.planned, chosen)
    clock.lap("profile")
    best, home = next(iter(measured.items()))
    inner = left_for_int8(limits.max_error, places.usable.get(best, 0.0))
    error = error_model(
        settled.in_place(studied(measured)), home, near=inner, confidence=confidence, effort=clock.effort("error")
    )
    clock.lap("error")
    settled = settled.at(clock.effort("plan"))
    decision = decide(settled, measured, error, limits, bases=places.usable)
    levels = curve(
        settled.graph,
        decision.profile,
        decision.error,
        limits,
        base=places.usable.get(decision.profile.conditions.runtime, 0.0),
        ahead=decision.ahead(),
        effort=settled.effort,
    )
    clock.lap("plan")
    built = assemble(settled, decision.plan)
    clock.lap("build")
    notes = (
        *error.notes,
        *of_answers(decision.answers, decision.winner, limits, settled.data.held_out.labels),
        *_of_inputs(settled, decision, built, limits),
        *_of_forms(decision.plan),
        *_of_bfloat16(settled, built),
        *on_gpus(settled, [*places.usable]),
        *_left_out(work, found, wanted),
        *already_quantized(work.model.proto, work.setup.requantize),
    )
    rows = in_places(decision.finalists, decision.timed, decision.answers, places.results)
    outcome = replace(
        _outcome(settled, places.schemes, decision, built, notes, clock),
        repairs=repairs,
        forms=found.forms,
        places=rows if work.setup.runtime == AUTO else (),
        curve=levels,
        costly=costly(error),
    )
    settled.kept.forget("switchable")
    settled.kept.forget("answers")
    later = settled.but(setup=replace(work.setup, bfloat16=settled.setup.bfloat16))
    return result_of(later, wanted, decision.profile, decision.error, decision.plan, built, outcome)


def _outcome(
    work: Work,
    schemes: tuple[SchemeResult, ...],
    decision: Decision,
    built: Built,
    notes: tuple[str, ...],
    clock: "_Clock",
) -> Outcome:
    plan = decision.plan
    final, timed, answered = decision.finalists, decision.timed, decision.answers

    def variant(label: str, name: str, size_bytes: int) -> Variant:
        each = final[name]
        return Variant(
            name=label,
            latency=timed[name].wall,
            predicted_latency_s=each.plan.predicted_latency_s.value,
            error=answered[name].error,
            predicted_error=each.plan.predicted_error.value,
            size_bytes=size_bytes,
            int8_blocks=len(each.plan.assignment()),
            accuracy=answered[name].accuracy,
            parts=answered[name].parts,
            interval=answered[name].interval,
            judged=None if isinf(answered[name].judged) else answered[name].judged,
            others=answered[name].others,
            runtime=each.plan.runtime,
        )

    float_size = weights.size_bytes(work.model.proto)
    int8_size = weights.size_bytes(work.builder(plan.scheme).build(final["int8"].plan.assignment()))
    points = []
    for index, each in enumerate(decision.tried):
        name = next((name for name, other in final.items() if same_assignment(each, other)), "")
        error = answered[name].error if name in answered else each.error
        if not isfinite(error):  # lost its information: has no place between speed and error
            continue
        points.append(
            Point(
                name or each.name or f"tried {index + 1}",
                each.plan.predicted_latency_s.value,
                timed[name].wall.median_s if name in timed else None,
                error,
                len(each.plan.assignment()),
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
        held_out_samples=len(work.data.held_out.samples),
        float32=variant("float32", FLOAT_RUN, float_size)
        if FLOAT_RUN in final
        else _float_only(timed, answered[FLOAT_RUN], float_size, final["int8"].plan.runtime),
        int8=variant("int8", "int8", int8_size),
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
    )


def _left_out(work: Work, found: Settled, wanted: Scheme | None) -> tuple[str, ...]:
    """What was not compared because the model is slow or large, if no scheme was `wanted`."""
    if wanted is not None:
        return ()
    able = any(form.fits(block) for form in UNCALIBRATED.values() for block in work.graph.blocks)
    left = [] if found.places.schemes or not work.graph.candidates() else ["schemes"]
    left += ["forms without calibration"] if able and not found.forms else []
    large = f"{len(work.model.proto.graph.node):,} operators take long to open"
    why = f"a run takes {work.setup.run_s:.2g} s" if sessions_within(0.0, work.model.proto) > _FEW else large
    line = f"{why}: {' and '.join(left)} were not compared"
    return (f"{line}; a higher effort compares them",) if left else ()


def _of_inputs(work: Work, decision: Decision, built: Built, limits: Limits) -> tuple[str, ...]:
    """What the held-out inputs do not show, or the calibration inputs show otherwise."""
    int8_blocks, error = len(decision.plan.assignment()), decision.answers[decision.winner].error
    step = nothing_changed(limits.metric, error, int8_blocks, len(set(work.digests[1])))
    again = on_calibration(work, built, limits) if error > 0.0 else ""
    return tuple(each for each in (step, again) if each)


def _of_forms(plan: Plan) -> tuple[str, ...]:
    """How many blocks of a plan are in each form without calibration, if any is."""
    used = Counter(each.name for each in plan.assignment().values() if each.uncalibrated)
    counts = [f"{count} of the plan's blocks in {name}" for name, count in used.items()]
    return (f"{', '.join(counts)}: float in and out, no calibrated range",) if counts else ()


def _of_bfloat16(work: Work, built: Built) -> tuple[str, ...]:
    """How many blocks compute in bfloat16, for a model that mixes it with float32."""
    low = set(built.bfloat16)
    count = sum(bool(low & set(block.outputs)) for block in work.graph.blocks)
    return (f"{MIXED} computes {count} of {len(work.graph.blocks)} blocks in bfloat16 if in float",) if count else ()


def _float_only(timed: Mapping[str, Timed], answered: Answers, size_bytes: int, runtime: str) -> Variant:
    wall = timed[FLOAT_RUN].wall
    row = Variant("float32", wall, wall.median_s, answered.error, 0.0, size_bytes, 0, answered.accuracy)
    return replace(row, others=answered.others, runtime=runtime)


class _Clock:
    """Seconds by stage, and the effort of the next within a time limit."""

    def __init__(self, effort: float, limit_s: float) -> None:
        self.laps: dict[str, float] = {}
        self._effort, self._limit_s, self._last = effort, limit_s, time.perf_counter()

    def effort(self, stage: str) -> float:
        """The effort at which this stage and those after it typically take what is left of the time."""
        stages = [*_TYPICAL_S]
        typical_s = sum(_TYPICAL_S[each] for each in stages[stages.index(stage) :])
        left_s = self._limit_s - sum(self.laps.values())
        return min(self._effort, max(_LEAST, left_s / typical_s))

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now
