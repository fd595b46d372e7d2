"""Which forms without calibration are worth planning with: each is timed and measured on all blocks that have it.

Plans nothing. A form costs the profile and the study more runs, so it must promise a faster plan than float.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from taglio.error.loss import Metric
from taglio.flow.choose_place import left_for_int8
from taglio.flow.choose_scheme import score_s, smooth
from taglio.flow.work import Work
from taglio.memory import make_room
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.sessions import sessions_within
from taglio.profile.stopwatch import Effort, Timed
from taglio.quantize.precision import UNCALIBRATED, Assignment
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME, open_session, run_session

_EFFORT = Effort(maximum=400, budget_s=2.0)
# Runs of a slow model that a form takes: a warm-up and a timed one in each place, and one for the error; and the
# seconds that all forms may take.
_RUNS, _PATIENCE_S = 5, 60.0
# A form is kept if its score is at most this share of float's latency.
_GAIN = 0.98


@dataclass(frozen=True, slots=True)
class FormResult:
    """All blocks that have a form in it, in one place: seconds, float's seconds there, the error, `score_s` as for a
    scheme, and whether plans may use the form. `dropped` is the reason if it does not load or run; then the numbers
    are 0."""

    precision: str
    runtime: str
    blocks: int
    float_s: float = 0.0
    latency_s: float = 0.0
    error: float = 0.0
    score_s: float = 0.0
    kept: bool = False
    dropped: str = ""


def try_forms(
    work: Work, scheme: Scheme, bases: Mapping[str, float], max_loss: float, metric: Metric
) -> tuple[FormResult, ...]:
    """Every form without calibration, in the places of `bases`, where the float model has that error.

    A form is kept in a place if its score promises a faster plan and no other form is both faster and more accurate.
    None is tried on a slow model.
    """
    metric, max_loss = smooth(metric, max_loss)
    choices: dict[str, Assignment] = {
        form.name: {block.name: form for block in blocks}
        for form in UNCALIBRATED.values()
        if (blocks := [block for block in work.graph.blocks if form.fits(block)])
    }
    patience_s, wanted = work.effort * _PATIENCE_S, len(bases) * (1 + len(choices))
    slow = work.setup.run_s * _RUNS * len(choices) > patience_s
    if not choices or slow or wanted > sessions_within(patience_s, work.model.proto):
        return ()
    timed = {place: _timed(work, scheme, place, choices) for place in bases}
    floats = {place: found[FLOAT_RUN].wall.median_s for place, (found, _) in timed.items() if FLOAT_RUN in found}
    if not floats:
        return ()
    errors = _errors(work, scheme, choices, metric, min(floats.values()))
    results = []
    for place, float_s in floats.items():
        found, refused = timed[place]
        left = left_for_int8(max_loss, bases[place])
        taken = {name: (found[name].wall.median_s, errors[name]) for name in choices if name in found}
        for name, assignment in choices.items():
            if name in refused:
                results.append(FormResult(name, place, len(assignment), dropped=refused[name]))
                continue
            latency_s, error = taken[name]
            score = score_s(float_s, latency_s, error, left)
            better = any(other_s < latency_s and other < error for other_s, other in taken.values())
            kept = score <= _GAIN * float_s and not better
            results.append(FormResult(name, place, len(assignment), float_s, latency_s, error, score, kept))
    return tuple(results)


def with_forms(
    scheme: Scheme, planned: Sequence[str], results: Sequence[FormResult]
) -> tuple[Scheme, tuple[FormResult, ...]]:
    """`scheme` with the forms that are kept in a place where plans are made, and the results, in which no others are
    kept."""
    results = tuple(replace(each, kept=each.kept and each.runtime in planned) for each in results)
    names = {each.precision for each in results if each.kept}
    forms = tuple(short for short, form in UNCALIBRATED.items() if form.name in names)
    return replace(scheme, uncalibrated=forms), results


def _timed(
    work: Work, scheme: Scheme, place: str, choices: Mapping[str, Assignment]
) -> tuple[dict[str, Timed], dict[str, str]]:
    """The float model and every choice in one place; and why a choice does not run there."""
    refused: dict[str, str] = {}
    build, assignments = work.builder(scheme).build, {FLOAT_RUN: {}, **choices}
    timed = work.in_place(place).time(
        {name: partial(build, assignment) for name, assignment in assignments.items()},
        _EFFORT,
        places=dict.fromkeys(assignments, place),
        refused=refused,
    )
    return timed, refused


def _errors(
    work: Work, scheme: Scheme, choices: Mapping[str, Assignment], metric: Metric, float_s: float
) -> dict[str, float]:
    """The error of every choice on a few held-out inputs."""
    reference, source = work.quick_reference(float_s), work.data.held_out.source
    errors = {}
    for name, assignment in choices.items():
        make_room(work.memory_bytes)
        session = open_session(work.builder(scheme).build(assignment), work.setup.options(NAME))
        errors[name] = reference.loss(metric, partial(run_session, session, work.outputs, label=source))
        del session  # and its memory, before the next is opened
    return errors
