"""The float model in every place of this machine: its time and its own error. Plans nothing.

A place is a runtime and the precision of its float parts. Where bfloat16 everywhere breaks the limit, or leaves little
of it to int8, but is about as fast as the fastest place, some blocks may still compute in it: that is one more place
(choose_bfloat16.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

from taglio.error.loss import Metric
from taglio.error.tally import Reference
from taglio.errors import TaglioError
from taglio.flow.choose_bfloat16 import Choice, choose_bfloat16, with_int8
from taglio.flow.lab import Judging, Raced, race, reason
from taglio.flow.ledger import NOT_RACED, Floats, Measurement, Variant
from taglio.flow.work import Work
from taglio.memory import make_room
from taglio.profile.measure import FLOAT_RUN
from taglio.runtimes import cuda
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.openvino import BF16, MIXED
from taglio.runtimes.openvino import NAME as OPENVINO
from taglio.runtimes.places import AUTO, refusal, require_here
from taglio.runtimes.session import RUNTIMES, opener, package

# A place may still win if the latency to expect there is at most this many times the least.
REACH = 1.08
# A run is taken to last this long at least.
_SHORTEST_S = 1e-5
# If float alone uses this share of a place's limit, too little is left for any int8 block.
_LEFT = 0.999
# Above this share of the limit it is worth trying to keep some blocks out of bfloat16. A choice of blocks is judged on
# as many held-out inputs as take _JUDGED_S at effort 1: one that had 2.4 % on 5 inputs had 4.8 % on 16.
_MUCH, _JUDGED_S = 0.5, 0.6


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The float model in every place: `rows` of the ledger, its times in a race of all usable places, and the tensors
    that the mixed place computes in bfloat16 (None: there is no such place)."""

    rows: tuple[Measurement, ...]
    floats: Floats = NOT_RACED
    bfloat16: tuple[str, ...] | None = None


def float_everywhere(work: Work, max_loss: float, metric: Metric) -> Places:
    """The float model in every place; not raced if there is only one, as where a runtime was requested. The error is
    what the place adds by itself: 0 where its answers are the reference, and for metrics whose losses do not add up."""
    if work.setup.runtime != AUTO:
        return Places((_only(work, max_loss, metric, work.setup.runtime),))
    everywhere = [name for name in RUNTIMES if name != MIXED and (cuda.offered() or name not in cuda.PLACES)]
    refusals = {name: why for name in everywhere if (why := refusal(name))}
    if work.setup.portable:
        refusals |= {BF16: "not every processor computes in bfloat16, and a portable plan was asked for"}
    here = [name for name in everywhere if name not in refusals]
    if len(here) == 1:
        refused = [_refused(name, refusals.get(name, "")) for name in everywhere if name != NAME]
        return Places((_only(work, max_loss, metric, NAME), *refused))
    judging = Judging(work.quick_reference(max(work.setup.run_s, _SHORTEST_S)), metric.basis)
    raced = race(
        work,
        dict.fromkeys(here, lambda: work.model.proto),
        work.budget.race_s,
        places={name: name for name in here},
        judging=judging,
    )
    measured = [
        _judged(name, raced[name], work, metric, max_loss) if name in raced else _refused(name, refusals[name])
        for name in everywhere
    ]
    timed = {name: place.timed for name, place in raced.items() if place.timed is not None}
    walls = {name: time.wall for name, time in timed.items()}
    others = max(time.others for time in timed.values())
    mix = _mix_of_precisions(work, judging.reference, measured, max_loss, metric)
    if isinstance(mix, str):
        return Places((*measured, *([_refused(MIXED, mix)] if mix else [])), Floats(walls, others))
    walls[MIXED] = walls[OPENVINO].times(mix.seconds / walls[OPENVINO].median_s)
    row = Measurement(Variant(MIXED, FLOAT_RUN), mix.seconds, mix.seconds, mix.error, mix.seconds)
    return Places((*measured, row), Floats(walls, others), mix.bfloat16)


def studied(planned: Collection[str]) -> str:
    """The one of the `planned` places as built for which errors are studied: ONNX Runtime if it is among them, since
    its models have more pairs."""
    return NAME if NAME in planned else next(iter(planned))


