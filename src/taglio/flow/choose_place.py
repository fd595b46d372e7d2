"""`--runtime auto`: run the float model and all-int8 in every place of this machine, and choose the places to plan in.
Plans nothing.

A place gets a profile if its score is the best, or so close that its plans may win. The score is the one of
choose_scheme.py: the estimated latency of a plan, from the latencies of float and all-int8 and the share of the limit
that all-int8 uses. The error of a place's own arithmetic (bfloat16) adds to the error of int8 as squares, so int8 may
use what is left of the limit. If bfloat16 everywhere breaks the limit, or leaves little of it, but is about as fast as
the fastest place or faster, some blocks may still compute in it: that is one more place (choose_bfloat16.py).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, sqrt
from types import MappingProxyType

from taglio.error.loss import Metric
from taglio.error.tally import Reference
from taglio.errors import TaglioError, one_line
from taglio.flow.choose_bfloat16 import Choice, choose_bfloat16, with_int8
from taglio.flow.choose_scheme import SchemeResult
from taglio.flow.work import Work
from taglio.memory import make_room
from taglio.profile.stopwatch import Effort, Timed
from taglio.quantize.scheme import Scheme
from taglio.runtimes import cuda
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.openvino import BF16, MIXED
from taglio.runtimes.openvino import NAME as OPENVINO
from taglio.runtimes.places import AUTO, refusal, require_here
from taglio.runtimes.session import RUNTIMES, opener, package

_EFFORT = Effort(maximum=400, budget_s=3.0)
# A place may still win if its score is at most _REACH times the best; at most PROFILED places are profiled.
_REACH, PROFILED = 1.08, 2
# If float alone uses this share of a place's limit, too little is left for any int8 block.
_LEFT = 0.999
# Above this share of the limit it is worth trying to keep some blocks out of bfloat16. A choice of blocks is judged on
# as many held-out inputs as take _JUDGED_S at effort 1: one that had 2.4 % on 5 inputs had 4.8 % on 16.
_MUCH, _JUDGED_S = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class PlaceResult:
    """A place of this machine: seconds and error of the float model there, `score_s` as for a scheme, and whether it
    was `profiled`. `dropped` is the reason if it is out; anything not measured is 0."""

    runtime: str
    float_s: float = 0.0
    error: float = 0.0
    score_s: float = 0.0
    profiled: bool = False
    dropped: str = ""


@dataclass(frozen=True, slots=True)
class Places:
    """The result: the places to plan in, best first, the scheme, the results of all schemes in the best place, and all
    places."""

    planned: tuple[str, ...]
    scheme: Scheme
    schemes: tuple[SchemeResult, ...]
    results: tuple[PlaceResult, ...]

    @property
    def usable(self) -> dict[str, float]:
        """The float model's error in each place where a model may be deployed."""
        return {each.runtime: each.error for each in self.results if not each.dropped}


def left_for_int8(limit: float, base: float) -> float:
    """The part of `limit` left for int8 in a place where the float model has the error `base`."""
    return sqrt(max(0.0, limit**2 - base**2)) if base else limit


def together(error: float, base: float) -> float:
    """The expected error of int8 with the error `error` in a place where the float model has the error `base`."""
    return sqrt(error**2 + base**2) if base else error


def studied(planned: Collection[str]) -> str:
    """The one of the `planned` places as built for which errors are studied: ONNX Runtime if it is among them, since
    its models have more pairs."""
    return NAME if NAME in planned else next(iter(planned))


def rank(
    found: Sequence[PlaceResult],
    by_place: Mapping[str, tuple[Scheme, tuple[SchemeResult, ...]]],
    asked: Scheme | None,
    others_s: Mapping[str, float] = MappingProxyType({}),
    most: int = PROFILED,
) -> Places:
    """Where to plan, in at most `most` places, from the float results in all places and, in some, the all-int8 results
    by scheme and the best score of other forms (`others_s`)."""
    floats = {each.runtime: each.float_s for each in found}

    def score(place: str, scheme: Scheme | None) -> float:
        results = by_place[place][1]
        scores = [each.score_s for each in results if not each.dropped and scheme in (None, each.scheme)]
        return min([floats[place], others_s.get(place, inf), *scores])

    def without(scheme: Scheme) -> Scheme:
        return replace(scheme, reduced_range=False, calibration="minmax")

    # If int8 loads nowhere, the results hold the reason.
    loads = {place: any(not each.dropped for each in results) for place, (_, results) in by_place.items()}
    order = sorted(by_place, key=lambda place: (not loads[place], score(place, asked)))
    best = order[0]
    scheme = asked or by_place[best][0]
    reachable = [best]
    for place in order[1:]:
        # There the scheme may have been tried with other ranges in the same kernels.
        alike = [each for each in by_place[place][1] if without(each.scheme) == without(scheme)]
        if any(each.dropped for each in alike):
            continue
        near = min((score(place, each.scheme) for each in alike), default=floats[place])
        if near <= _REACH * score(best, scheme):
            reachable.append(place)
    planned = tuple(reachable[:most])
    results = tuple(
        replace(
            each,
            score_s=score(each.runtime, asked) if each.runtime in by_place else each.score_s,
            profiled=each.runtime in planned,
        )
        for each in found
    )
    return Places(planned, scheme, by_place[best][1], results)


