"""Measure how much longer a component takes after its device has waited. Runs no user model."""

import time
from dataclasses import replace
from itertools import repeat
from statistics import median

import numpy as np
from onnx import numpy_helper
from onnx.parser import parse_model

from taglio.model.inputs import Feed
from taglio.profile.result import Profile
from taglio.profile.rounds import run_for
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.session import Session

_WAITS = 25


def with_waking(profile: Profile) -> Profile:
    """A profile of this device with what waiting costs here, which only plans for several devices need; as it is if
    that is known."""
    conditions = profile.conditions
    if conditions.waking_s > 0.0:
        return profile
    return replace(profile, conditions=replace(conditions, waking_s=waking_seconds(conditions.threads)))


def waking_seconds(threads: int) -> float:
    """How many seconds longer a component takes after the process has waited than right after another run: its
    processor sleeps, and its caches are cold. Much the same for all components from 0.2 to 2 ms, but a third of it for
    one operator on a few kilobytes."""
    session, feed = _component(threads)
    run_for(0.03, "component", session, repeat([feed]))  # the first runs allocate
    ready = median(run_for(0.03, "component", session, repeat([feed])))
    waited = []
    for _ in range(_WAITS):
        time.sleep(0.01)  # a device waits milliseconds for other devices
        waited += run_for(0.0, "component", session, repeat([feed]))
    return max(0.0, median(waited) - ready)


def _component(threads: int) -> tuple[Session, Feed]:
    """A float model of a memory-bound layer (6.5 MB, 7 million multiply-adds), a pooling and a compute-bound layer (15
    million)."""
    rng = np.random.default_rng(0)
    weights = {
        "deep": rng.standard_normal((32, 1, 3, 3)).astype(np.float32),
        "full": rng.standard_normal((32, 32, 3, 3)).astype(np.float32),
    }
    model = parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        component (float[1, 32, 96, 96] x) => (float[1, 32, h, w] y) {
            wide = Conv <pads = [1, 1, 1, 1], group = 32> (x, deep)
            small = MaxPool <kernel_shape = [4, 4], strides = [4, 4]> (wide)
            y = Conv <pads = [1, 1, 1, 1]> (small, full)
        }"""
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    feed = {"x": rng.standard_normal((1, 32, 96, 96)).astype(np.float32)}
    return open_session(model, SessionOptions(threads)), feed
