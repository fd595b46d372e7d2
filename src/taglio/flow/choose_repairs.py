"""Which repairs of a calibration help this network: each is tried on top of those kept so far. Plans nothing."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log

import numpy as np

from taglio.error.loss import Metric
from taglio.error.tally import RUINED, Reference
from taglio.flow.work import Work
from taglio.model.graph import ANCHORS
from taglio.profile.measure import pure_assignments
from taglio.progress import reported
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment, precisions
from taglio.quantize.scheme import Repair, Scheme

# Not "ranges": it takes longest, and lowered the error of no trained network at the limits that plans use.
_TRIED: tuple[Repair, ...] = ("rounding", "bias")
# Inputs to compare errors on: _SAMPLES, or as many as the model runs in _QUICK_S, at most _MOST.
_SAMPLES, _QUICK_S, _MOST = 8, 0.1, 64
# Number of disjoint subsets of blocks whose errors are compared; fewer for a slow model, or none if even _LEAST take
# longer than _BUDGET_S.
_SOME, _LEAST, _BUDGET_S = 8, 4, 20.0
# A smaller gain is within what other inputs would change.
_GAIN = 0.98
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The effect of one repair on top of those kept before it: the error of all blocks in int8 before and with it, and
    `factor`, the geometric mean over several subsets of blocks of error with it / error before."""

    repair: str
    before: float
    error: float
    factor: float
    kept: bool


def choose_repairs(work: Work, scheme: Scheme, metric: Metric) -> tuple[Scheme, tuple[RepairResult, ...]]:
    """`scheme` with the repairs that lower the error of a settled `work` on held-out inputs, and the effect of each.

    Errors are those of all blocks in int8 and of random eighths of the blocks with weights: if a few blocks ruin the
    outputs, all blocks together say nothing about the others, and no plan uses those few in int8. None is tried on a
    model too slow for that.
    """
    if scheme.format != "qdq" or not work.graph.candidates():
        return scheme, ()
    # Runs for the errors before repairs and with each.
    count = work.affordable(_QUICK_S, _MOST, _SAMPLES)
    runs = work.affordable(work.effort * _BUDGET_S / (1 + len(_TRIED)), (1 + _SOME) * count, 0)
    if runs < 1 + _LEAST:
        return scheme, ()
    metric = metric if metric.smooth else metric.basis
    assignments = _assignments(work, scheme)[:runs]
    reference = work.reference(min(count, runs // len(assignments)))

    def errors_of(scheme: Scheme) -> list[float]:
        work.ranges(scheme, effort=work.effort)
        return _errors(work, scheme, assignments, metric, reference)

    best = errors_of(scheme)
    results: list[RepairResult] = []
    for repair in reported(_TRIED, "repairs", work.progress):
        tried = replace(scheme, repairs=(*scheme.repairs, repair))
        if work.ranges(tried, effort=work.effort) == work.ranges(scheme):  # nothing to change, or no time
            continue
        errors = errors_of(tried)
        factor = exp(float(np.mean([log(one / other) for one, other in zip(errors, best, strict=True)])))
        kept = factor < _GAIN
        results.append(RepairResult(repair, best[0], errors[0], factor, kept))
        if kept:
            scheme, best = tried, errors
        work.kept.forget("switchable", but=scheme)
        work.kept.forget("builder", but=scheme)  # each holds a copy of the weights
    return scheme, tuple(results)


def _errors(
    work: Work, scheme: Scheme, assignments: Sequence[Assignment], metric: Metric, reference: Reference
) -> list[float]:
    switchable = work.switchable(scheme)  # the error stage reuses the last scheme's
    losses = [reference.loss(metric, partial(switchable.run, each)) for each in assignments]
    return [float(each) for each in np.clip(losses, _TINY, RUINED)]


def _assignments(work: Work, scheme: Scheme) -> list[Assignment]:
    """All blocks in int8, and eighths of those with weights, which plans consist of; fewer subsets for few blocks."""
    everything = pure_assignments(work.graph, precisions(scheme))["int8"]
    names = [block.name for block in work.graph.candidates() if block.anchor in ANCHORS]
    random.Random(work.setup.seed).shuffle(names)
    whole = precisions(scheme)[1]
    some = (effective(work.graph, dict.fromkeys(names[first::_SOME], whole), whole) for first in range(_SOME))
    return [everything, *(each for each in some if each)]
