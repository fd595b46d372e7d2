"""DequantizeLinear without what ONNX Runtime's rewrites need: the graph's own answers at every optimisation level."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taglio.model.dequantize import with_zero_points
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

KINDS = {np.int8: TensorProto.INT8, np.uint8: TensorProto.UINT8, np.int32: TensorProto.INT32}


def moved(
    dtype: type[np.integer], move: str, zero: bool = False, scale_dims: tuple[int, ...] = ()
) -> tuple[onnx.ModelProto, np.ndarray]:
    """DequantizeLinear of an input, Transpose or Reshape, MatMul; and values of the input."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", *(["zero"] if zero else [])], ["float"]),
        helper.make_node(move, ["float", *(["shape"] if move == "Reshape" else [])], ["moved"]),
        helper.make_node("MatMul", ["moved", "w"], ["y"]),
    ]
    if move == "Transpose":
        nodes[1].attribute.append(helper.make_attribute("perm", [0, 2, 1]))
    constants = {
        "scale": np.full(scale_dims, 0.001, np.float32),
        "w": np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32),
        "shape": np.array([2, 12, 8]),
        "zero": np.zeros(scale_dims, dtype),
    }
    kept = {name for node in nodes for name in node.input}
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in kept]
    inputs = [helper.make_tensor_value_info("x", KINDS[dtype], [2, 8, 12])]
    wanted = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 12, 16])]
    graph = helper.make_graph(nodes, "dequantised", inputs, wanted, stored)
    ends = np.iinfo(dtype)
    low, high = max(ends.min, -3000), min(ends.max, 3000)
    values = np.random.default_rng(1).integers(low, high, (2, 8, 12)).astype(dtype)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), values


def product(values: np.ndarray, move: str, weights: np.ndarray) -> np.ndarray:
    floats = values.astype(np.float64) * 0.001
    return np.asarray((floats.transpose(0, 2, 1) if move == "Transpose" else floats.reshape(2, 12, 8)) @ weights)


@pytest.mark.parametrize("scale_dims", [(), (1,)])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("move", ["Transpose", "Reshape"])
@pytest.mark.parametrize("dtype", KINDS)
def test_the_answers_are_those_of_the_graph_at_every_level(
    dtype: type[np.integer], move: str, zero: bool, scale_dims: tuple[int, ...]
) -> None:
    proto, values = moved(dtype, move, zero, scale_dims)
    weights = next(numpy_helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name == "w")
    wanted = product(values, move, weights)
    for level in Optimization:
        (answer,) = open_session(with_zero_points(proto), SessionOptions(1, level)).run(None, {"x": values})
        assert np.linalg.norm(answer - wanted) < 1e-5 * np.linalg.norm(wanted)


def test_a_model_that_needs_nothing_stays_as_it_is() -> None:
    for dtype, zero in ((np.uint8, False), (np.int8, True)):
        proto, _ = moved(dtype, "Transpose", zero)
        assert with_zero_points(proto) is proto
