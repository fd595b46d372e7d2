"""If bfloat16 is fast but breaks the limit: find the stretches of a model that may compute in it, by running each in
both precisions. Plans nothing.

The model is divided where few tensors cross. Errors of stretches add as those of forms do: as squares. So each
stretch's error alone and its seconds in both precisions predict every mix. The fastest mix expected to keep the limit
is measured, and the result corrects the prediction of the next.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from taglio import weights
from taglio.data.dataset import Sample
from taglio.error.loss import Metric
from taglio.error.tally import Tally
from taglio.flow.work import Work
from taglio.model.graph import Graph
from taglio.profile.stopwatch import Progress
from taglio.runtimes.onnxruntime import SessionOptions, Stretch
from taglio.runtimes.openvino import MIXED, ChainedSession, OpenVinoSession, open_session
from taglio.scratch import scratch

# The most stretches, and the most tensors that cross from one to the next.
_STRETCHES, _CROSSING = 12, 3
# The share of the limit that a mix may use: int8 needs some, and other inputs differ.
_SHARE = 0.9
# A mix is worth its crossings if it takes at most this share of the fastest place's time.
_WORTH = 0.95
_TRIED = 10
# Copies of the weights, at most, while all stretches are open in both precisions.
_COPIES = 4
_TINY = 1e-12
# Rounds of timing: as many as fit into _TIMING_S seconds, from _FEWEST to _MOST.
_TIMING_S, _FEWEST, _MOST = 2.0, 3, 30
_PRECISIONS = ("f32", "bf16")
_CROSSABLE = frozenset({"float32", "float16", "int64", "int32", "bool", "uint8", "int8"})


@dataclass(frozen=True, slots=True)
class Mix:
    """The stretches of a model, their seconds one after another, and the error of the float model with them."""

    stretches: tuple[Stretch, ...]
    seconds: float
    error: float


def choose_stretches(
    work: Work,
    samples: Sequence[Sample],
    wanted: Sequence[Sequence[np.ndarray]],
    limit: float,
    metric: Metric,
    float_s: float,
    progress: Progress | None = None,
) -> Mix | None:
    """The fastest mix that keeps a share of `limit` on `samples`, whose float outputs are `wanted`. None if no mix is
    clearly faster than `float_s`, OpenVINO's time in float32, if the model cannot be divided, or not held in memory."""
    ends = division(work.graph)
    count = len(ends)
    weight_bytes = sum(block.weight_float_bytes for block in work.graph.blocks)
    if count < 2 or (work.memory_bytes is not None and _COPIES * weight_bytes > work.memory_bytes):
        return None
    with scratch() as folder:
        path = folder / "float32.onnx"
        weights.write(path, work.model.proto)
        opened = [
            _opened(path, work.setup.options(MIXED), divided(work.graph, ends, [each] * count)) for each in (0, 1)
        ]

    def error(mix: Sequence[int]) -> float:
        session = ChainedSession(work.model.outputs, [opened[each][index] for index, each in enumerate(mix)])
        tally = Tally(work.parts, metric.basis)
        for sample, outputs in zip(samples, wanted, strict=True):
            tally.add(outputs, session.run(None, sample))
        return tally.value()

    alone = []
    for index in range(count):
        alone.append(error([int(each == index) for each in range(count)]))
        if progress:
            progress("trying bfloat16", index + 1, count)
    seconds = _seconds(opened, samples, float_s)
    # The cost of one more crossing: neighbouring stretches in one precision are compiled together.
    crossing_s = max(0.0, (sum(seconds[0]) - float_s) / (count - 1))
    best: Mix | None = None
    tried: list[tuple[int, ...]] = []
    share = 1.0  # measured / predicted error: errors alone also include the rounding of tensors that cross
    for _ in range(_TRIED):
        fastest_s = _WORTH * float_s if best is None else best.seconds
        expected = ranked(seconds, [share * each for each in alone], crossing_s, _SHARE * limit)
        waiting = [(mix, taken) for mix, taken in expected if mix not in tried and taken < fastest_s]
        if not waiting:
            break
        mix, taken = waiting[0]
        tried.append(mix)
        found = error(mix)
        share = found / max(float(np.sqrt(np.square(alone) @ mix)), _TINY)
        if found <= _SHARE * limit:
            best = Mix(joined(work.graph, ends, mix), taken, found)
    return best


