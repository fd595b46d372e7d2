"""If bfloat16 is fast but breaks the limit, or leaves little of it to int8: find the blocks that may compute in it.
Plans nothing.

Blocks are taken in groups of about equal work, in the order in which they run. Errors of groups add as those of forms
do: as squares. So each group's error alone in bfloat16 and its seconds in both precisions predict every choice of
groups. The choice expected to lead to the fastest plan is measured, and the result corrects the next prediction.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress
from math import inf

import numpy as np

from taglio import weights
from taglio.data.dataset import Sample
from taglio.error.loss import Metric
from taglio.error.tally import Tally
from taglio.flow.work import Work
from taglio.model.graph import Block, Graph
from taglio.profile.attribution import Attributor
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.stopwatch import Effort, time_models
from taglio.progress import reported
from taglio.runtimes.openvino import BF16, MIXED, NAME, compiled, marked
from taglio.scratch import scratch

# Groups, as many as can be tried in _BUDGET_S seconds at effort 1; lower efforts than _LEAST count as that. Choices of
# groups may take as long again.
_MOST, _FEWEST, _BUDGET_S, _LEAST = 24, 4, 20.0, 0.2
# Inputs for the error of a group alone; a choice is measured on all that are given.
_FEW = 4
# The share of the limit that a choice may use: on other inputs its error differs.
_SHARE = 0.8
# The share of the seconds that int8 saves where all of the limit is left to it; it was 0.1 to 0.2 on networks that were
# trained.
_INT8_SAVES = 0.15
# A choice is worth it if it takes at most this share of float32's time.
_WORTH = 0.95
_TRIED = 12
_KERNELS, _WALL = Effort(maximum=20, budget_s=1.0), Effort(maximum=60, budget_s=0.6)
# Copies of the weights, at most, while models are compared.
_COPIES = 4
# Steps into which the limit is divided when groups are chosen.
_STEPS = 500
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Choice:
    """The tensors that are computed in bfloat16, and the float model's seconds and error with them."""

    bfloat16: tuple[str, ...]
    seconds: float
    error: float


def choose_bfloat16(
    work: Work,
    samples: Sequence[Sample],
    wanted: Sequence[Sequence[np.ndarray]],
    limit: float,
    metric: Metric,
    float_s: float,
    effort: float = 1.0,
) -> Choice | None:
    """The choice that leads to the fastest plan and keeps a share of `limit` on `samples`, whose float outputs are
    `wanted`; `effort` scales the time for it. None if none is clearly faster than `float_s`, OpenVINO's time in
    float32, if the model is too slow to try that often, or if memory does not hold the weights often enough."""
    budget_s = max(_LEAST, effort) * _BUDGET_S
    weight_bytes = sum(block.weight_float_bytes for block in work.graph.blocks)
    if work.memory_bytes is not None and _COPIES * weight_bytes > work.memory_bytes:
        return None
    if _FEWEST * min(_FEW, len(samples)) * float_s > budget_s:
        return None
    with scratch() as folder:
        path = folder / "float32.onnx"
        weights.write(path, work.model.proto)
        model = marked(path, folder)

        def error(bfloat16: Sequence[str], count: int | None = None) -> float:
            session = compiled(model.read(bfloat16), work.setup.options(MIXED))
            tally = Tally(work.parts, metric.basis)
            for sample, outputs in zip(samples[:count], wanted[:count], strict=True):
                tally.add(outputs, session.run(work.model.outputs, sample))
            return tally.value()

        begun = time.perf_counter()
        fixed = error((), _FEW)
        affordable = int(budget_s / (time.perf_counter() - begun))
        if affordable < _FEWEST:
            return None
        groups = grouped(work.graph, min(_MOST, affordable))
        alone = [error(_tensors(work, group), _FEW) for group in reported(groups, "trying bfloat16", work.progress)]
        squares = np.maximum(np.square(alone) - fixed**2, 0.0)
        seconds = [_seconds(work, place, groups) for place in (MIXED, BF16)]
        return _best(work, _Groups(groups, seconds, squares, fixed), error, limit, float_s, budget_s)


