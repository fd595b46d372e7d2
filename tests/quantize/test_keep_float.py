"""What the plan keeps float runs in float, whatever stands before, behind or inside."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.quantize.keep_float import keep_float
from tests.answers import distance
from tests.models import Sketch, exact, loaded, parsed
from tests.quantize.test_qdq import LAST_BITS, Bench, bench, forms

RNG = np.random.default_rng(0)


def between_pairs(*middle: str) -> list[onnx.NodeProto]:
    """`middle` reads `x`, which a pair of ours dequantised, and writes `y`, which another quantises."""
    text = f"""(q, s, z, w, h, n, v, b) => (out) {{
        ["x/dequantize"] x = DequantizeLinear (q, s, z)
        {" ".join(middle)}
        ["y/quantize"] out = QuantizeLinear (y, s, z)
    }}"""
    return list(parsed(text).graph.node)


@pytest.mark.parametrize(
    "nodes",
    [
        ("[conv] y = Conv (x, w)",),
        ("w = Cast <to = 1> (h)", "[conv] y = Conv (x, w)"),
        ("[conv] a = Conv (x, w)", "y = Identity (a)"),
        ("[conv] a = Conv (x, w)", "y = Expand (a, n)"),
        ("t = Tile (x, n)", "[conv] y = Conv (t, w)"),
        ("[theirs] w = DequantizeLinear (v, s, z)", "[conv] y = Conv (x, w)"),
    ],
    ids=["plain", "weight behind a Cast", "before Identity", "before Expand", "behind Tile", "dequantised weight"],
)
def test_a_float_conv_between_pairs_of_ours_is_no_conv_to_quantise(nodes: tuple[str, ...]) -> None:
    whole = between_pairs(*nodes)
    keep_float(whole, {node.name for node in whole[1:-1]}, ())
    assert next(node for node in whole if node.name == "conv").op_type == "FusedConv"


def test_a_conv_that_is_int8_or_between_the_models_own_pairs_stays() -> None:
    nodes = between_pairs('["w/dequantize"] w = DequantizeLinear (v, s, z)', "[conv] y = Conv (x, w)")
    keep_float(nodes, {"conv"}, ())
    assert [node.op_type for node in nodes] == ["DequantizeLinear", "DequantizeLinear", "Conv", "QuantizeLinear"]
    nodes = between_pairs("[conv] y = Conv (x, w)")
    keep_float(nodes, {node.name for node in nodes}, ())
    assert [node.op_type for node in nodes] == ["DequantizeLinear", "Conv", "QuantizeLinear"]


def test_a_float_product_and_its_bias_make_no_gemm_to_quantise() -> None:
    """ONNX Runtime joins them where it knows their shapes, and quantises the Gemm that it has made."""
    bias = "[bias] y = Add (m, b)"
    nodes = between_pairs("[product] m = MatMul (x, w)", bias)
    keep_float(nodes, {"product", "bias"}, ())
    assert [node.op_type for node in nodes] == ["DequantizeLinear", "MatMul", "Add", "Max", "QuantizeLinear"]
    nodes = between_pairs("[product] m = MatMul (x, x)", bias)
    keep_float(nodes, {"product", "bias"}, ())
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


def agrees(case: Bench, *names: str) -> list[np.ndarray]:
    """Built and switchable answer alike with these blocks in int8; what was built answered."""
    int8 = forms(exact())[0]
    chosen = dict.fromkeys(names or [block.name for block in case.graph.candidates()], int8)
    built = case.quantized(chosen)
    assert distance(built, case.switchable(*forms(exact())).run(chosen, case.feed)) <= LAST_BITS
    return built


def doubling(name: str, depth: int) -> str:
    """A branch that adds the outer tensor `x` to itself, `depth` Ifs deep."""
    if depth == 0:
        return f"{name} () => (float[] {name}_y) {{ {name}_y = Add (x, x) }}"
    branches = f"then_branch = {doubling(f'{name}1', depth - 1)}, else_branch = {doubling(f'{name}2', 0)}"
    return f"{name} () => (float[] {name}_y) {{ {name}_y = If (flag) <{branches}> }}"


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_branch_reads_what_the_plan_wrote(depth: int, tmp_path: Path) -> None:
    proto = parsed(
        f"""(float[1, 3, 8, 8] given, bool flag) => (float[] chosen, float[] other) {{
            [first] convolved = Conv <pads = [1, 1, 1, 1]> (given, v)
            x = Relu (convolved)
            chosen = If (flag) <then_branch = {doubling("yes", depth)}, else_branch = {doubling("no", 0)}>
            [last] other = Conv <pads = [1, 1, 1, 1]> (x, w)
        }}""",
        {"v": RNG.normal(0, 0.2, (8, 3, 3, 3)), "w": RNG.normal(0, 0.2, (4, 8, 3, 3))},
    )
    case = bench(loaded(proto, tmp_path))
    for names in (("first",), ("first", "last"), ("last",)):
        built = agrees(case, *names)
        error = distance(case.float_outputs[:1], built[:1])
        assert (error > 1e-4) == ("first" in names), "the branch reads int8 values exactly where the plan has them"


@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_grouped_conv_transpose_has_the_scales_of_its_own_axis(group: int, tmp_path: Path) -> None:
    g = Sketch(72)
    x = g.conv(g.input("x", 1, 3, 6, 6), 3, 8)
    weights = g.rng.normal(0, 0.3, (8, 4 // group, 3, 3)) * 10.0 ** g.rng.uniform(-1, 1, (1, 4 // group, 1, 1))
    x = g.op("ConvTranspose", x, g.constant(weights), g.constant(g.rng.normal(0, 0.2, 4)), group=group, strides=[2, 2])
    case = bench(loaded(g.model(g.op("Relu", x)), tmp_path))
    assert {"ConvTranspose+Relu", "Conv"} == {block.kind for block in case.graph.candidates()}
    assert distance(case.float_outputs, agrees(case)) < 0.1
    for name in ("conv0", case.graph.blocks[1].name):
        assert distance(case.float_outputs, agrees(case, name)) < 0.1


def test_what_the_model_quantises_itself_keeps_its_scale(tmp_path: Path) -> None:
    g = Sketch(73)
    scale, zero = g.constant(np.float32(0.03)), g.constant(np.uint8(121))
    x = g.op("DequantizeLinear", g.op("QuantizeLinear", g.input("x", 1, 3, 8, 8), scale, zero), scale, zero)
    y = g.op("Relu", g.conv(x, 3, 8))
    case = bench(loaded(g.model(g.conv(g.op("MaxPool", y, kernel_shape=[2, 2]), 8, 4)), tmp_path))
    parameters = case.builder.parameters(x, exact())
    assert float(parameters.scale) == pytest.approx(0.03) and int(parameters.zero_point) == 121
    assert distance(case.float_outputs, agrees(case)) < 0.1
