"""What the switchable graph rounds to bfloat16 is what OpenVINO rounds."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.error.switchable import Switchable
from taglio.model import graph as graphs
from taglio.quantize.precision import BFLOAT16, Precision
from taglio.quantize.qdq import QdqBuilder, in_bfloat16
from taglio.quantize.ranges import calibrate
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.session import opener
from tests.models import Sketch, feeds, loaded
from tests.processor import needs_bfloat16

SCHEME = Scheme()
ONE_THREAD = SessionOptions(threads=1)
LARGE = 30.0
"""How much larger biases are than the values that they are added to: then their rounding decides."""


def convolutions() -> onnx.ModelProto:
    """A convolution of all channels, one of each, and one that doubles the size, all with large biases."""
    g = Sketch(1)
    x = g.input("x", 1, 16, 12, 12)
    for group in (1, 16):
        bias = g.constant(g.rng.normal(0, LARGE, 16))
        x = g.op("Relu", g.op("Conv", x, g.weight(16, 16 // group, 3, 3), bias, pads=[1] * 4, group=group))
    bias = g.constant(g.rng.normal(0, LARGE, 16))
    x = g.op("ConvTranspose", x, g.weight(16, 16, 2, 2), bias, strides=[2, 2])
    return g.model(g.rename(g.conv(x, 16, 16, bias=False), "y"))


def products() -> onnx.ModelProto:
    """Two products with large biases."""
    g = Sketch(2)
    x = g.input("x", 1, 12, 32)
    for _ in range(2):
        x = g.op("Add", g.op("MatMul", x, g.weight(32, 32)), g.constant(g.rng.normal(0, LARGE, 32)))
    return g.model(g.rename(g.op("MatMul", x, g.weight(32, 8)), "y"))


@needs_bfloat16
@pytest.mark.parametrize("make", [convolutions, products])
def test_the_switchable_graph_rounds_what_openvino_rounds(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    model = loaded(make(), tmp_path)
    graph, data = graphs.build(model), feeds(model, 2)
    builder = QdqBuilder(model, graph, calibrate(model, data))
    low = {block.name: BFLOAT16 for block in graph.choices() if BFLOAT16.fits(block)}
    path, feed = tmp_path / "built.onnx", dict(data.samples[0])
    onnx.save(builder.build(low), path)
    (built,) = opener("openvino")(path, SessionOptions(1, runtime="openvino")).run(["y"], feed)
    switchable = Switchable(graph, builder, (Precision("int8", SCHEME), BFLOAT16), ONE_THREAD)
    (imitated,) = switchable.run(low, feed)
    (exact,) = open_session(model.proto, ONE_THREAD).run(["y"], feed)
    # What a model returns is not rounded where the last block writes it.
    rounded = in_bfloat16(built)
    assert np.linalg.norm(imitated - rounded) < 0.02 * np.linalg.norm(in_bfloat16(exact) - rounded)
