"""Layers alone: every block is timed, the numbers of each sub-model, and speed-ups."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.model.graph import build
from taglio.model.inputs import random_feed
from taglio.profile.layerwise import LayerCutter, layer_times
from taglio.quantize.precision import FLOAT32, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.quantize.scheme import parse_scheme
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.components.cases import Case, digits
from tests.models import loaded, parsed

ONE = SessionOptions(threads=1)
SCHEME = parse_scheme("u8s8-asym-pc-rr")  # as exact on every processor
CHOICES = precisions(SCHEME)
INT8 = CHOICES[1]

Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def network() -> Case:
    return digits()


@pytest.fixture(scope="module")
def cutter(network: Case) -> LayerCutter:
    return LayerCutter(network.builder, network.graph)


@pytest.fixture(scope="module")
def tensors(network: Case) -> Tensors:
    """Every tensor between blocks, as the whole float model computes it on one held-out image."""
    model, graph, feed = network.model, network.graph, network.held_out.samples[0]
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    names = [tensor.name for tensor in graph.tensors if tensor.name not in feed]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in model.outputs)
    session = open_session(proto, SessionOptions(1, Optimization.BASIC))
    return {**feed, **dict(zip(names, session.run(names, feed), strict=True))}


def run(proto: onnx.ModelProto, tensors: Tensors) -> list[np.ndarray]:
    feed = {value.name: tensors[value.name] for value in proto.graph.input}
    return [np.asarray(value) for value in open_session(proto, ONE).run(None, feed)]


def test_every_block_is_timed_in_every_form_it_has(network: Case) -> None:
    graph = network.graph
    times = layer_times(network.builder, graph, CHOICES, ONE, random_feed(network.model.inputs, 0))

    expected = {
        (block.name, precision.name) for block in graph.blocks for precision in CHOICES if precision.fits(block)
    }
    assert times.keys() == expected
    assert {name for name, precision in expected if precision == "float32"} == {block.name for block in graph.blocks}
    assert ("/Flatten", "int8") in expected  # a movement block
    assert ("/fine/fine.0/activation/Relu", "int8") not in expected  # a refused block
    assert all(seconds > 0.0 for seconds in times.values())


def test_a_float_layer_computes_what_the_whole_model_computes(
    network: Case, cutter: LayerCutter, tensors: Tensors
) -> None:
    for block in network.graph.blocks:
        proto = cutter.layer(block, FLOAT32)
        assert "QuantizeLinear" not in {node.op_type for node in proto.graph.node}
        assert [value.name for value in proto.graph.input] == list(block.inputs)
        for name, value in zip(block.outputs, run(proto, tensors), strict=True):
            np.testing.assert_allclose(value, tensors[name], rtol=1e-4, atol=1e-5, err_msg=f"{block.name}: {name}")


def test_an_int8_layer_has_the_real_scales(network: Case, cutter: LayerCutter, tensors: Tensors) -> None:
    """Fed real values and dequantised by the builder's own scale, every int8 layer is near the float model."""
    for block in network.graph.candidates():
        for name, value in zip(block.outputs, run(cutter.layer(block, INT8), tensors), strict=True):
            parameters = network.builder.parameters(name, SCHEME)
            restored = (value.astype(np.float32) - int(parameters.zero_point)) * parameters.scale
            distance = np.linalg.norm(restored - tensors[name]) / np.linalg.norm(tensors[name])
            assert distance < 0.06, f"{block.name}: {name} is {distance:.1%} off"


def test_an_index_that_is_computed_keeps_its_real_values(tmp_path: Path) -> None:
    """TopK's positions feed a Gather: random integers would point outside; the whole model's values are used."""
    proto = parsed("""(float[1, 300] x) => (float[1, 3] picked) <int64[1] k = {3}, int64[1] axis = {0}> {
        y = Relu (x)
        best, where = TopK <axis = 1> (y, k)
        index = Squeeze (where, axis)
        picked = Gather <axis = 1> (y, index)
    }""")
    model = loaded(proto, tmp_path)
    graph = build(model)
    builder = QdqBuilder(model, graph, {"minmax": Ranges("minmax", "", {})})

    times = layer_times(builder, graph, [FLOAT32], ONE, random_feed(model.inputs, 0))

    assert {block for block, _ in times} == {block.name for block in graph.blocks}
