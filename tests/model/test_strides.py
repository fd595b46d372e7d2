"""Strides of 1×1 convolutions move up to the convolutions before them, and nowhere else."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.model import graph as graphs
from taglio.model.strides import move_strides
from taglio.quantize.precision import Precision
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import calibrate
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import Sketch, exact, feeds, loaded, stage


def strided(g: Sketch, source: str, stride: int = 2) -> str:
    return g.op("Conv", source, g.weight(12, 8, 1, 1), strides=[stride, stride])


def strides(proto: onnx.ModelProto) -> list[tuple[str, int]]:
    """Convolutions and pools, with their strides."""
    stride_pairs = [
        (node, next((attribute.ints[0] for attribute in node.attribute if attribute.name == "strides"), 1))
        for node in proto.graph.node
    ]
    return [(node.op_type, stride) for node, stride in stride_pairs if node.op_type in ("Conv", "MaxPool")]


@pytest.mark.parametrize("size", [8, 9])
def test_a_block_computes_only_what_is_read(tmp_path: Path, size: int) -> None:
    proto = stage(size)
    model = loaded(proto, tmp_path)
    one = ("Conv", 1)
    assert strides(model.proto) == [one, one, ("Conv", 2), one, ("MaxPool", 2), one, one, one]
    feed = {"x": np.random.default_rng(0).normal(0, 1, (1, 3, size, size)).astype(np.float32)}
    (before,), (after,) = (open_session(version, SessionOptions(1)).run(None, feed) for version in (proto, model.proto))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    onnx.checker.check_model(model.proto, full_check=True)  # shapes are those of the smaller tensors


def another_reader(g: Sketch, x: str) -> list[str]:
    y = g.conv(x, 8, 8)
    return [strided(g, y), g.op("Relu", y)]


def an_output(g: Sketch, x: str) -> list[str]:
    y = g.conv(x, 8, 8)
    return [strided(g, y), y]


def unequal_strides(g: Sketch, x: str) -> list[str]:
    y = g.conv(x, 8, 8)
    return [strided(g, y), strided(g, y, 3)]


def pads_that_depend_on_strides(g: Sketch, x: str) -> list[str]:
    return [strided(g, g.op("Conv", x, g.weight(8, 8, 3, 3), auto_pad="SAME_UPPER"))]


def no_convolution_before(g: Sketch, x: str) -> list[str]:
    return [strided(g, g.op("Relu", x))]


def a_constant_per_place(g: Sketch, x: str) -> list[str]:
    return [strided(g, g.op("Add", g.conv(x, 8, 8), g.constant(np.ones((8, 8), np.float32))))]


def a_wide_kernel(g: Sketch, x: str) -> list[str]:
    return [g.op("Conv", g.conv(x, 8, 8), g.weight(8, 8, 2, 2), strides=[2, 2])]


def padding(g: Sketch, x: str) -> list[str]:
    return [g.op("Conv", g.conv(x, 8, 8), g.weight(8, 8, 1, 1), strides=[2, 2], pads=[1] * 4)]


@pytest.mark.parametrize(
    "ends",
    [
        another_reader, an_output, unequal_strides, pads_that_depend_on_strides, no_convolution_before,
        a_constant_per_place, a_wide_kernel, padding,
    ],
)  # fmt: skip
def test_strides_stay(ends: Callable[[Sketch, str], list[str]]) -> None:
    g = Sketch()
    proto = g.model(*ends(g, g.input("x", 1, 8, 8, 8)))
    before = proto.SerializeToString(deterministic=True)
    move_strides(proto.graph)
    assert proto.SerializeToString(deterministic=True) == before


def test_openvino_computes_every_convolution_in_int8(tmp_path: Path) -> None:
    """Strides that stay at 1×1 convolutions put a MaxPool between a pair and these, in float."""
    openvino = pytest.importorskip("openvino", reason="taglio[openvino] is not installed")
    model, scheme = loaded(stage(), tmp_path), exact()
    graph = graphs.build(model)
    builder = QdqBuilder(model, graph, calibrate(model, feeds(model, 2)))
    whole = Precision("int8", scheme)
    onnx.save(builder.build({block.name: whole for block in graph.candidates()}), tmp_path / "int8.onnx")
    compiled = openvino.Core().compile_model(tmp_path / "int8.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    infos = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    types = [info["runtimePrecision"].astype(str) for info in infos if info["layerType"].astype(str) == "Convolution"]
    assert len(types) == 7 and not {"f32", "FP32"} & set(types)