def with_int8(seconds: float, error: float, limit: float) -> float:
    """The expected seconds of a plan whose blocks in float take `seconds` and have `error` before any is int8."""
    return seconds * float(_left_over(0.0, error, limit)) if limit > 0.0 else seconds


def _left_over(used: np.ndarray | float, fixed: float = 0.0, limit: float = 1.0) -> np.ndarray:
    """Factor on the seconds by int8 beside an error whose square is `used` and one of `fixed`."""
    return 1.0 - _INT8_SAVES * np.sqrt(np.maximum(0.0, 1.0 - (np.asarray(used) + fixed**2) / limit**2))


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Groups of blocks: their seconds in float32 and in bfloat16, and the square of the error of each alone in
    bfloat16, beyond the error `fixed` that there is without any, by operators that do not stay in float32."""

    blocks: Sequence[Sequence[Block]]
    seconds: Sequence[Sequence[float]]
    squares: np.ndarray
    fixed: float


def _best(
    work: Work,
    groups: _Groups,
    error: Callable[[Sequence[str]], float],
    limit: float,
    float_s: float,
    budget_s: float,
) -> Choice | None:
    """Measure what is expected to be best, correct the expectations, and repeat while they promise a gain,
    for `budget_s` seconds."""
    most = _SHARE * limit
    crossing_bytes, saved_s = crossing(work.graph, groups.blocks), np.subtract(groups.seconds[0], groups.seconds[1])
    choice = (0,) * len(groups.blocks)
    fixed, squares = groups.fixed, groups.squares.copy()
    measured = dict[tuple[int, ...], Choice | None]()
    byte_s, switched, excess_s = 0.0, list[float](), list[float]()
    deadline = time.perf_counter() + budget_s
    while choice not in measured and len(measured) < _TRIED and time.perf_counter() < deadline:
        bfloat16 = _tensors(work, [*chain.from_iterable(compress(groups.blocks, choice))])
        measured[choice], found = None, error(bfloat16)
        if any(choice):  # errors of groups interplay: those that were chosen share what was found
            chosen = np.array(choice, bool)
            squares[chosen] *= max(found**2 - fixed**2, _TINY) / max(float(squares[chosen].sum()), _TINY)
        else:
            fixed = found
        if found <= most:
            taken_s = float_s * _relative(work, bfloat16)
            measured[choice] = Choice(bfloat16, taken_s, found)
            # The conversion of what crosses between groups takes what the sum of their kernels leaves out.
            switched.append(float(crossing_bytes @ np.abs(np.diff(choice))))
            excess_s.append(taken_s + float(saved_s @ choice))
            over_s = np.subtract(excess_s, excess_s[0])
            byte_s = max(0.0, float(over_s @ switched) / max(float(np.square(switched).sum()), _TINY))
        elif not any(choice):
            return None
        choice = fastest(
            groups.seconds,
            byte_s * crossing_bytes,
            squares,
            most**2 - fixed**2,
            partial(_left_over, fixed=fixed, limit=limit),
        )
    mixed = [each for each in measured.values() if each is not None and each.bfloat16]
    kept = [each for each in mixed if each.seconds <= _WORTH * float_s]
    return min(kept, key=lambda each: with_int8(each.seconds, each.error, limit), default=None)


def grouped(graph: Graph, count: int) -> list[list[Block]]:
    """The blocks in at most `count` groups of consecutive ones, with about equal work."""
    flops = np.cumsum([block.flops for block in graph.blocks], dtype=np.float64)
    done = flops / max(flops[-1], 1.0) + np.arange(1, len(flops) + 1) / len(flops)
    places = np.minimum((done / done[-1] * count).astype(int), count - 1)
    groups: list[list[Block]] = [[] for _ in range(count)]
    for block, place in zip(graph.blocks, places, strict=True):
        groups[place].append(block)
    return [group for group in groups if group]


def crossing(graph: Graph, groups: Sequence[Sequence[Block]]) -> np.ndarray:
    """Bytes in float32 of the tensors that cross from each group to later ones."""
    place = {block.name: index for index, group in enumerate(groups) for block in group}
    found = np.zeros(len(groups) - 1)
    for tensor in graph.tensors:
        readers = [place[name] for name in tensor.consumers if name in place]
        if tensor.producer is not None and readers:
            found[place[tensor.producer] : max(readers)] += tensor.float_bytes
    return found


def fastest(
    seconds: Sequence[Sequence[float]],
    crossing_s: np.ndarray,
    squares: np.ndarray,
    limit: float,
    factor: Callable[[np.ndarray], np.ndarray] = np.ones_like,
) -> tuple[int, ...]:
    """Which groups are in bfloat16 (1) so that the sum of `seconds` (by precision and group), and of `crossing_s` where
    neighbours differ, times the `factor` for the sum of their `squares`, is least while that sum is at most `limit`;
    exact but for `_STEPS`."""
    if limit <= 0.0:
        return (0,) * len(squares)
    steps = np.minimum(np.ceil(squares / limit * _STEPS), _STEPS + 1).astype(int)
    # By the precision of the last group and the steps that were used: the least sum, and its groups as bits.
    sums, bits = np.full((2, _STEPS + 1), inf), np.zeros((2, _STEPS + 1), np.int64)
    sums[:, 0] = 0.0
    for index, step in enumerate(steps):
        switch_s = crossing_s[index - 1] if index else 0.0
        after, chosen = np.full_like(sums, inf), np.zeros_like(bits)
        for precision, used in ((0, 0), (1, step)):
            switched = sums[1 - precision] + switch_s < sums[precision]
            total = np.where(switched, sums[1 - precision] + switch_s, sums[precision]) + seconds[precision][index]
            known = np.where(switched, bits[1 - precision], bits[precision]) | (precision << index)
            after[precision, used:], chosen[precision, used:] = total[: len(total) - used], known[: len(known) - used]
        sums, bits = after, chosen
    sums *= factor(np.arange(_STEPS + 1) * limit / _STEPS)
    code = int(bits.ravel()[np.argmin(sums)])
    return tuple(code >> index & 1 for index in range(len(steps)))


def _tensors(work: Work, blocks: Sequence[Block]) -> tuple[str, ...]:
    """The tensors that the operators of `blocks` compute."""
    operators = {operator for block in blocks for operator in block.operators}
    nodes = work.model.proto.graph.node
    return tuple(name for node in nodes if node.name in operators for name in node.output if name)


def _seconds(work: Work, place: str, groups: Sequence[Sequence[Block]]) -> list[float]:
    """Seconds of the float model's kernels in `place`, by group; what is behind a tensor belongs to its producer."""
    options = work.setup.options(place)
    timed = time_models(
        {FLOAT_RUN: lambda: work.model.proto},
        work.timed,
        options,
        _KERNELS,
        kernels=True,
        progress=work.progress,
        limit_bytes=work.memory_bytes,
    )[FLOAT_RUN]
    known = Attributor(work.model, work.graph).attribute(timed.optimized, timed.kernels)
    by_block = dict(known.blocks_s)
    for tensor in work.graph.tensors:
        if tensor.producer is not None:
            taken = known.tensors_s.get(tensor.name, 0.0)
            by_block[tensor.producer] = by_block.get(tensor.producer, 0.0) + taken
    return [sum(by_block.get(block.name, 0.0) for block in group) for group in groups]


def _relative(work: Work, bfloat16: tuple[str, ...]) -> float:
    """The float model's time with these tensors in bfloat16, as a share of OpenVINO's in float32, side by side."""
    options = work.setup.options(NAME)
    places = {NAME: options, MIXED: replace(options, runtime=MIXED, bfloat16=bfloat16)}
    timed = time_models(
        dict.fromkeys(places, lambda: work.model.proto),
        work.timed,
        options,
        _WALL,
        kernels=False,
        limit_bytes=work.memory_bytes,
        places=places,
    )
    return timed[MIXED].wall.median_s / timed[NAME].wall.median_s
