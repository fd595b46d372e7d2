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
