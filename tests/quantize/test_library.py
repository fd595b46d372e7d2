"""ONNX Runtime's own tools: what was asked is converted, nothing else is, and what cannot be is refused by name."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from taglio.errors import BadOption, CannotQuantize
from taglio.model import graph as graphs
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.quantize.library import dynamic, float16, most, qoperator
from taglio.quantize.ranges import Ranges, calibrate
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import (
    TINY,
    Sketch,
    conv_relu_chain,
    conv_transpose,
    dense,
    exact,
    feeds,
    loaded,
    messy,
    residual,
    silu,
    softmax_sandwich,
    two_in_two_out,
)

QOPERATOR = exact("qoperator-u8s8-asym-pc")
DYNAMIC = exact("u8s8-asym-pt")
Case = tuple[Model, Graph, Ranges]


def case(proto: onnx.ModelProto, folder: Path) -> Case:
    model = loaded(proto, folder)
    return model, graphs.build(model), calibrate(model, feeds(model, 3), "minmax")


def run(proto: onnx.ModelProto, model: Model) -> list[np.ndarray]:
    outputs: list[np.ndarray] = open_session(proto, SessionOptions(threads=1)).run(None, feeds(model, 1).samples[0])
    return outputs


def distance(reference: list[np.ndarray], others: list[np.ndarray]) -> float:
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(a)) for a, b in zip(reference, others, strict=True))


def kinds(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in proto.graph.node)


def anchors(graph: Graph) -> list[str]:
    return [block.name for block in graph.blocks if block.kind.split("+")[0] in ("Conv", "MatMul", "Gemm")]


def test_nothing_asked_is_a_copy(tmp_path: Path) -> None:
    model, graph, ranges = case(residual(), tmp_path)
    made = (
        qoperator(model, graph, (), QOPERATOR, ranges),
        dynamic(model, graph, (), DYNAMIC),
        float16(model, graph, ()),
    )
    for proto in made:
        assert proto == model.proto
        assert proto is not model.proto


@pytest.mark.parametrize("name", TINY)
def test_the_model_is_not_written_to_and_outputs_keep_their_names(name: str, tmp_path: Path) -> None:
    model, graph, ranges = case(TINY[name](), tmp_path)
    before = model.proto.SerializeToString(deterministic=True)
    first = [next(block.name for block in graph.candidates() if block.weights)]
    made = [qoperator(model, graph, first, QOPERATOR, ranges), float16(model, graph, [b.name for b in graph.blocks])]
    if chosen := [name for name in anchors(graph) if graph.block(name).weights]:
        made.append(dynamic(model, graph, chosen, DYNAMIC))
    assert model.proto.SerializeToString(deterministic=True) == before
    for proto in made:
        assert [value.name for value in proto.graph.output] == list(model.outputs)
        onnx.checker.check_model(proto)
        assert distance(run(model.proto, model), run(proto, model)) < 0.1


def test_an_unknown_block_is_refused(tmp_path: Path) -> None:
    model, graph, ranges = case(residual(), tmp_path)
    with pytest.raises(BadOption, match='no block "conv99"'):
        qoperator(model, graph, ["conv99"], QOPERATOR, ranges)
    with pytest.raises(BadOption, match='no block "conv99"'):
        dynamic(model, graph, ["conv99"], DYNAMIC)
    with pytest.raises(BadOption, match='no block "conv99"'):
        float16(model, graph, ["conv99"])


# QOperator


def test_blocks_on_which_the_tool_fails_are_refused_in_one_line(tmp_path: Path) -> None:
    """Where a float Where reads a Gemm, the tool loses the tensor between them."""
    g = Sketch()
    y = g.op("Gemm", g.input("x", 1, 20), g.weight(20, 40))
    g.inputs.append(onnx.helper.make_tensor_value_info("allowed", TensorProto.BOOL, [1, 40]))
    y = g.op("Where", "allowed", y, g.constant(-100.0))
    model, graph, ranges = case(g.model(g.rename(y, "y")), tmp_path)
    with pytest.raises(CannotQuantize, match="QOperator tool fails on these blocks: Invalid model with unknown"):
        qoperator(model, graph, ["gemm0"], QOPERATOR, ranges)


def test_qoperator_converts_what_was_asked_alone(tmp_path: Path) -> None:
    model, graph, ranges = case(residual(), tmp_path)
    made = qoperator(model, graph, ["conv2", "conv4", "add5"], QOPERATOR, ranges)
    assert {kind: count for kind, count in kinds(made).items() if kind.startswith("QLinear")} == {
        "QLinearConv": 2,
        "QLinearAdd": 1,
    }
    assert kinds(made)["Conv"] + kinds(made)["FusedConv"] == 3


def test_float_between_int8_stays_float(tmp_path: Path) -> None:
    model, graph, ranges = case(conv_transpose(), tmp_path)
    made = qoperator(model, graph, ["conv0", "conv3"], QOPERATOR, ranges)
    open_session(made, SessionOptions(threads=1), save_optimized=tmp_path / "optimized.onnx")
    assert kinds(onnx.load(tmp_path / "optimized.onnx"))["ConvTranspose"] == 1
    model, graph, ranges = case(softmax_sandwich(), tmp_path)
    made = qoperator(model, graph, [block.name for block in graph.candidates()], QOPERATOR, ranges)
    open_session(made, SessionOptions(threads=1), save_optimized=tmp_path / "optimized.onnx")
    assert kinds(onnx.load(tmp_path / "optimized.onnx"))["Softmax"] == 1


@pytest.mark.parametrize("scheme", ["qoperator-u8s8-sym", "qoperator-s8s8-sym"])
def test_a_relu_that_is_not_free_is_int8_all_the_same(scheme: str, tmp_path: Path) -> None:
    model, graph, ranges = case(residual(), tmp_path)
    made = qoperator(model, graph, ["conv0"], exact(scheme), ranges)
    assert kinds(made)["QLinearLeakyRelu"] == 1
    free = qoperator(model, graph, ["conv0"], QOPERATOR, ranges)
    assert kinds(free)["Relu"] == kinds(made)["Relu"]
    assert kinds(free)["QLinearLeakyRelu"] == 0


def test_movement_is_int8_only_behind_int8(tmp_path: Path) -> None:
    g = Sketch(61)
    x = g.op("MaxPool", g.input("x", 1, 3, 8, 8), kernel_shape=[2, 2], strides=[2, 2])
    x = g.op("MaxPool", g.conv(x, 3, 4), kernel_shape=[2, 2], strides=[2, 2])
    model, graph, ranges = case(g.model(x), tmp_path)
    made = qoperator(model, graph, [block.name for block in graph.blocks], QOPERATOR, ranges)
    reads = {node.op_type + node.name: node.input[0] for node in made.graph.node}
    assert reads["MaxPoolmaxpool0"] == "x"
    assert reads["MaxPoolmaxpool2"] != "conv1_out"


def test_a_bias_shared_by_two_convolutions_gets_two_scales(tmp_path: Path) -> None:
    g = Sketch(62)
    bias = g.constant(g.rng.normal(0, 0.3, 8))
    x = g.op("Conv", g.input("x", 1, 3, 8, 8), g.weight(8, 3, 3, 3, gain=9.0), bias, pads=[1] * 4)
    x = g.op("Conv", x, g.weight(8, 8, 3, 3, gain=0.1), bias, pads=[1] * 4)
    model, graph, ranges = case(g.model(x), tmp_path)
    made = qoperator(model, graph, ["conv0", "conv1"], QOPERATOR, ranges)
    assert distance(run(model.proto, model), run(made, model)) < 0.05
    # And a float operator that shares one still reads it in float.
    alone = qoperator(model, graph, ["conv1"], QOPERATOR, ranges)
    assert bias in {tensor.name for tensor in alone.graph.initializer if tensor.data_type == TensorProto.FLOAT}


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("qoperator-u8u8-asym-pc", "block conv0: QOperator's per-channel Conv has symmetric s8 weights only"),
        ("qoperator-u8s8-asym-wasym-pc", "per-channel Conv has symmetric s8 weights only"),
    ],
)
def test_weights_that_the_tool_would_store_otherwise_are_refused(scheme: str, words: str, tmp_path: Path) -> None:
    model, graph, ranges = case(residual(), tmp_path)
    with pytest.raises(CannotQuantize, match=words):
        qoperator(model, graph, ["conv0"], exact(scheme), ranges)


def test_what_has_no_qlinear_operator_is_refused(tmp_path: Path) -> None:
    g = Sketch(63)
    x = g.op("Tanh", g.conv(g.input("x", 1, 3, 8, 8), 3, 4))
    model, graph, ranges = case(g.model(g.op("GlobalAveragePool", x)), tmp_path)
    with pytest.raises(CannotQuantize, match="block conv0: QOperator has no int8 Tanh"):
        qoperator(model, graph, ["conv0"], QOPERATOR, ranges)
    with pytest.raises(CannotQuantize, match=r"block globalaveragepool2: .* its input is float there"):
        qoperator(model, graph, ["globalaveragepool2"], QOPERATOR, ranges)
    model, graph, ranges = case(conv_transpose(), tmp_path)
    with pytest.raises(CannotQuantize, match="block convtranspose2: QOperator has no int8 ConvTranspose"):
        qoperator(model, graph, ["convtranspose2"], QOPERATOR, ranges)


# Dynamic


@pytest.mark.parametrize("scheme", ["u8s8-asym-pt", "u8u8-asym-pt", "u8s8-asym-wasym-pt-rr"])
def test_dynamic_convolutions(scheme: str, tmp_path: Path) -> None:
    model, graph, _ = case(conv_relu_chain(), tmp_path)
    made = dynamic(model, graph, ["conv0", "conv5"], exact(scheme))
    assert (kinds(made)["ConvInteger"], kinds(made)["Conv"]) == (2, 2)
    order = {node.name: index for index, node in enumerate(made.graph.node)}
    for name in ("conv0", "conv5"):  # what ONNX Runtime's OpenVINO provider needs
        assert order[f"{name}_quant"] < order[f"{name}_quant_scales_mul"]
    assert 0 < distance(run(model.proto, model), run(made, model)) < 0.05


@pytest.mark.parametrize("scheme", ["u8s8-asym-pc", "u8s8-asym-pt"])
def test_dynamic_products(scheme: str, tmp_path: Path) -> None:
    model, graph, _ = case(dense(), tmp_path)
    made = dynamic(model, graph, ["matmul2", "gemm8"], exact(scheme))
    assert kinds(made)["MatMulInteger"] == 2
    assert 0 < distance(run(model.proto, model), run(made, model)) < 0.05
    stored = {tensor.name: tensor for tensor in made.graph.initializer}
    scales = [stored[name].dims for name in stored if name.endswith("_scale") and name[:-6] + "_quantized" in stored]
    assert sorted(list(dims) for dims in scales) == ([[7], [12]] if scheme.endswith("pc") else [[], []])


def test_dynamic_leaves_weights_tied_between_float_products_alone(tmp_path: Path) -> None:
    g = Sketch(64)
    tied = g.weight(8, 8)
    x = g.op("Gemm", g.input("x", 2, 8), tied, transB=1)
    x = g.op("Gemm", g.op("Gemm", x, tied, transB=1), g.weight(8, 4))
    model, graph, _ = case(g.model(x), tmp_path)
    assert distance(run(model.proto, model), run(dynamic(model, graph, ["gemm2"], DYNAMIC), model)) < 0.05


def test_dynamic_refusals(tmp_path: Path) -> None:
    model, graph, _ = case(dense(), tmp_path)
    with pytest.raises(CannotQuantize, match="block matmul4 cannot be dynamic int8: its weights are computed"):
        dynamic(model, graph, ["matmul4"], DYNAMIC)
    with pytest.raises(CannotQuantize, match="does Conv, Gemm, MatMul, this is Transpose"):
        dynamic(model, graph, ["transpose3"], DYNAMIC)
    with pytest.raises(BadOption, match="always u8 asymmetric: use u8s8-asym"):
        dynamic(model, graph, ["gemm8"], exact("s8s8-sym"))
    g = Sketch(65)
    x = g.op("Gemm", g.input("x", 4, 2), g.weight(4, 3), transA=1)
    model, graph, _ = case(g.model(g.op("Gemm", x, g.weight(3, 3), beta=0.5, alpha=2.0)), tmp_path)
    with pytest.raises(CannotQuantize, match=r"block gemm0 .* transposes its input"):
        dynamic(model, graph, ["gemm0"], DYNAMIC)
    with pytest.raises(CannotQuantize, match=r"block gemm1 .* alpha or beta"):
        dynamic(model, graph, ["gemm1"], DYNAMIC)
    model, graph, _ = case(conv_relu_chain(), tmp_path)
    with pytest.raises(CannotQuantize, match=r"block conv0 .* ConvInteger one per tensor: write pt"):
        dynamic(model, graph, ["conv0"], exact("u8s8-asym-pc"))


# float16


@pytest.mark.parametrize("name", TINY)
def test_float16_of_any_block_is_close_and_of_float16(name: str, tmp_path: Path) -> None:
    model, graph, _ = case(TINY[name](), tmp_path)
    reference = run(model.proto, model)
    for blocks in [[block.name] for block in graph.blocks] + [[block.name for block in graph.blocks]]:
        made = float16(model, graph, blocks)
        assert distance(reference, run(made, model)) < 2e-3
        halves = {t.name for t in made.graph.initializer if t.data_type == TensorProto.FLOAT16}
        asked = {operator for block in blocks for operator in graph.block(block).operators}
        floats = {t.name for t in model.proto.graph.initializer if t.data_type == TensorProto.FLOAT}
        for node in made.graph.node:
            for weight in node.input:
                if weight.split("/")[0] in floats and not (node.op_type == "Resize" and weight == node.input[2]):
                    assert (weight in halves) == (node.name in asked), node.name
        for value in (*made.graph.input, *made.graph.output):
            assert value.type.tensor_type.elem_type == TensorProto.FLOAT


def test_float32_blocks_are_untouched(tmp_path: Path) -> None:
    model, graph, _ = case(two_in_two_out(), tmp_path)
    middle, end = run(model.proto, model)
    made = float16(model, graph, ["conv6"])
    half_middle, half_end = run(made, model)
    np.testing.assert_array_equal(middle, half_middle)
    assert 0 < distance([end], [half_end]) < 2e-3
    # The tool alone would pass every tensor between two float32 operators through float16.
    assert kinds(made)["Cast"] == 2
    tensors = {name for node in made.graph.node for name in node.output}
    assert {name for node in model.proto.graph.node for name in node.output} - {"end"} <= tensors


def test_a_constant_shared_with_a_float32_block_keeps_its_digits(tmp_path: Path) -> None:
    g = Sketch(66)
    third = g.constant(np.full((1, 4, 1, 1), 1 / 3))
    x = g.conv(g.op("Mul", g.input("x", 1, 4, 8, 8), third), 4, 4)
    model, graph, _ = case(g.model(x, g.op("Add", x, third)), tmp_path)
    before, after = run(model.proto, model), run(float16(model, graph, ["add2"]), model)
    np.testing.assert_array_equal(before[0], after[0])


def test_casts_of_the_models_own_stay(tmp_path: Path) -> None:
    g = Sketch(67)
    half = g.op("Cast", g.conv(g.input("x", 1, 3, 4, 4), 3, 4), to=TensorProto.FLOAT16)
    x = g.op("Cast", half, to=TensorProto.FLOAT)
    model, graph, _ = case(g.model(g.conv(x, 4, 2)), tmp_path)
    own = kinds(model.proto)["Cast"]
    made = float16(model, graph, [graph.blocks[-1].name])
    assert kinds(made)["Cast"] == own + 2


def test_float16_refusals(tmp_path: Path) -> None:
    g = Sketch(68)
    x = g.op("Max", g.conv(g.input("x", 1, 3, 4, 4), 3, 4), g.constant(np.zeros(1)))
    model, graph, _ = case(g.model(x), tmp_path)
    with pytest.raises(CannotQuantize, match="block max1: the float16 converter keeps Max in float32"):
        float16(model, graph, ["max1"])
    g = Sketch(69)
    weights = g.rng.normal(0, 1, (4, 3, 1, 1))
    weights[0, 0] = 1e5
    x = g.op("Conv", g.input("x", 1, 3, 4, 4), g.constant(weights, "heavy"))
    model, graph, _ = case(g.model(x), tmp_path)
    with pytest.raises(CannotQuantize, match=r"block conv0: weight heavy reaches 1e\+05, float16 ends at 65504"):
        float16(model, graph, ["conv0"])


def test_what_bodies_read_from_outside_stays_float32(tmp_path: Path) -> None:
    g = Sketch(81)
    image = g.input("x", 1, 4, 6, 6)
    x = g.conv(image, 4, 4)
    flag = g.op("Greater", g.op("ReduceSum", x, keepdims=0), g.constant(0.0))
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, None)
    inner = helper.make_graph([helper.make_node("Mul", [x, g.weight(1, 4, 1, 1)], ["result"])], "inner", [], [result])
    nodes = [helper.make_node("If", [flag], ["chosen"], then_branch=inner, else_branch=inner)]
    nodes.append(helper.make_node("Add", ["chosen", image], ["result"]))
    outer = helper.make_graph(nodes, "outer", [], [result])
    chosen = g.op("If", flag, then_branch=outer, else_branch=outer)
    model, graph, _ = case(g.model(g.conv(chosen, 4, 2), x), tmp_path)
    before = run(model.proto, model)
    for name in ("conv0", "reducesum1", "conv4"):
        assert distance(before, run(float16(model, graph, [name]), model)) < 2e-3
    every = [block.name for block in graph.blocks]
    made, done, left = most(graph, lambda names: float16(model, graph, names), every)
    assert distance(before, run(made, model)) < 2e-3
    assert {"conv0", "reducesum1", "conv4"} == {*done}
    assert "2 of 5 blocks left in float: block if3: float16 bodies cannot read" in left


def test_float16_halves_the_file(tmp_path: Path) -> None:
    model, graph, _ = case(silu(), tmp_path)
    every = float16(model, graph, [block.name for block in graph.blocks])
    before, after = (sum(len(t.raw_data) for t in proto.graph.initializer) for proto in (model.proto, every))
    assert after == before / 2


def test_tools_know_the_types_behind_operators_that_onnx_does_not_know(tmp_path: Path) -> None:
    g = Sketch(70)
    x = g.op("Relu", g.conv(g.conv(g.input("x", 1, 3, 8, 8), 3, 4), 4, 4))
    proto = g.model(g.op("MatMul", x, g.weight(8, 5)))
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "FusedConv", "com.microsoft"
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("activation", "Relu"))
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    del proto.graph.value_info[:]
    model, graph, _ = case(proto, tmp_path)
    asked = anchors(graph)
    assert len(asked) == 2
    for made in (dynamic(model, graph, asked, DYNAMIC), float16(model, graph, asked)):
        assert 0 < distance(run(model.proto, model), run(made, model)) < 0.05


def test_float16_keeps_outputs_that_are_inputs_or_constants(tmp_path: Path) -> None:
    g = Sketch(71)
    grid = g.constant(np.arange(4.0).reshape(1, 4, 1, 1), "grid")
    x = g.op("Mul", g.conv(g.input("x", 1, 4, 6, 6), 4, 4), grid)
    model, graph, _ = case(g.model("x", g.conv(x, 4, 2), grid), tmp_path)
    made = float16(model, graph, [block.name for block in graph.blocks])
    assert [each.name for each in made.graph.output] == [*model.outputs]
    before, after = run(model.proto, model), run(made, model)
    for index in (0, 2):
        np.testing.assert_array_equal(before[index], after[index])
    assert 0 < distance(before, after) < 2e-3


def test_operators_that_have_the_form_already_are_no_surprise(tmp_path: Path) -> None:
    g = Sketch(72)
    half = g.op("Cast", g.input("x", 2, 8), to=TensorProto.FLOAT16)
    half = g.op("MatMul", half, g.constant(g.rng.normal(0, 0.3, (8, 8)).astype(np.float16)))
    x = g.op("MatMul", g.op("Cast", half, to=TensorProto.FLOAT), g.weight(8, 8))
    q = g.op("DynamicQuantizeLinear", x, outputs=3)
    whole = g.op("MatMulInteger", q, g.constant(np.arange(-32, 32, dtype=np.int8).reshape(8, 8)), f"{q}2")
    model, graph, _ = case(g.model(g.op("Cast", whole, to=TensorProto.FLOAT)), tmp_path)
    for made in (dynamic(model, graph, ["matmul3"], DYNAMIC), float16(model, graph, ["matmul3"])):
        assert distance(run(model.proto, model), run(made, model)) < 0.05


def test_whatever_a_tool_raises_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("Graph is not\na DAG")

    model, graph, _ = case(conv_relu_chain(), tmp_path)
    monkeypatch.setattr("taglio.quantize.library.quantize_dynamic", fail)
    with pytest.raises(CannotQuantize, match="dynamic int8 tool fails on these blocks: Graph is not a DAG"):
        dynamic(model, graph, ["conv0"], DYNAMIC)


def test_an_old_model_converts_too(tmp_path: Path) -> None:
    model, graph, ranges = case(messy(), tmp_path)
    first = graph.blocks[0].name
    for made in (
        qoperator(model, graph, [first], QOPERATOR, ranges),
        dynamic(model, graph, [first], DYNAMIC),
        float16(model, graph, [first]),
    ):
        assert distance(run(model.proto, model), run(made, model)) < 0.05
