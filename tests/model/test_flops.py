"""FLOPs against counts that are not ours: operators run on ones, and onnx-tool on three networks."""

from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from taglio.model.flops import operator_flops
from taglio.model.graph import ANCHORS, Block, build
from taglio.model.load import load
from taglio.model.observe import tensor_shapes
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import digits_model

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
NETWORKS = (digits_model(), SHARED / "ultraface-rfb-320.onnx", SHARED / "yunet-n-640.onnx")


def bias_additions(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    has = node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) > 2 and node.input[2]
    return prod(shapes[node.output[0]]) if has else 0


def multiply_adds_on_ones(
    kind: str, shapes: list[tuple[int, ...]], **attributes: int | list[int]
) -> tuple[onnx.NodeProto, dict[str, tuple[int, ...]], int]:
    """Run `kind` on inputs that are one everywhere: each product then adds one, so the outputs add up to their number.
    Nothing may be padded, or products with the padding would be missing."""
    names = [f"x{i}" for i in range(len(shapes))]
    node = helper.make_node(kind, names, ["y"])
    node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip(names, shapes)]
    graph = helper.make_graph([node], kind, inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feed = {name: np.ones(shape, np.float32) for name, shape in zip(names, shapes)}
    [output] = open_session(proto, SessionOptions(threads=1)).run(None, feed)
    count = int(np.asarray(output, np.float64).sum())
    return node, {**dict(zip(names, shapes)), "y": np.shape(output)}, count


@pytest.mark.parametrize(
    ("kind", "shapes", "attributes"),
    [
        ("Conv", [(2, 6, 12, 9), (8, 3, 3, 2)], {"group": 2, "strides": [2, 3]}),
        ("Conv", [(1, 7, 10, 10), (7, 1, 3, 3)], {"group": 7, "dilations": [2, 2]}),
        ("ConvTranspose", [(1, 4, 5, 6), (4, 3, 2, 2)], {"strides": [2, 2]}),
        ("ConvTranspose", [(2, 6, 5, 5), (6, 2, 3, 3)], {"group": 3, "strides": [2, 1]}),
        ("MatMul", [(2, 3, 5, 7), (2, 3, 7, 4)], {}),
        ("MatMul", [(2, 5, 7), (7,)], {}),
        ("Gemm", [(7, 5), (3, 7)], {"transA": 1, "transB": 1}),
    ],
    ids=str,
)
def test_counts_the_products_that_the_operator_makes(
    kind: str, shapes: list[tuple[int, ...]], attributes: dict[str, int | list[int]]
) -> None:
    node, tensor_dims, count = multiply_adds_on_ones(kind, shapes, **attributes)

    assert operator_flops(node, tensor_dims) == 2 * count


@pytest.mark.whole
@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
def test_every_block_against_onnx_tool(path: Path) -> None:
    """onnx-tool infers the shapes by itself: ours are taken out of the model that it gets."""
    onnx_tool = pytest.importorskip("onnx_tool", reason="needs onnx-tool (pip install onnx-tool)")
    if not path.exists():
        pytest.skip(f"needs ../shared/models/{path.name} beside this checkout")
    model = load(path)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    del proto.graph.value_info[:]
    theirs = onnx_tool.Model(proto).graph
    theirs.shape_infer({spec.name: onnx_tool.create_ndarray_f32(spec.shape) for spec in model.inputs})
    theirs.profile()

    shapes = tensor_shapes(model.proto)
    for node in model.proto.graph.node:
        if node.op_type not in ANCHORS:
            continue
        bias = bias_additions(node, shapes)
        assert operator_flops(node, shapes) - bias == 2 * (int(theirs.nodemap[node.name].macs[0]) - bias), node.name


def test_a_block_has_the_operations_of_its_operators() -> None:
    """A stem by hand: 1 → 48 channels, 3 × 3 on 32 × 32, a bias and a Relu; and x · sigmoid(x) behind a Conv."""
    blocks: dict[str, Block] = {block.name: block for block in build(load(digits_model())).blocks}

    assert blocks["/stem/stem.0/Conv"].flops == 48 * 32 * 32 * (2 * 9 + 1 + 1)
    gated = blocks["/middle/middle.1/first/first.0/Conv"]
    assert gated.kind == "Conv+Sigmoid+Mul"
    assert gated.flops == 64 * 16 * 16 * (2 * 9 * 64 + 1 + 4 + 1)
    assert blocks["/classify/Gemm"].flops == 10 * (2 * 80 + 1)
    assert blocks["/Flatten"].flops == 0


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrent_operator_counts_both_matrices_at_every_step(kind: str, gates: int) -> None:
    """A step multiplies [1, 5] by [5, 7 gates] and [1, 7] by [7, 7 gates], and adds a bias for each."""
    shapes = {"x": (6, 2, 5), "w": (1, 7 * gates, 5), "r": (1, 7 * gates, 7), "b": (1, 14 * gates), "y": (6, 1, 2, 7)}
    matrices = 2 * 5 * 7 * gates + 2 * 7 * 7 * gates
    with_bias = helper.make_node(kind, ["x", "w", "r", "b"], ["y"], hidden_size=7)
    assert operator_flops(with_bias, shapes) == 6 * 2 * (matrices + 14 * gates)
    assert operator_flops(helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=7), shapes) == 6 * 2 * matrices


def by_products(*shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    """What MatMul operators of these inputs count."""
    total = 0
    for left, right in shapes:
        node = helper.make_node("MatMul", ["a", "b"], ["y"])
        total += operator_flops(node, {"a": left, "b": right, "y": (*left[:-1], right[-1])})
    return total


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("Attention", {"q": (1, 6, 32), "k": (1, 6, 32), "v": (1, 6, 32), "m": (6, 11), "p": (1, 4, 5, 8)}),
        ("Attention", {"q": (1, 4, 6, 8), "k": (1, 4, 11, 8), "v": (1, 4, 11, 8)}),
        ("GroupQueryAttention", {"q": (1, 6, 32), "k": (1, 6, 16), "v": (1, 6, 16), "p": (1, 2, 5, 8)}),
    ],
)
def test_attention_counts_both_of_its_products(kind: str, inputs: dict[str, tuple[int, ...]]) -> None:
    domain = "" if kind == "Attention" else "com.microsoft"
    node = helper.make_node(kind, [*inputs], ["y"], domain=domain)
    scores, answers = ((1, 4, 6, 8), (1, 4, 8, 11)), ((1, 4, 6, 11), (1, 4, 11, 8))
    assert operator_flops(node, {**inputs, "y": inputs["q"]}) == by_products(scores, answers)


def test_an_attention_that_projects_and_an_einsum_count_as_their_by_products() -> None:
    node = helper.make_node("Attention", ["x", "w", "b"], ["y"], domain="com.microsoft", num_heads=4)
    shapes = {"x": (1, 6, 32), "w": (32, 96), "b": (96,), "y": (1, 6, 32)}
    parts = (((1, 6, 32), (32, 96)), ((1, 4, 6, 8), (1, 4, 8, 6)), ((1, 4, 6, 6), (1, 4, 6, 8)))
    assert operator_flops(node, shapes) == by_products(*parts)
    node = helper.make_node("Einsum", ["q", "k"], ["y"], equation="bqhd,bkhd->bhqk")
    shapes = {"q": (2, 6, 4, 8), "k": (2, 5, 4, 8), "y": (2, 4, 6, 5)}
    assert operator_flops(node, shapes) == by_products(((2, 4, 6, 8), (2, 4, 8, 5)))