def division(graph: Graph) -> list[int]:
    """Where to divide: the number of blocks before the end of each stretch, for stretches with about equal work."""
    order = {block.name: index for index, block in enumerate(graph.blocks)}
    if any(tensor.producer is None for tensor in graph.tensors if tensor.name in graph.outputs):
        return []
    crossing = [0] * (len(order) + 1)
    for tensor in graph.tensors:
        readers = [order[name] for name in tensor.consumers if name in order]
        if tensor.producer is not None and readers:
            weight = 1 if tensor.dtype in _CROSSABLE and tensor.shape is not None else _CROSSING + 1
            for end in range(order[tensor.producer] + 1, max(readers) + 1):
                crossing[end] += weight
    flops = np.cumsum([block.flops for block in graph.blocks], dtype=np.float64)
    work = flops / max(flops[-1], 1.0) + np.arange(1, len(order) + 1) / len(order)
    possible = [end for end in range(1, len(order)) if crossing[end] <= _CROSSING]
    if not possible:
        return []
    targets = np.linspace(0.0, work[-1], _STRETCHES + 1)[1:-1]
    nearest = {min(possible, key=lambda end: abs(work[end - 1] - target)) for target in targets}
    return [*sorted(nearest), len(order)]


def divided(graph: Graph, ends: Sequence[int], mix: Sequence[int]) -> tuple[Stretch, ...]:
    """A stretch for each of `ends`; those with 1 in `mix` are in bfloat16."""
    order = {block.name: index for index, block in enumerate(graph.blocks)}
    found = []
    for begin, end, precision in zip([0, *ends], ends, mix, strict=False):
        outputs = [
            tensor.name
            for tensor in graph.tensors
            if tensor.producer is not None
            and begin <= order[tensor.producer] < end
            and (tensor.name in graph.outputs or any(order[name] >= end for name in tensor.consumers if name in order))
        ]
        found.append(Stretch(_PRECISIONS[precision], tuple(outputs)))
    return tuple(found)


def joined(graph: Graph, ends: Sequence[int], mix: Sequence[int]) -> tuple[Stretch, ...]:
    """The stretches of a mix, with neighbours in the same precision joined."""
    last = [index for index in range(len(ends)) if mix[index : index + 1] != mix[index + 1 : index + 2]]
    return divided(graph, [ends[index] for index in last], [mix[index] for index in last])


def ranked(
    seconds: Sequence[Sequence[float]], alone: Sequence[float], crossing_s: float, limit: float
) -> list[tuple[tuple[int, ...], float]]:
    """All mixes expected to keep `limit`, with their seconds, fastest first. `seconds` is by precision and stretch,
    `alone` the error of each stretch alone in bfloat16."""
    count = len(alone)
    masks = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    errors = np.sqrt(masks @ np.square(alone))
    crossings = np.count_nonzero(np.diff(masks, axis=1), axis=1)
    merged_s = (count - 1 - crossings) * crossing_s
    taken = np.where(masks, seconds[1], seconds[0]).sum(axis=1) - merged_s
    kept = [index for index in np.argsort(taken, kind="stable") if errors[index] <= limit and crossings[index]]
    return [(tuple(masks[index].tolist()), float(taken[index])) for index in kept]


def _opened(path: Path, options: SessionOptions, stretches: tuple[Stretch, ...]) -> tuple[OpenVinoSession, ...]:
    session = open_session(path, replace(options, runtime=MIXED, stretches=stretches))
    assert isinstance(session, ChainedSession)
    return session.stretches


def _seconds(
    opened: Sequence[Sequence[OpenVinoSession]], samples: Sequence[Sample], float_s: float
) -> list[list[float]]:
    """Median seconds of each stretch, by precision, on inputs as computed in float32."""
    rounds = max(_FEWEST, min(_MOST, int(_TIMING_S / (2.0 * float_s))))
    taken: list[list[list[float]]] = [[[] for _ in each] for each in opened]
    for done in range(rounds + 1):
        known = dict(samples[done % len(samples)])
        for index in range(len(opened[0])):
            for precision in (1, 0):  # float32 last: its outputs are the next stretch's inputs
                begun = time.perf_counter()
                found = opened[precision][index].flow(known)
                if done:
                    taken[precision][index].append(time.perf_counter() - begun)
            known |= found
    return [[median(each) for each in stretches] for stretches in taken]
