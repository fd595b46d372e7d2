"""Scheme "auto": measure several schemes on this device and pick one. Plans nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import onnx

from taglio.error.loss import Metric
from taglio.errors import BadModel, TaglioError, one_line
from taglio.flow.work import Work
from taglio.memory import make_room
from taglio.profile.measure import FLOAT_RUN, pure_assignments
from taglio.profile.sessions import sessions_within
from taglio.profile.stopwatch import Effort, Timed
from taglio.quantize.precision import precisions
from taglio.quantize.scheme import AUTO_SCHEMES, Scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session, sums_saturate

_EFFORT = Effort(maximum=400, budget_s=6.0)
# One run: does the scheme's model load and run at all?
_ONCE = Effort(warmup=0, minimum=1, maximum=1, budget_s=0.0)
# Runs of a slow model that a scheme takes: a warm-up, a timed one, and one for the error.
_RUNS = 3
# A short timing cannot separate schemes whose scores differ by less than this factor.
_NOISE = 1.02
# Relative L2 limit for comparing schemes if the limited metric moves in steps.
_STEPS_ERROR = 0.01


@dataclass(frozen=True, slots=True)
class SchemeResult:
    """All candidate blocks in int8 under one scheme: their loss, and `score_s`, an estimate of a plan's latency.

    If the model does not load or run under the scheme, `dropped` is the reason and the numbers are 0.
    """

    scheme: Scheme
    latency_s: float = 0.0
    error: float = 0.0
    score_s: float = 0.0
    dropped: str = ""


def choose(
    work: Work,
    max_loss: float,
    metric: Metric,
    schemes: Sequence[Scheme] = AUTO_SCHEMES,
    *,
    saturating_elsewhere: bool = False,
) -> tuple[Scheme, tuple[SchemeResult, ...]]:
    """The best scheme for a limit on the loss of `metric`, and the results of all schemes.

    If this processor's int8 sums saturate, schemes are also tried with 7-bit weights, which run the same kernels; if
    another device's do (`saturating_elsewhere`), only with 7-bit weights, because the loss by saturation cannot be
    measured here.

    A scheme under which the model does not load is dropped; if all are, see `float_where_none_loads`. For a slow model
    the first schemes are compared, or the first is taken untried; so it is where no block can be int8.
    """
    first, schemes = schemes[0], _affordable(work, schemes)
    if not schemes:
        narrow = first.may_saturate and (saturating_elsewhere or sums_saturate())
        return replace(first, reduced_range=first.reduced_range or narrow), ()
    metric, max_loss = smooth(metric, max_loss)

    @cache
    def everything(scheme: Scheme) -> Callable[[], onnx.ModelProto]:
        graph = work.graph.without_int8(work.unusable(scheme, thorough=False))
        return partial(work.builder(scheme).build, pure_assignments(graph, precisions(scheme))["int8"])

    models: dict[str, Callable[[], onnx.ModelProto]] = {FLOAT_RUN: lambda: work.model.proto}
    models |= {str(scheme): everything(scheme) for scheme in schemes}
    dropped: list[SchemeResult] = []
    try:
        timed = work.time(models, _EFFORT)
    except TaglioError:  # which scheme failed?
        for scheme in schemes:
            try:
                work.but(timed=work.timed[:1]).time({str(scheme): models[str(scheme)]}, _ONCE)
            except TaglioError as error:
                dropped.append(SchemeResult(scheme, dropped=one_line(error)))
                del models[str(scheme)]
        if not dropped:
            raise
        schemes = [scheme for scheme in schemes if str(scheme) in models]
        if not schemes:
            return dropped[0].scheme, tuple(dropped)
        timed = work.time(models, _EFFORT)
    float_s = timed[FLOAT_RUN].wall.median_s
    reference = work.quick_reference(float_s, work.effort)
    options = SessionOptions(work.setup.threads, spinning=True)

    def scored(scheme: Scheme, latency_s: float) -> SchemeResult:
        make_room(work.memory_bytes)
        try:
            session = open_session(everything(scheme)(), options)
        except BadModel as refusal:  # it was timed in OpenVINO, which may load more
            return SchemeResult(scheme, dropped=one_line(refusal))
        error = reference.loss(metric, partial(session.run, list(work.model.outputs)))
        return SchemeResult(scheme, latency_s, error, score_s(float_s, latency_s, error, max_loss))

    tried = [scored(*each) for each in _latencies(timed, schemes, saturating_elsewhere).items()]
    dropped += [each for each in tried if each.dropped]
    results = [each for each in tried if not each.dropped]
    if not results:
        return dropped[0].scheme, tuple(dropped)
    best = pick(results)
    if best.error > max_loss and best.scheme.calibration == "minmax":
        clipped = replace(best.scheme, calibration="percentile")  # other ranges, same kernels: equally fast
        results.append(scored(clipped, best.latency_s))
    return pick(results).scheme, (*results, *dropped)


def smooth(metric: Metric, max_loss: float) -> tuple[Metric, float]:
    """The metric and limit that schemes and forms are compared by: another where `metric` moves in steps."""
    return (metric, max_loss) if metric.smooth else (metric.basis, _STEPS_ERROR)


def score_s(float_s: float, latency_s: float, error: float, max_loss: float) -> float:
    """The estimated latency of a plan, from float and from all blocks in another form, which have an `error`.

    Assumes that a limit of half the error allows half of the time to be saved: what is faster with twice the error is
    not better under a tight limit.
    """
    return float_s - (float_s - latency_s) * (1.0 if error <= max_loss else max_loss / error)


def _affordable(work: Work, schemes: Sequence[Scheme]) -> Sequence[Scheme]:
    """The first of `schemes` that there is time to compare; none if that leaves no choice, or no block can be int8."""
    if not work.graph.candidates():
        return ()
    patience_s = 0.5 * work.effort * _EFFORT.patience_s
    runs = work.affordable(patience_s, _RUNS * (1 + len(schemes))) // _RUNS
    count = min(runs, sessions_within(patience_s, work.model.proto)) - 1
    return schemes[:count] if count >= min(2, len(schemes)) else ()


def _latencies(
    timed: Mapping[str, Timed], schemes: Sequence[Scheme], saturating_elsewhere: bool
) -> dict[Scheme, float]:
    """Seconds of all-int8 by scheme: as timed, and with 7-bit weights in the same kernels where sums saturate."""
    latencies, here = {scheme: timed[str(scheme)].wall.median_s for scheme in schemes}, sums_saturate()
    if saturating_elsewhere or here:
        narrow = {replace(each, reduced_range=True): each for each in schemes if each.may_saturate}
        latencies |= {each: latencies[wide] for each, wide in narrow.items()}
    if saturating_elsewhere and not here:
        latencies = {each: latency for each, latency in latencies.items() if not each.may_saturate}
    return latencies


def float_where_none_loads(work: Work, results: Sequence[SchemeResult]) -> Work:
    """`work` with every block in float, for the first scheme's reason, if every scheme was dropped."""
    if not results or not all(each.dropped for each in results):
        return work
    blocks = tuple(replace(block, refusal=block.refusal or results[0].dropped) for block in work.graph.blocks)
    return work.but(graph=replace(work.graph, blocks=blocks))


def pick(results: Sequence[SchemeResult]) -> SchemeResult:
    """The result with the best score; among scores within noise of it, the one with the smallest error."""
    fastest_s = min(result.score_s for result in results)
    return min((each for each in results if each.score_s <= fastest_s * _NOISE), key=lambda each: each.error)
