"""Apply the repairs of a scheme to a calibration. Does not choose repairs."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from taglio.data.dataset import Dataset
from taglio.error.parts import Parts
from taglio.error.sketch import Sketcher
from taglio.error.tally import Tally
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.progress import Progress
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.quantize.repair import bias, rounding
from taglio.quantize.repair.ranges import Differences, choose
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session

# Calibration samples for rounding, and to average biases over at most (MEANS), and to judge ranges on (from _FEWEST to
# _MOST).
MEANS, _FEWEST, _MOST = 32, 8, 24
# Seconds for ranges and for rounding at effort 1; each is under half of the error stage's time.
_RANGES_S, _ROUNDING_S = 4.0, 2.5
_SKETCH = 1024


def repaired(
    model: Model,
    graph: Graph,
    found: Ranges,
    scheme: Scheme,
    data: Dataset,
    parts: Parts,
    *,
    effort: float = 1.0,
    means: int = MEANS,
    room_bytes: float | None = None,
    progress: Progress | None = None,
) -> Ranges:
    """`found`, which has all repairs of `scheme` but the last, with that one applied. `effort` scales its time, biases
    are averaged over `means` samples, and `room_bytes` is the memory that it may hold."""
    builder = QdqBuilder(model, graph, {scheme.calibrated: found})
    match scheme.repairs[-1]:
        case "ranges":
            start = time.perf_counter()
            count, differences = _judged(model, graph, data, parts)
            left_s, samples = effort * _RANGES_S - (time.perf_counter() - start), data.samples[:count]
            chosen = choose(builder, found, scheme, samples, differences, budget_s=left_s, progress=progress)
            return replace(found, low_high=found.low_high | chosen)
        case "rounding":
            samples, budget_s = data.samples[:MEANS], effort * _ROUNDING_S
            rounded = rounding.rounded_weights(
                builder, scheme, samples, budget_s=budget_s, room_bytes=room_bytes, progress=progress
            )
            return replace(found, rounded=rounded)
        case "bias":
            return replace(found, shifts=bias.shifts(builder, scheme, data.samples[:means], progress))


def _judged(model: Model, graph: Graph, data: Dataset, parts: Parts) -> tuple[int, Differences]:
    """The number of samples to judge ranges on, and a function that gives the differences of their outputs from the
    float model's."""
    session = open_session(model.proto, SessionOptions(0), label=model.name)
    reference: list[list[np.ndarray]] = []
    start = time.perf_counter()
    for sample in data.samples[:_MOST]:
        reference.append(run_session(session, model.outputs, sample, data.source))
        # Every tensor is tried with four ranges, in a graph slightly slower than the float model.
        once_s = (time.perf_counter() - start) / len(reference)
        if len(reference) >= max(_FEWEST, _RANGES_S / (5.0 * once_s * max(1, len(graph.candidates())))):
            break
    same = Tally(parts)
    sketcher = Sketcher([[len(each) for each in same.add(each, each)] for each in reference], size=_SKETCH)

    def half(changed: Sequence[list[np.ndarray]], first: int) -> np.ndarray:
        tally, sums = Tally(parts), np.zeros((len(parts.names), _SKETCH))
        for index in range(min(first, len(reference) - 1), len(reference), 2):
            sketcher.add(sums, index, tally.add(reference[index], changed[index]))
        return tally.in_l2(sums).astype(np.float32)

    return len(reference), lambda changed: np.stack([half(changed, 0), half(changed, 1)])