def float_everywhere(work: Work, max_loss: float, metric: Metric) -> tuple[list[PlaceResult], tuple[str, ...] | None]:
    """The float model in every place (not measured if there is only one, as where a runtime was requested), and the
    tensors that the mixed one computes in bfloat16, if there is one."""
    if work.setup.runtime != AUTO:
        return [PlaceResult(work.setup.runtime, profiled=True)], None
    everywhere = [name for name in RUNTIMES if name != MIXED and (cuda.offered() or name not in cuda.PLACES)]
    dropped = {name: reason for name in everywhere if (reason := refusal(name))}
    names = [name for name in everywhere if name not in dropped]
    timed = dict[str, Timed]()
    if len(names) > 1:
        timed = work.time(
            dict.fromkeys(names, lambda: work.model.proto),
            _EFFORT,
            places={name: name for name in names},
            refused=dropped,
        )
    if NAME not in timed:  # there is no choice
        return [PlaceResult(name, profiled=name == NAME, dropped=dropped.get(name, "")) for name in everywhere], None
    float_s = {name: each.wall.median_s for name, each in timed.items()}
    few = work.quick_reference(float_s[NAME])
    errors, failed = base_errors(work, metric, [name for name in timed if name != NAME], few)
    dropped |= failed
    if not metric.smooth:  # such losses do not add up: the deployed model is judged at the end
        errors = dict.fromkeys(errors, 0.0)
    for name, error in errors.items():
        if error > _LEFT * max_loss:
            dropped[name] = "the float model alone uses up the limit there"
    choice: Choice | str = ""
    reachable = float_s.get(BF16, inf) <= _REACH * min(each for name, each in float_s.items() if name not in dropped)
    if errors.get(BF16, 0.0) > _MUCH * max_loss and OPENVINO in errors and OPENVINO not in dropped and reachable:
        try:
            require_here(MIXED, work.model.name)
            more = work.reference(max(len(few.samples), int(work.effort * _JUDGED_S / float_s[OPENVINO])))
            choice = choose_bfloat16(work, more, max_loss, metric, float_s[OPENVINO])
        except Exception as error:  # as in base_errors
            choice = one_line(error, 200)
    results = [
        PlaceResult(name, seconds, errors.get(name, 0.0), seconds, dropped=dropped.get(name, ""))
        for name, seconds in ((name, float_s.get(name, 0.0)) for name in everywhere)
    ]
    if not choice:
        return results, None
    if isinstance(choice, str):
        return [*results, PlaceResult(MIXED, dropped=choice)], None
    return [*results, PlaceResult(MIXED, choice.seconds, choice.error, choice.seconds)], choice.bfloat16


def base_errors(
    work: Work, metric: Metric, places: Sequence[str], reference: Reference
) -> tuple[dict[str, float], dict[str, str]]:
    """The float model's error in `places`, on the inputs of `reference`; and, for places without one, the reason."""
    names, errors, failed = list(work.model.outputs), dict[str, float](), dict[str, str]()
    with work.stored() as path:
        for place in places:
            make_room(work.memory_bytes)  # for the weights, which OpenVINO copies
            try:
                session = opener(place)(path, work.setup.options(place))
                errors[place] = reference.loss(metric.basis, partial(session.run, names))
                del session
            except TaglioError as error:
                failed[place] = one_line(error)
            except Exception as error:  # the runtimes' exceptions share no useful base class
                failed[place] = f"cannot run the held-out inputs: {one_line(error, 200)}"
    return errors, failed


def one_of_each_runtime(found: Sequence[PlaceResult], limit: float) -> list[PlaceResult]:
    """For each package, the usable place that is expected to have the fastest plan, by its float model. Places on a GPU
    cannot be profiled, and are not among them."""
    best: dict[str, PlaceResult] = {}
    for each in sorted(found, key=lambda each: with_int8(each.float_s, each.error, limit)):
        if not each.dropped and each.runtime not in cuda.PLACES:
            best.setdefault(package(each.runtime), each)
    return list(best.values())
