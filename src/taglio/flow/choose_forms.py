"""Which forms without calibration are worth planning with: each is timed and measured on all blocks that have it.

Plans nothing. A form costs the profile and the study more runs, so it must promise a faster plan than float.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from taglio.error.loss import Metric
from taglio.error.tally import Tally
from taglio.flow.choose_place import Places, answered, left_for_int8
from taglio.flow.choose_scheme import STEPS_ERROR
from taglio.flow.work import Work
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.stopwatch import Effort, Progress, Timed, time_models
from taglio.quantize.precision import UNCALIBRATED, Assignment
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME, open_session, run_session

_EFFORT = Effort(maximum=400, budget_s=2.0)
# A form is kept if the estimated latency of a plan with it is at most this share of float's in some place.
_GAIN = 0.98


@dataclass(frozen=True, slots=True)
class FormResult:
    """All blocks that have a form in it, in one place: seconds, float's seconds there, the error, and
    whether plans may use the form. `dropped` is the reason if it does not load or run; then the numbers are 0."""

    precision: str
    runtime: str
    blocks: int
    float_s: float
    latency_s: float
    error: float
    kept: bool
    dropped: str = ""


def choose_forms(
    work: Work, places: Places, max_loss: float, metric: Metric, progress: Progress | None = None, *, effort: float
) -> tuple[Scheme, tuple[FormResult, ...]]:
    """The scheme of `places` with the forms without calibration that promise a faster plan in one of the planned
    places, and the result of each.

    As for schemes, the promise assumes that a limit of half a form's error allows half of its gain.
    """
    if not metric.smooth:
        metric, max_loss = metric.basis, STEPS_ERROR
    choices: dict[str, Assignment] = {
        form.name: {block.name: form for block in work.graph.blocks if form.fits(block)}
        for form in UNCALIBRATED.values()
    }
    if not all(choices.values()):
        return places.scheme, ()
    timed = {place: _timed(work, places.scheme, place, choices, effort, progress) for place in places.planned}
    floats = {place: found[FLOAT_RUN].wall.median_s for place, (found, _) in timed.items() if FLOAT_RUN in found}
    if not floats:
        return places.scheme, ()
    errors = _errors(work, places.scheme, choices, metric, min(floats.values()))
    results = []
    for place, float_s in floats.items():
        found, refused = timed[place]
        left = left_for_int8(max_loss, places.usable.get(place, 0.0))
        taken = {name: (found[name].wall.median_s, errors[name]) for name in choices if name in found}
        for name, assignment in choices.items():
            if name in refused:
                results.append(FormResult(name, place, len(assignment), 0.0, 0.0, 0.0, False, refused[name]))
                continue
            latency_s, error = taken[name]
            saved = (float_s - latency_s) * (1.0 if error <= left else left / error)
            better = any(other_s < latency_s and other < error for other_s, other in taken.values())
            kept = float_s - saved <= _GAIN * float_s and not better
            results.append(FormResult(name, place, len(assignment), float_s, latency_s, error, kept))
    kept_names = {each.precision for each in results if each.kept}
    kept_forms = tuple(short for short, form in UNCALIBRATED.items() if form.name in kept_names)
    return replace(places.scheme, uncalibrated=kept_forms), tuple(results)


def _timed(
    work: Work,
    scheme: Scheme,
    place: str,
    choices: Mapping[str, Assignment],
    effort: float,
    progress: Progress | None,
) -> tuple[dict[str, Timed], dict[str, str]]:
    """The float model and every choice in one place; and why a choice does not run there."""
    refused: dict[str, str] = {}
    build, options = work.builder(scheme, progress).build, work.setup.options(place)
    assignments = {FLOAT_RUN: {}, **choices}
    timed = time_models(
        {name: partial(build, assignment) for name, assignment in assignments.items()},
        work.timed,
        options,
        replace(_EFFORT, budget_s=effort * _EFFORT.budget_s),
        kernels=False,
        progress=progress,
        limit_bytes=work.memory_bytes,
        places=dict.fromkeys(assignments, options),
        refused=refused,
    )
    return timed, refused


def _errors(
    work: Work, scheme: Scheme, choices: Mapping[str, Assignment], metric: Metric, float_s: float
) -> dict[str, float]:
    """The error of every choice on a few held-out inputs."""
    samples, wanted = answered(work, float_s)
    errors = {}
    for name, assignment in choices.items():
        session, tally = (
            open_session(work.builder(scheme).build(assignment), work.setup.options(NAME)),
            Tally(work.parts, metric),
        )
        for sample, outputs in zip(samples, wanted, strict=True):
            tally.add(outputs, run_session(session, work.model.outputs, sample, work.data.held_out.source))
        errors[name] = tally.value()
    return errors
