"""Integer products of every kind, with weights that saturate sums of 16 bits: the exact model answers as NumPy does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taglio.model.exact import saturating_products, with_exact_sums
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.processor import SATURATES

ROWS, DEPTH, WIDTH = 4, 256, 32
LARGE = np.random.default_rng(0).integers(180, 256, (ROWS, DEPTH)).astype(np.uint8)
WEIGHTS = np.random.default_rng(1).integers(-128, 128, (DEPTH, WIDTH)).astype(np.int8)
EXACT = LARGE.astype(np.int64) @ WEIGHTS.astype(np.int64)
NARROW = (WEIGHTS // 2).astype(np.int8)
IMAGE = np.random.default_rng(2).integers(180, 256, (1, 16, 8, 8)).astype(np.uint8)
KERNEL = np.random.default_rng(3).integers(-128, 128, (8, 16, 3, 3)).astype(np.int8)


def graph(
    node: onnx.NodeProto, typed_values: tuple[int, np.ndarray], kind: int, **constants: Any
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one operator that reads `x` and constants, and the feed."""
    element, values = typed_values
    inputs = [helper.make_tensor_value_info("x", element, values.shape)]
    outputs = [helper.make_tensor_value_info("y", kind, None)]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph_proto = helper.make_graph([node], "one product", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph_proto, opset_imports=opsets, ir_version=8), {"x": values}


def convolved() -> np.ndarray:
    x, w = IMAGE.astype(np.int64), KERNEL.astype(np.int64)
    total = np.zeros((1, 8, 6, 6), np.int64)
    for i in range(3):
        for j in range(3):
            total += np.einsum("nchw,oc->nohw", x[:, :, i : i + 6, j : j + 6], w[:, :, i, j])
    return total


def microsoft(kind: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, ["y"], domain="com.microsoft", **attributes)


ONE, ZERO_U8, ZERO_S8 = np.float32(1.0), np.uint8(0), np.int8(0)
MOST = np.float32(np.abs(EXACT).max() / 127.0)


def matmul_integer(zero: bool) -> Any:
    names = ["x", "w", "zx", "zw"] if zero else ["x", "w"]
    constants = {"w": WEIGHTS} | ({"zx": ZERO_U8, "zw": ZERO_S8} if zero else {})
    node = helper.make_node("MatMulInteger", names, ["y"])
    return *graph(node, (TensorProto.UINT8, LARGE), TensorProto.INT32, **constants), EXACT


def conv_integer() -> Any:
    node = helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["y"])
    constants = {"w": KERNEL, "zx": ZERO_U8, "zw": ZERO_S8}
    return *graph(node, (TensorProto.UINT8, IMAGE), TensorProto.INT32, **constants), convolved()


def qlinear_matmul() -> Any:
    node = helper.make_node("QLinearMatMul", ["x", "sx", "zx", "w", "sw", "zw", "so", "zo"], ["y"])
    constants = {"sx": ONE, "zx": ZERO_U8, "w": WEIGHTS, "sw": ONE, "zw": ZERO_S8, "so": MOST, "zo": np.uint8(128)}
    wanted = np.clip(np.rint(EXACT / MOST) + 128, 0, 255)
    return *graph(node, (TensorProto.UINT8, LARGE), TensorProto.UINT8, **constants), wanted


def qlinear_conv(per_channel: bool) -> Any:
    total = convolved()
    scale = np.float32(np.abs(total).max() / 127.0)
    weight_scale, zero = (np.ones(8, np.float32), np.zeros(8, np.int8)) if per_channel else (ONE, ZERO_S8)
    node = helper.make_node("QLinearConv", ["x", "sx", "zx", "w", "sw", "zw", "so", "zo"], ["y"])
    constants = {"sx": ONE, "zx": ZERO_U8, "w": KERNEL, "sw": weight_scale, "zw": zero, "so": scale}
    wanted = np.clip(np.rint(total / scale) + 128, 0, 255)
    return *graph(node, (TensorProto.UINT8, IMAGE), TensorProto.UINT8, **constants, zo=np.uint8(128)), wanted


def qgemm() -> Any:
    node = microsoft("QGemm", "x", "sx", "zx", "w", "sw", "zw")
    constants = {"sx": ONE, "zx": ZERO_U8, "w": WEIGHTS, "sw": ONE, "zw": ZERO_S8}
    return *graph(node, (TensorProto.UINT8, LARGE), TensorProto.FLOAT, **constants), EXACT


def to_float() -> Any:
    node = microsoft("MatMulIntegerToFloat", "x", "w", "sx", "sw", "zx", "zw")
    constants = {"sx": ONE, "zx": ZERO_U8, "w": WEIGHTS, "sw": ONE, "zw": ZERO_S8}
    return *graph(node, (TensorProto.UINT8, LARGE), TensorProto.FLOAT, **constants), EXACT


def dynamic() -> Any:
    values = LARGE.astype(np.float32)
    values[0, 0] = 255.0  # its scale is then 1
    node = microsoft("DynamicQuantizeMatMul", "x", "w", "sw")
    exact = values.astype(np.int64) @ WEIGHTS.astype(np.int64)
    return *graph(node, (TensorProto.FLOAT, values), TensorProto.FLOAT, w=WEIGHTS, sw=ONE), exact


