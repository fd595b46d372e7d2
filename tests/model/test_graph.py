"""Blocks and flows of the tiny models, and choosing blocks by rule and pattern."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.model import graph as graphs
from taglio.model.graph import Graph
from taglio.model.load import load
from taglio.model.select import match
from tests.models import (
    TINY,
    Sketch,
    branching,
    conv_relu_chain,
    digits_model,
    loaded,
    parsed,
    pyramid,
    residual,
    silu,
)


def graph_of(proto: onnx.ModelProto, folder: Path) -> Graph:
    return graphs.build(loaded(proto, folder))


def kinds(graph: Graph) -> dict[str, str]:
    return {block.name: block.kind for block in graph.blocks}


# Blocks


def test_an_anchor_takes_its_activation(tmp_path: Path) -> None:
    graph = graph_of(conv_relu_chain(), tmp_path)
    assert kinds(graph) == {"conv0": "Conv+Relu", "conv2": "Conv+Clip", "conv4": "Conv", "conv5": "Conv+LeakyRelu"}
    assert [block.soft_tail for block in graph.blocks] == [False, False, False, True]
    assert graph.block("conv0").operators == ("conv0", "relu1")


def test_x_times_sigmoid_of_x_is_one_block(tmp_path: Path) -> None:
    graph = graph_of(silu(), tmp_path)
    assert graph.block("conv0").kind == "Conv+Sigmoid+Mul"
    assert graph.block("conv0").outputs == ("mul2_out",)
    assert graph.block("conv0").inputs == ("x",)
    # A gate of another tensor is an activation, and its product a block of its own.
    assert graph.block("conv8").kind == "Conv+Sigmoid"
    assert graph.block("mul10").kind == "Mul"


def test_an_activation_of_a_shared_or_leaving_tensor_stays_outside(tmp_path: Path) -> None:
    g = Sketch(42)
    x = g.conv(g.input("x", 1, 3, 8, 8), 3, 4)
    y = g.op("Add", g.op("Relu", x), x)
    z = g.conv(y, 4, 4)
    graph = graph_of(g.model(g.op("Relu", z), z), tmp_path)
    assert [block.kind for block in graph.blocks] == ["Conv", "Relu", "Add", "Conv", "Relu"]


@pytest.mark.parametrize("name", [*TINY, "digits"])
def test_blocks_cover_the_operators_once_and_in_order(name: str, tmp_path: Path) -> None:
    model = load(digits_model()) if name == "digits" else loaded(TINY[name](), tmp_path)
    graph = graphs.build(model)
    operators = [operator for block in graph.blocks for operator in block.operators]
    assert Counter(operators) == Counter(node.name for node in model.proto.graph.node)
    ready = {spec.name for spec in model.inputs}
    for block in graph.blocks:
        assert set(block.inputs) <= ready
        ready |= set(block.outputs)
    tensors = graph.tensor_map()
    for block in graph.blocks:
        for tensor in block.outputs:
            assert tensors[tensor].producer == block.name
        for tensor in block.inputs:
            assert block.name in tensors[tensor].consumers
    assert set(model.outputs) <= set(tensors)
    assert graph.model_sha256 == model.sha256


def test_weights_that_no_form_changes_are_counted_in_every_form(tmp_path: Path) -> None:
    """Those in the bodies of an If, and those that are not float."""
    block = graph_of(branching(), tmp_path).block("if")
    assert (block.weight_bytes(32), block.weight_bytes(8)) == (32, 32)
    g = Sketch()
    quantised = g.op("DynamicQuantizeLinear", g.input("x", 1, 16), outputs=3)
    g.op("Cast", g.op("MatMulInteger", quantised, g.constant(np.ones((16, 4), np.uint8))), to=onnx.TensorProto.FLOAT)
    assert graph_of(g.model("cast2_out"), tmp_path).block("matmulinteger1").weight_bytes(32) == 16 * 4


def test_parameters_in_attributes_are_weights(tmp_path: Path) -> None:
    """As those of a tree ensemble are."""
    trees = f"[trees] y = ai.onnx.ml.LinearRegressor <coefficients = {[0.5] * 40}> (x)"
    proto = parsed(f"(float[1, 40] x) => (float[1, 1] y) {{ {trees} }}", imports='"": 17, "ai.onnx.ml": 3')
    assert 40 * 4 < graph_of(proto, tmp_path).block("trees").weight_bytes(8) < 40 * 4 + 100


# Flows


def test_a_flow_follows_values_through_movement(tmp_path: Path) -> None:
    graph = graph_of(pyramid(), tmp_path)
    by_name = {flow.name: flow for flow in graph.flows}
    first = by_name["relu1_out"]
    assert first.producer == "conv0"
    assert first.moves == ("maxpool2",)
    assert first.tensors == ("relu1_out", "maxpool2_out")
    assert set(first.readers) == {("relu1_out", "concat5"), ("maxpool2_out", "conv3")}
    split = by_name["concat5_out"]
    assert split.tensors == ("concat5_out", "split6_out", "split6_out1")
    assert set(split.readers) == {("split6_out", "conv7"), ("split6_out1", "conv8")}
    last = by_name["concat9_out"]
    assert last.moves == ("transpose10", "reshape11")
    assert last.readers == (("y", ""),)
    assert by_name["x"].producer is None


@pytest.mark.parametrize("name", TINY)
def test_every_tensor_is_in_one_flow_and_every_reading_too(name: str, tmp_path: Path) -> None:
    graph = graph_of(TINY[name](), tmp_path)
    moving = {block.name for block in graph.blocks if block.movement and block.quantizable}
    assert Counter(tensor for flow in graph.flows for tensor in flow.tensors) == Counter(t.name for t in graph.tensors)
    readings = Counter(reader for flow in graph.flows for reader in flow.readers)
    expected = Counter(
        (name, block.name) for block in graph.blocks if block.name not in moving for name in block.inputs
    )
    expected.update((name, "") for name in graph.outputs)
    assert readings == expected


# Choosing


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return graph_of(residual(), tmp_path_factory.mktemp("chain"))


def test_patterns_match_blocks_and_their_operators(chain: Graph) -> None:
    assert match(chain, ["conv*"]) == ("conv0", "conv2", "conv4", "conv7", "conv9")
    assert match(chain, ["relu1", "add?"]) == ("conv0", "add5")
    assert match(chain, ["conv0", "conv?"]) == ("conv0", "conv2", "conv4", "conv7", "conv9")


def test_a_weight_that_is_an_output_too_is_no_activation_of_its_readers(tmp_path: Path) -> None:
    """Else it would be calibrated, and could travel as int8."""
    proto = parsed("(float[1, 4] x) => (float[1, 4] y, float[4, 4] w) { y = MatMul (x, w) }", {"w": np.eye(4)})
    flows = {flow.name: flow.readers for flow in graph_of(proto, tmp_path).flows}
    assert flows["w"] == (("w", ""),)
