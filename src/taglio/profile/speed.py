"""How fast a machine is at the moment: one fixed computation, timed. Knows no model of the user's.

A machine that others share is not always as fast as it was when a model was profiled on it. Then predictions are off
by as much, and who reads them should be told so.
"""

import time
from functools import cache
from itertools import repeat
from statistics import fmean, median

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from taglio.profile.stopwatch import run_for
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.session import Session

# What networks do: a layer that waits for memory (6.5 MB, 7 million multiply-adds), and one that computes (15 million).
_CHANNELS, _SIZE = 32, 160
_LEAST_S = 0.3
_EVERY_S = 2.0


def reference_seconds(threads: int) -> float:
    """Seconds that the computation takes at present in `threads` threads, in the mean of 0.3 s."""
    session, feed = _session(threads)
    run_for(0.0, "reference", session, repeat(feed))
    return fmean(run_for(_LEAST_S, "reference", session, repeat(feed)))


class Speeds:
    """What it takes every few seconds, while something else is measured."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._seen = [reference_seconds(threads)]
        self._looked_s = time.monotonic()

    def look(self) -> None:
        """Time it again where that was long ago."""
        if time.monotonic() - self._looked_s > _EVERY_S:
            self._seen.append(reference_seconds(self._threads))
            self._looked_s = time.monotonic()

    def typical(self) -> float:
        """The median of all, one more included."""
        return median([*self._seen, reference_seconds(self._threads)])


@cache
def _session(threads: int) -> tuple[Session, dict[str, np.ndarray]]:
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
    shape = [1, _CHANNELS, _SIZE, _SIZE]
    graph = helper.make_graph(
        nodes,
        "reference",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, _CHANNELS, _SIZE // 4, _SIZE // 4])],
        [numpy_helper.from_array(each, name) for name, each in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    feed = {"x": rng.standard_normal(shape).astype(np.float32)}
    return open_session(model, SessionOptions(threads)), feed