def attention() -> Any:
    values = LARGE[None, :, :8].copy()
    weight = WEIGHTS[:8, :24]
    node = microsoft("QAttention", "x", "w", "b", "sx", "sw", "", "zx", "zw", num_heads=2)
    scale = np.float32(1e-3)
    constants = {"w": weight, "b": np.zeros(24, np.float32), "sx": scale, "sw": scale, "zx": ZERO_U8, "zw": ZERO_S8}
    product = values.astype(np.float64) @ weight * 1e-6
    query, key, value = (part.reshape(1, ROWS, 2, 4).transpose(0, 2, 1, 3) for part in np.split(product, 3, axis=2))
    scores = query @ key.transpose(0, 1, 3, 2) / 2.0
    shares = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    wanted = (shares @ value).transpose(0, 2, 1, 3).reshape(1, ROWS, 8)
    return *graph(node, (TensorProto.UINT8, values), TensorProto.FLOAT, **constants), wanted


CASES: dict[str, Callable[[], Any]] = {
    "MatMulInteger": lambda: matmul_integer(True),
    "MatMulInteger without zero points": lambda: matmul_integer(False),
    "ConvInteger": conv_integer,
    "QLinearMatMul": qlinear_matmul,
    "QLinearConv": lambda: qlinear_conv(False),
    "QLinearConv per channel": lambda: qlinear_conv(True),
    "QGemm": qgemm,
    "MatMulIntegerToFloat": to_float,
    "DynamicQuantizeMatMul": dynamic,
    "QAttention": attention,
}


def answer(proto: onnx.ModelProto, feed: dict[str, np.ndarray], level: Optimization = Optimization.NONE) -> np.ndarray:
    (values,) = open_session(proto, SessionOptions(1, level)).run(None, feed)
    return np.asarray(values)


def distance(actual: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(actual.astype(np.float64) - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("name", CASES)
def test_exact_sums_are_those_of_numpy(name: str) -> None:
    proto, feed, wanted = CASES[name]()
    for level in Optimization:
        assert distance(answer(with_exact_sums(proto), feed, level), wanted) < 1e-6
    assert saturating_products(proto) == f"1 {proto.graph.node[0].op_type}"


@pytest.mark.skipif(not SATURATES, reason="this processor sums u8×s8 products in 32 bits")
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("ConvInteger", "QAttention")])
def test_as_they_are_they_saturate_here(name: str) -> None:
    proto, feed, wanted = CASES[name]()
    assert distance(answer(proto, feed), wanted) > 0.05


def test_weights_within_7_bits_stay() -> None:
    proto, *_ = qgemm()
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
    weight.CopyFrom(numpy_helper.from_array(NARROW, "w"))
    assert with_exact_sums(proto) is proto
    assert saturating_products(proto) == ""


def test_signed_activations_keep_their_kernels() -> None:
    node = helper.make_node("QLinearMatMul", ["x", "sx", "zx", "w", "sw", "zw", "so", "zo"], ["y"])
    signed = (LARGE.astype(np.int16) - 128).astype(np.int8)
    constants = {"sx": ONE, "zx": np.int8(-128), "w": WEIGHTS, "sw": ONE, "zw": ZERO_S8, "so": MOST, "zo": ZERO_S8}
    proto, _ = graph(node, (TensorProto.INT8, signed), TensorProto.INT8, **constants)
    assert with_exact_sums(proto) is proto


def test_computed_weights_are_shifted_as_the_model_runs() -> None:
    """s8 values that another operator writes, as the second factor of an attention's product is."""
    nodes = [
        helper.make_node("QuantizeLinear", ["f", "one", "zw"], ["w"]),
        helper.make_node("MatMulInteger", ["x", "w", "zx", "zw"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, LARGE.shape)]
    inputs.append(helper.make_tensor_value_info("f", TensorProto.FLOAT, WEIGHTS.shape))
    constants = {"one": ONE, "zx": ZERO_U8, "zw": ZERO_S8}
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT32, None)]
    graph_proto = helper.make_graph(nodes, "computed", inputs, outputs, stored)
    proto = helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feed: dict[str, np.ndarray] = {"x": LARGE, "f": WEIGHTS.astype(np.float32)}
    assert distance(answer(with_exact_sums(proto), feed), EXACT) == 0.0


@pytest.mark.parametrize("per_channel", [False, True])
def test_dequantised_weights_are_exact_where_the_graph_is_optimised(per_channel: bool) -> None:
    total = convolved()
    scale = np.float32(np.abs(total).max() / 127.0)
    weight_scale, zero = (np.ones(8, np.float32), np.zeros(8, np.int8)) if per_channel else (ONE, ZERO_S8)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=0),
        helper.make_node("Conv", ["xf", "wf"], ["yf"]),
        helper.make_node("QuantizeLinear", ["yf", "so", "zo"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "so", "zo"], ["y"]),
    ]
    constants = {
        "sx": ONE,
        "zx": ZERO_U8,
        "w": KERNEL,
        "sw": weight_scale,
        "zw": zero,
        "so": scale,
        "zo": np.uint8(128),
    }
    proto, feed = graph(nodes[0], (TensorProto.UINT8, IMAGE), TensorProto.FLOAT, **constants)
    proto.graph.node.extend(nodes[1:])
    wanted = (np.clip(np.rint(total / scale) + 128, 0, 255) - 128) * scale
    assert with_exact_sums(proto) is proto
    assert distance(answer(proto, feed), wanted) < 1e-6
    assert distance(answer(with_exact_sums(proto, fused=True), feed, Optimization.ALL), wanted) < 1e-6
    if SATURATES:
        assert distance(answer(proto, feed, Optimization.ALL), wanted) > 0.05
