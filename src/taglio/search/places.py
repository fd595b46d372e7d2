"""The float model in every place of this machine: its time and its own error. Plans nothing.

A place is a runtime.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from taglio.error.loss import Metric
from taglio.errors import TaglioError, one_line
from taglio.lab.side_by_side import loss_beside, opened, race
from taglio.lab.work import Work
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.stopwatch import Loss, Timings
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.places import AUTO, refusal
from taglio.runtimes.session import RUNTIMES
from taglio.search.ledger import Measurement, Places

# A place may still win if the latency to expect there is at most this many times the least. At 1.08, the place of the
# best plan of ultraface on AVX2 was left out in one search of two: it lay between 1.02 and 1.14 (short races).
REACH = 1.15
# If float alone uses this share of a place's limit, too little is left for any int8 block.
_LEFT = 0.999


def float_everywhere(work: Work, max_loss: float, metric: Metric) -> Places:
    """The float model in every place. It is not raced if there is only one, as where a runtime was requested. Its error
    is what the place adds by itself: 0 where its answers are the reference, and for metrics that move in steps."""
    if work.setup.runtime != AUTO:
        return Places((_only(work, max_loss, metric, work.setup.runtime),))
    refusals = {name: why for name in RUNTIMES if (why := refusal(name))}
    usable = [name for name in RUNTIMES if name not in refusals]
    if len(usable) == 1:
        refused = [_refused(name, refusals.get(name, "")) for name in RUNTIMES if name != NAME]
        return Places((_only(work, max_loss, metric, NAME), *refused))
    raced = race(
        work,
        dict.fromkeys(usable, lambda: work.model.proto),
        work.budget.race_s,
        places={name: name for name in usable},
        loss=_own_error(work, metric),
    )
    measured = [
        _judged(name, raced, work, metric, max_loss) if name in usable else _refused(name, refusals[name])
        for name in RUNTIMES
    ]
    walls = {name: timed.wall for name, timed in raced.timed.items()}
    return Places(tuple(measured), walls, max(timed.others for timed in raced.timed.values()))


def studied(planned: Collection[str]) -> str:
    """The place for whose models errors are studied: ONNX Runtime if it is `planned` in, since models for it have more
    quantise/dequantise pairs, else the first."""
    return NAME if NAME in planned else next(iter(planned))


def profiled(places: Sequence[Measurement]) -> list[Measurement]:
    """The usable places, the one with the fastest float model first."""
    return sorted((place for place in places if not place.refused), key=lambda row: row.seconds or 0.0)


def _only(work: Work, max_loss: float, metric: Metric, place: str) -> Measurement:
    """The result of the only place. In a runtime other than ONNX Runtime, errors are judged at the end."""
    result = Measurement(place, FLOAT_RUN)
    if place != NAME or work.agreement.agrees:
        return result
    try:
        with opened(work, work.model.proto, work.setup.options(place)) as session:
            error = _own_error(work, metric)(session)
    except TaglioError as failure:
        return replace(result, error=0.0, refused=one_line(failure, 200))
    error = error if metric.smooth else 0.0
    return replace(result, error=error, refused=_beyond(metric, error, max_loss) if error > _LEFT * max_loss else "")


def _own_error(work: Work, metric: Metric) -> Loss:
    """What measures the error of the float model in a place, on a few inputs."""
    return loss_beside(work, work.quick_reference(), metric.basis)


def _judged(name: str, raced: Timings, work: Work, metric: Metric, max_loss: float) -> Measurement:
    if name in raced.refused:
        return _refused(name, raced.refused[name])
    timed, exact = raced.timed[name], (name == NAME and work.agreement.agrees) or not metric.smooth
    error, seconds = 0.0 if exact else timed.loss or 0.0, timed.wall.median_s
    beyond = _beyond(metric, error, max_loss) if error > _LEFT * max_loss else ""
    return Measurement(name, FLOAT_RUN, seconds, seconds, error, seconds, refused=beyond)


def _refused(name: str, why: str) -> Measurement:
    return Measurement(name, FLOAT_RUN, refused=why)


def _beyond(metric: Metric, error: float, max_loss: float) -> str:
    limit = metric.limit(max_loss, 2)
    return f"the float model's answers there have {metric.title} {metric.text(error, 2)} (allowed: {limit})"