def usable(places: Sequence[Measurement]) -> dict[str, float]:
    """The float model's own error in each place where a model may be deployed."""
    return {place.variant.runtime: place.error or 0.0 for place in places if not place.refused}


def one_of_each_runtime(places: Sequence[Measurement], limit: float) -> list[Measurement]:
    """For each package, the usable place that is expected to have the fastest plan, by its float model. Places on a GPU
    cannot be profiled, and are not among them."""
    best: dict[str, Measurement] = {}
    for place in sorted(places, key=lambda row: with_int8(row.seconds or 0.0, row.error or 0.0, limit)):
        if not place.refused and place.variant.runtime not in cuda.PLACES:
            best.setdefault(package(place.variant.runtime), place)
    return list(best.values())


def base_errors(
    work: Work, metric: Metric, places: Sequence[str], reference: Reference
) -> tuple[dict[str, float], dict[str, str]]:
    """The float model's error in `places`, on the inputs of `reference`; and, for places without one, the reason."""
    judging, errors, failed = Judging(reference, metric.basis), dict[str, float](), dict[str, str]()
    with work.stored() as path:
        for place in places:
            make_room(work.memory_bytes)  # for the weights, which OpenVINO copies
            try:
                errors[place] = judging.error(work, opener(place)(path, work.setup.options(place)))
            except TaglioError as error:
                failed[place] = reason(error)
    return errors, failed


def _only(work: Work, max_loss: float, metric: Metric, place: str) -> Measurement:
    """The result of the only place. Errors of other runtimes than ONNX Runtime are judged at the end."""
    result = Measurement(Variant(place, FLOAT_RUN))
    if place != NAME or work.agreement.agrees:
        return result
    errors, failed = base_errors(work, metric, [place], work.quick_reference(max(work.setup.run_s, _SHORTEST_S)))
    error = errors.get(place, 0.0) if metric.smooth else 0.0
    refused = failed.get(place, _beyond(metric, error, max_loss) if error > _LEFT * max_loss else "")
    return replace(result, error=error, refused=refused)


def _judged(name: str, raced: Raced, work: Work, metric: Metric, max_loss: float) -> Measurement:
    exact = (name == NAME and work.agreement.agrees) or not metric.smooth
    error = 0.0 if exact else raced.error or 0.0
    if raced.timed is None:
        return _refused(name, raced.refused)
    seconds = raced.timed.wall.median_s
    beyond = _beyond(metric, error, max_loss) if error > _LEFT * max_loss else ""
    return Measurement(Variant(name, FLOAT_RUN), seconds, seconds, error, seconds, refused=beyond)


def _refused(name: str, why: str) -> Measurement:
    return Measurement(Variant(name, FLOAT_RUN), refused=why)


def _mix_of_precisions(
    work: Work, few: Reference, places: Sequence[Measurement], max_loss: float, metric: Metric
) -> Choice | str:
    """The blocks that compute in bfloat16, the reason why there are none, or "" where none were looked for."""
    by_name = {place.variant.runtime: place for place in places}
    bf16, openvino = by_name.get(BF16), by_name.get(OPENVINO)
    if bf16 is None or bf16.seconds is None or openvino is None or openvino.seconds is None or openvino.refused:
        return ""
    fastest_s = min((place.seconds for place in places if place.seconds is not None and not place.refused), default=inf)
    if (bf16.error or 0.0) <= _MUCH * max_loss or bf16.seconds > REACH * fastest_s:
        return ""
    try:
        require_here(MIXED, work.model.name)
        more = work.reference(max(len(few.samples), int(work.effort * _JUDGED_S / openvino.seconds)))
        return choose_bfloat16(work, more, max_loss, metric, openvino.seconds)
    except Exception as error:  # the runtimes' exceptions share no useful base class
        return reason(error)


def _beyond(metric: Metric, error: float, max_loss: float) -> str:
    limit = metric.limit(max_loss, 2)
    return f"the float model's answers there have {metric.title} {metric.text(error, 2)} (allowed: {limit})"
