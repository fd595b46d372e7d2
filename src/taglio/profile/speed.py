"""Measure the machine's present speed by timing fixed computations. Runs no user model.

A shared machine is not always as fast as it was when a model was profiled; predictions are then off by as much, and the
user should know. Also, a device that waits for others has cold caches at its turn, unlike in a profile, where one run
follows another.
"""

import time
from collections.abc import Sequence
from functools import cache
from itertools import repeat
from math import ceil
from statistics import fmean, median

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from taglio.cores import quota
from taglio.profile.stopwatch import run_for
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.session import Session

# Like networks: a memory-bound layer (6.5 MB, 7 million multiply-adds), a compute-bound one (15 million); and like a
# component, a third of both.
_CHANNELS, _SIZE, _SMALLER = 32, 160, 96
REFERENCE_S = 0.3
_EVERY_S = 2.0
# A device waits milliseconds for other devices; the median of _WAITS runs after such waits is used.
_WAIT_S, _WAITS, _READY_S = 0.01, 25, 0.03


def reference_seconds(threads: int, least_s: float = REFERENCE_S) -> float:
    """Mean seconds of the reference computation in `threads` threads, over at least `least_s` seconds.

    If the threads exceed a processor quota, it is used up first, and then whole periods are measured: at half a core, a
    process that has rested computes at full speed before it is paused for as long.
    """
    session, feed = _session(threads)
    allowed, before_s = quota(), 0.0
    if threads > allowed.share:
        before_s, least_s = allowed.period_s, ceil(least_s / allowed.period_s) * allowed.period_s
    run_for(before_s, "reference", session, repeat(feed))
    return fmean(run_for(least_s, "reference", session, repeat(feed)))


def middle_half(seconds: Sequence[float]) -> tuple[float, float]:
    """The 25th and 75th percentile of `seconds`."""
    low, high = np.percentile(seconds, (25, 75))
    return float(low), float(high)


def waking_seconds(threads: int) -> float:
    """How many seconds longer a component takes after the process has waited than right after another run: its
    processor sleeps, and its caches are cold. Much the same for all components from 0.2 to 2 ms, but a third of it for
    one operator on a few kilobytes."""
    session, feed = _session(threads, _SMALLER)
    run_for(_READY_S, "component", session, repeat(feed))  # the first runs allocate
    ready = median(run_for(_READY_S, "component", session, repeat(feed)))
    waited = []
    for _ in range(_WAITS):
        time.sleep(_WAIT_S)
        waited += run_for(0.0, "component", session, repeat(feed))
    return max(0.0, median(waited) - ready)


class Speeds:
    """Times the reference computation every few seconds while something else is measured."""

    def __init__(self, threads: int, least_s: float = REFERENCE_S) -> None:
        self._threads, self._least_s = threads, least_s
        self._seen = [reference_seconds(threads, least_s)]
        self._looked_s = time.monotonic()

    def look(self) -> None:
        """Time it again if the last time was more than `_EVERY_S` seconds ago."""
        if time.monotonic() - self._looked_s > _EVERY_S:
            self._seen.append(reference_seconds(self._threads, self._least_s))
            self._looked_s = time.monotonic()

    def finish(self) -> tuple[float, ...]:
        """All times so far, and one more."""
        return (*self._seen, reference_seconds(self._threads, self._least_s))


@cache
def _session(threads: int, size: int = _SIZE) -> tuple[Session, dict[str, np.ndarray]]:
    """A float model of two layers and a pooling between them, on `size` × `size` values of each channel."""
    rng = np.random.default_rng(0)
    weights = {
        "deep": rng.standard_normal((_CHANNELS, 1, 3, 3)).astype(np.float32),
        "full": rng.standard_normal((_CHANNELS, _CHANNELS, 3, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "deep"], ["wide"], name="deep", pads=[1, 1, 1, 1], group=_CHANNELS),
        helper.make_node("MaxPool", ["wide"], ["small"], name="pool", kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Conv", ["small", "full"], ["y"], name="full", pads=[1, 1, 1, 1]),
    ]
    shape, out_shape = (1, _CHANNELS, size, size), (1, _CHANNELS, size // 4, size // 4)
    graph = helper.make_graph(
        nodes,
        "reference",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out_shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return open_session(model, SessionOptions(threads)), {"x": rng.standard_normal(shape).astype(np.float32)}
