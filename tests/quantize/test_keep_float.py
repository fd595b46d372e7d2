"""What the plan keeps float runs in float, whatever stands before, behind or inside."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from taglio.quantize.keep_float import keep_float
from tests.models import Sketch, exact, loaded
from tests.quantize.test_qdq import LAST_BITS, Bench, bench, distance, forms


def between_pairs(*middle: onnx.NodeProto, written: str) -> list[onnx.NodeProto]:
    """`middle` reads `x`, which a pair of ours dequantised, and writes `written`, which another quantises."""
    return [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["x"], name="x/dequantize"),
        *middle,
        helper.make_node("QuantizeLinear", [written, "s", "z"], ["out"], name="y/quantize"),
    ]


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")],
        [
            helper.make_node("Cast", ["h"], ["w"], name="cast", to=1),
            helper.make_node("Conv", ["x", "w"], ["y"], name="conv"),
        ],
        [
            helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
            helper.make_node("Identity", ["a"], ["y"], name="id"),
        ],
        [
            helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
            helper.make_node("Expand", ["a", "n"], ["y"], name="e"),
        ],
        [
            helper.make_node("Tile", ["x", "n"], ["t"], name="t"),
            helper.make_node("Conv", ["t", "w"], ["y"], name="conv"),
        ],
        [
            helper.make_node("DequantizeLinear", ["v", "s", "z"], ["w"], name="theirs"),
            helper.make_node("Conv", ["x", "w"], ["y"], name="conv"),
        ],
    ],
    ids=["plain", "weight behind a Cast", "before Identity", "before Expand", "behind Tile", "dequantised weight"],
)
def test_a_float_conv_between_pairs_of_ours_is_no_conv_to_quantise(nodes: list[onnx.NodeProto]) -> None:
    whole = between_pairs(*nodes, written="y")
    keep_float(whole, {}, {}, {node.name for node in nodes}, ())
    assert next(node for node in whole if node.name == "conv").op_type == "FusedConv"


def test_a_conv_that_is_int8_or_between_the_models_own_pairs_stays() -> None:
    ours = helper.make_node("DequantizeLinear", ["v", "s", "z"], ["w"], name="w/dequantize")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    nodes = between_pairs(ours, conv, written="y")
    keep_float(nodes, {}, {}, {"conv"}, ())
    assert [node.op_type for node in nodes] == ["DequantizeLinear", "DequantizeLinear", "Conv", "QuantizeLinear"]
    nodes = between_pairs(conv, written="y")
    keep_float(nodes, {}, {}, {node.name for node in nodes}, ())
    assert [node.op_type for node in nodes] == ["DequantizeLinear", "Conv", "QuantizeLinear"]


def test_a_float_product_and_its_bias_make_no_gemm_to_quantise() -> None:
    """ONNX Runtime joins them where it knows their shapes, and quantises the Gemm that it has made."""
    product = helper.make_node("MatMul", ["x", "w"], ["m"], name="product")
    bias = helper.make_node("Add", ["m", "b"], ["y"], name="bias")
    nodes = between_pairs(product, bias, written="y")
    keep_float(nodes, {}, {}, {"product", "bias"}, ())
    assert [node.op_type for node in nodes] == ["DequantizeLinear", "MatMul", "Add", "Max", "QuantizeLinear"]
    two = helper.make_node("MatMul", ["x", "x"], ["m"], name="product")
    nodes = between_pairs(two, bias, written="y")
    keep_float(nodes, {}, {}, {"product", "bias"}, ())
    assert "Max" not in [node.op_type for node in nodes]


def test_an_output_in_front_of_a_moved_pair_stays_float(tmp_path: Path) -> None:
    """Keys are an output, and transposed for an int8 MatMul: ONNX Runtime would quantise them too."""
    g = Sketch(75)
    x = g.input("x", 1, 4, 8)
    keys = g.op("Exp", x)
    g.op("Shape", keys)  # folded: no reader
    y = g.op("MatMul", x, g.op("Transpose", keys, perm=[0, 2, 1]))
    case = bench(loaded(g.model(y, keys), tmp_path))
    product = next(block.name for block in case.graph.blocks if "MatMul" in block.kind)
    built = agrees(case, product)
    assert distance(case.float_outputs[1:], built[1:]) == 0.0
    assert distance(case.float_outputs[:1], built[:1]) > 1e-4


def agrees(case: Bench, *names: str, text: str = "u8s8-asym-pc") -> list[np.ndarray]:
    """Built and switchable answer alike with these blocks in int8; what was built answered."""
    int8 = forms(exact(text))[0]
    chosen = dict.fromkeys(names or [block.name for block in case.graph.candidates()], int8)
    built = case.quantized(chosen)
    assert distance(built, case.switchable(*forms(exact(text))).run(chosen, case.feed)) <= LAST_BITS
    return built


def captured(g: Sketch, tensor: str, depth: int) -> onnx.GraphProto:
    """A branch that adds the outer `tensor` to itself, `depth` Ifs deep."""
    name = f"branch{depth}_{len(g.nodes)}"
    wanted = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
    if depth == 0:
        return helper.make_graph(
            [helper.make_node("Add", [tensor, tensor], [name], name=f"add_{name}")], name, [], wanted
        )
    node = helper.make_node("If", ["flag"], [name], name=f"if_{name}")
    node.attribute.append(helper.make_attribute("then_branch", captured(g, tensor, depth - 1)))
    node.attribute.append(helper.make_attribute("else_branch", captured(g, tensor, 0)))
    return helper.make_graph([node], name, [], wanted)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_branch_reads_what_the_plan_wrote(depth: int, tmp_path: Path) -> None:
    g = Sketch(71)
    x = g.op("Relu", g.conv(g.input("x", 1, 3, 8, 8), 3, 8))
    g.inputs.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    y = "chosen"
    node = helper.make_node("If", ["flag"], [y], name="if")
    node.attribute.append(helper.make_attribute("then_branch", captured(g, x, depth)))
    node.attribute.append(helper.make_attribute("else_branch", captured(g, x, 0)))
    g.nodes.append(node)
    case = bench(loaded(g.model(y, g.conv(x, 8, 4)), tmp_path))
    for names in (("conv0",), ("conv0", "conv3"), ("conv3",)):
        built = agrees(case, *names)
        error = distance(case.float_outputs[:1], built[:1])
        assert (error > 1e-4) == ("conv0" in names), "the branch reads int8 values exactly where the plan has them"


def test_a_function_that_a_branch_calls_comes_along(tmp_path: Path) -> None:
    g = Sketch(74)
    x = g.conv(g.input("x", 1, 3, 8, 8), 3, 8)
    g.inputs.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    wanted = [helper.make_tensor_value_info("inside", TensorProto.FLOAT, None)]
    call = helper.make_node("Twice", [x], ["inside"], name="call", domain="local")
    other = [helper.make_tensor_value_info("outside", TensorProto.FLOAT, None)]
    node = helper.make_node("If", ["flag"], ["y"], name="if")
    copy = helper.make_node("Identity", [x], ["outside"], name="copy")
    node.attribute.append(helper.make_attribute("then_branch", helper.make_graph([call], "then", [], wanted)))
    node.attribute.append(helper.make_attribute("else_branch", helper.make_graph([copy], "else", [], other)))
    g.nodes.append(node)
    proto = g.model("y")
    opset = helper.make_opsetid("", g.opset)
    twice = helper.make_function("local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [opset])
    proto.functions.append(twice)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    case = bench(loaded(proto, tmp_path))
    assert distance(case.float_outputs, agrees(case)) < 0.1


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("text", ["u8s8-asym-pc", "u8s8-sym-pc", "u8u8-asym-pt"])
def test_a_grouped_conv_transpose_has_the_scales_of_its_own_axis(group: int, text: str, tmp_path: Path) -> None:
    g = Sketch(72)
    x = g.conv(g.input("x", 1, 3, 6, 6), 3, 8)
    weights = g.rng.normal(0, 0.3, (8, 4 // group, 3, 3)) * 10.0 ** g.rng.uniform(-1, 1, (1, 4 // group, 1, 1))
    x = g.op("ConvTranspose", x, g.constant(weights), g.constant(g.rng.normal(0, 0.2, 4)), group=group, strides=[2, 2])
    case = bench(loaded(g.model(g.op("Relu", x)), tmp_path))
    assert {"ConvTranspose+Relu", "Conv"} == {block.kind for block in case.graph.candidates()}
    assert distance(case.float_outputs, agrees(case, text=text)) < 0.1
    for name in ("conv0", case.graph.blocks[1].name):
        assert distance(case.float_outputs, agrees(case, name, text=text)) < 0.1


@pytest.mark.parametrize("text", ["u8s8-asym-pc", "u8s8-sym-pc"])
def test_what_the_model_quantises_itself_keeps_its_scale(text: str, tmp_path: Path) -> None:
    g = Sketch(73)
    scale, zero = g.constant(np.float32(0.03)), g.constant(np.uint8(121))
    x = g.op("DequantizeLinear", g.op("QuantizeLinear", g.input("x", 1, 3, 8, 8), scale, zero), scale, zero)
    y = g.op("Relu", g.conv(x, 3, 8))
    case = bench(loaded(g.model(g.conv(g.op("MaxPool", y, kernel_shape=[2, 2]), 8, 4)), tmp_path))
    parameters = case.builder.parameters(x, exact(text))
    assert float(parameters.scale) == pytest.approx(0.03) and int(parameters.zero_point) == 121
    assert distance(case.float_outputs, agrees(case, text=text)) < 0.1
