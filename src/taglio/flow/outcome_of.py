"""The outcome of what was decided and confirmed: its variants and its points. Measures nothing."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite, isinf

from taglio import weights
from taglio.flow.answers import SOURCE_RUN, Answers, unseen_of
from taglio.flow.build import Built
from taglio.flow.ending import Ended
from taglio.flow.finalists import same_assignment
from taglio.flow.front import Point
from taglio.flow.ledger import NOT_RACED, Floats, Measurement
from taglio.flow.outcome import Outcome, Variant, drift_since
from taglio.flow.plan import Decision
from taglio.flow.search import Tried
from taglio.flow.work import Work
from taglio.memory import peak_bytes
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.wall_time import WallTime
from taglio.quantize.precision import BFLOAT16
from taglio.runtimes.onnxruntime import NAME


def outcome_of(ended: Ended, built: Built, places: Sequence[Measurement] = (), floats: Floats = NOT_RACED) -> Outcome:
    """The outcome without what a search adds to it (notes, schemes, forms, curve, seconds by stage). `places` are the
    float model's results in every place, and `floats` its times there."""
    work, decision = ended.work, ended.decision
    plan, answered = decision.plan, decision.answers[decision.winner]
    assert plan.limits.max_error is not None, "a plan of an outcome keeps a limit"
    int8_size = weights.size_bytes(work.builder(plan.scheme).build(decision.finalists[decision.int8].assignment))
    outcome = Outcome(
        model=work.model.name,
        model_sha256=work.model.sha256,
        conditions=decision.profile.conditions,
        scheme=str(plan.scheme),
        schemes=(),
        max_error=plan.limits.max_error,
        status=plan.status,
        gap=plan.gap,
        blocks=len(work.graph.blocks),
        candidates=len(work.graph.candidates()),
        calibration_samples=len(work.data.calibration.samples),
        held_out_samples=len(work.data.all_held_out.samples),
        float32=_float(work, decision),
        int8=_variant(decision, "int8", decision.int8, int8_size),
        plan=_variant(decision, "plan", decision.winner, built.size_bytes),
        points=points(decision, places, floats),
        stage_seconds={},
        peak_memory_bytes=peak_bytes(),
        plan_sha256=plan.fingerprint(),
        metric=plan.limits.metric,
        doubt=decision.doubt(),
        also=plan.limits.also,
        search_samples=decision.inputs,
        speedup=ended.speedup,
        unseen=unseen_of(work, answered, decision.candidates),
        input_errors=answered.by_input,
        rate=ended.rate,
    )
    return replace(outcome, drift=drift_since(decision.profile, outcome))


def points(decision: Decision, places: Sequence[Measurement], floats: Floats) -> tuple[Point, ...]:
    """Every finalist, those that were timed first, the fastest first; the other plans that were tried; and the float
    model of every place that has no finalist."""
    finalists, tried = decision.finalists, decision.tried
    listed = [
        _point(
            name.removesuffix(f", {plan.runtime}"),
            plan,
            # No table predicts the float model of a place that was not planned in.
            plan.predicted_s if any(same_assignment(plan, other) for other in tried) else None,
            decision.times.get(name),
            decision.answers.get(name),
        )
        for name, plan in finalists.items()
    ]
    listed.sort(key=lambda point: inf if point.measured_s is None else point.measured_s)
    listed += [
        _point(plan.name or f"tried {number}", plan, plan.predicted_s)
        for number, plan in enumerate(tried, 1)
        if not any(same_assignment(plan, finalist) for finalist in finalists.values())
    ]
    entered = {plan.runtime for plan in finalists.values()}
    out = [place for place in places if place.variant.runtime not in entered]
    return (*listed, *(_place(place, floats.times.get(place.variant.runtime)) for place in out))


def _place(place: Measurement, latency: WallTime | None) -> Point:
    runtime, reason = place.variant.runtime, place.refused
    return Point(FLOAT_RUN, runtime, {}, None, latency, place.error, judged=False, holds=False, reason=reason)


def _point(
    name: str, plan: Tried, predicted_s: float | None, latency: WallTime | None = None, answered: Answers | None = None
) -> Point:
    searched = plan.loss if plan.plan.limits.also and plan.loss is not None else plan.error
    error = searched if answered is None else answered.error
    finite = error if isfinite(error) else None
    reason = plan.refused or ("an output would lose its information" if finite is None else "")
    forms = {block: form.name for block, form in plan.assignment.items()}
    return Point(name, plan.runtime, forms, predicted_s, latency, finite, answered is not None, plan.holds, reason)


def _float(work: Work, decision: Decision) -> Variant:
    """The float model that results are compared with: the source, if another model is planned instead."""
    times, answered = decision.times, decision.answers
    size_bytes = weights.size_bytes((work.replaced or work.model).proto)
    if SOURCE_RUN not in times and FLOAT_RUN in decision.finalists:
        return _variant(decision, FLOAT_RUN, FLOAT_RUN, size_bytes)
    name, runtime = (
        (SOURCE_RUN, NAME) if SOURCE_RUN in times else (FLOAT_RUN, decision.finalists[decision.int8].runtime)
    )
    wall, answers = times[name], answered[name]
    variant = Variant(FLOAT_RUN, wall, wall.median_s, answers.error, 0.0, size_bytes, 0, answers.accuracy)
    return replace(variant, others=answers.others, runtime=runtime)


def _variant(decision: Decision, label: str, name: str, size_bytes: int) -> Variant:
    plan, answered = decision.finalists[name], decision.answers[name]
    low = [*plan.assignment.values()].count(BFLOAT16)
    return Variant(
        name=label,
        latency=decision.times[name],
        predicted_latency_s=plan.predicted_s,
        error=answered.error,
        predicted_error=plan.plan.predicted_error.value,
        size_bytes=size_bytes,
        int8_blocks=len(plan.assignment) - low,
        accuracy=answered.accuracy,
        parts=answered.parts,
        error_upper=answered.error_upper,
        worst_input=answered.worst_input,
        judged=None if isinf(answered.judged) else answered.judged,
        others=answered.others,
        runtime=plan.runtime,
        bfloat16_blocks=low,
    )
