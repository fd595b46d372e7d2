"""The outcome of what was decided and confirmed: its figures and its points. Measures nothing."""

from math import isfinite

from taglio import weights
from taglio.flow.confirm import Ended
from taglio.flow.outcome import Figures, Outcome
from taglio.lab.build import Built
from taglio.memory import peak_bytes
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.wall_time import WallTime
from taglio.quantize.precision import BFLOAT16
from taglio.search.answers import unseen_of
from taglio.search.decide import Decision
from taglio.search.front import Point
from taglio.search.ledger import INT8_RUN, Entry, Ledger, Measurement, Places

_NO_PLACES = Places(())


def outcome_of(ended: Ended, built: Built, places: Places = _NO_PLACES) -> Outcome:
    """The outcome without what a search adds to it (notes, forms, seconds by stage). `places` are the
    float model's results in every place."""
    work, decision = ended.work, ended.decision
    plan, answered, int8 = decision.plan, decision.answers, decision.ledger.int8
    assert plan.limits.max_error is not None, "a plan of an outcome keeps a limit"
    size_bytes, source = weights.size_bytes((work.replaced or work.model).proto), decision.source
    int8_size, drift = weights.size_bytes(work.builder(plan.scheme).build(int8.assignment)), _drift(decision)
    place = decision.profile.conditions.runtime
    return Outcome(
        model=work.model.name,
        model_sha256=work.model.sha256,
        conditions=decision.profile.conditions,
        scheme=str(plan.scheme),
        max_error=plan.limits.max_error,
        status=plan.status,
        gap=plan.gap,
        blocks=len(work.graph.blocks),
        calibration_samples=len(work.data.calibration.samples),
        held_out_samples=len(work.data.all_held_out.samples),
        float32=_figures(
            FLOAT_RUN, source or decision.ledger.float32, size_bytes, place, drift if source is None else 1.0
        ),
        int8=_figures(INT8_RUN, int8, int8_size, place, drift),
        plan=_figures("plan", decision.winner, built.size_bytes, place, drift),
        points=points(decision.ledger, places, drift),
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
        simplified=ended.simplified,
    )


def _drift(decision: Decision) -> float:
    """How many times slower the float model was in the races than in the profile, in the profile's place; 1 if it was
    not raced there."""
    profile = decision.profile
    raced = decision.ledger.entries.get((FLOAT_RUN, profile.conditions.runtime))
    before = next(run.wall.median_s for run in profile.runs if run.name == FLOAT_RUN)
    return 1.0 if raced is None or raced.wall is None else raced.measured_s / before


def points(ledger: Ledger, places: Places, drift: float = 1.0) -> tuple[Point, ...]:
    """Every plan that was tried, those that were timed first, the fastest first; and the float model of every place
    that has none. Predictions are those of a machine that is slower by the factor `drift`."""
    entries = [*ledger.entries.values()]
    raced = {(entry.forms, entry.runtime) for entry in ledger.raced}
    listed = [entry for entry in entries if entry.wall is not None or (entry.forms, entry.runtime) not in raced]
    listed.sort(key=lambda entry: entry.measured_s)
    # No table predicts the float model of a place that was not planned in.
    planned = {entry.runtime for entry in entries if entry.name != FLOAT_RUN}
    entered = {entry.runtime for entry in entries}
    out = [place for place in places.rows if place.runtime not in entered]
    return (
        *(_point(entry, drift * entry.predicted_s if entry.runtime in planned else None) for entry in listed),
        *(_place(place, places.times.get(place.runtime)) for place in out),
    )


def _place(place: Measurement, latency: WallTime | None) -> Point:
    runtime, reason = place.runtime, place.refused
    return Point(FLOAT_RUN, runtime, {}, None, latency, place.error, judged=False, holds=False, reason=reason)


def _point(entry: Entry, predicted_s: float | None) -> Point:
    searched = entry.loss if entry.plan.limits.also and entry.loss is not None else entry.error
    error = searched if entry.answers is None else entry.answers.error
    finite = error if isfinite(error) else None
    return Point(
        name=entry.name,
        runtime=entry.runtime,
        forms={block: form.name for block, form in entry.assignment.items()},
        predicted_s=predicted_s,
        latency=entry.wall,
        error=finite,
        judged=entry.answers is not None,
        holds=entry.holds,
        reason=entry.refused or ("an output would lose its information" if finite is None else ""),
    )


def _figures(label: str, entry: Entry, size_bytes: int, profiled: str, drift: float) -> Figures:
    """The figures of an entry. Its time is predicted if its place is the one that was `profiled`."""
    answered, wall = entry.answers, entry.wall
    assert answered is not None, "what is compared was run on all inputs"
    assert wall is not None, "what is compared was timed"
    low = [*entry.assignment.values()].count(BFLOAT16)
    return Figures(
        name=label,
        latency=wall,
        predicted_latency_s=drift * entry.predicted_s if entry.runtime == profiled else None,
        error=answered.error,
        predicted_error=entry.plan.predicted_error.value,
        size_bytes=size_bytes,
        int8_blocks=len(entry.assignment) - low,
        accuracy=answered.accuracy,
        parts=answered.parts,
        error_upper=answered.error_upper,
        worst_input=answered.worst_input,
        others=answered.others,
        runtime=entry.runtime,
        bfloat16_blocks=low,
    )
