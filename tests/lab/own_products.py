"""Models that are quantised already, with products of their own that saturate sums of 16 bits."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DEPTH, WIDTH, CLASSES = 256, 64, 10
_DRAWS = np.random.default_rng(0)
WEIGHTS = _DRAWS.integers(-127, 128, (DEPTH, WIDTH)).astype(np.int8)
HEAD = _DRAWS.standard_normal((WIDTH, CLASSES)).astype(np.float32)
TAIL = _DRAWS.standard_normal((CLASSES, CLASSES)).astype(np.float32)
INPUTS = (_DRAWS.random((40, 1, DEPTH)) * 0.4 + 2.15).astype(np.float32)  # near 255 as u8
SCALE, OUT_SCALE, ZERO = 0.01, 1.0, 128


def own_products(kind: str, *, inputs: np.ndarray = INPUTS) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A product of `kind`, "QDQ" or "MatMulInteger", and two float ones; with its inputs."""
    if kind == "QDQ":
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xf"]),
            helper.make_node("DequantizeLinear", ["w", "scale", "zero_w"], ["wf"]),
            helper.make_node("MatMul", ["xf", "wf"], ["yf"]),
            helper.make_node("QuantizeLinear", ["yf", "out_scale", "out_zero"], ["yq"]),
            helper.make_node("DequantizeLinear", ["yq", "out_scale", "out_zero"], ["h"]),
        ]
    else:
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
            helper.make_node("MatMulInteger", ["xq", "w", "zero", "zero_w"], ["sums"]),
            helper.make_node("Cast", ["sums"], ["sums_f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["sums_f", "both"], ["h"]),
        ]
    nodes += [
        helper.make_node("MatMul", ["h", "head"], ["logits"]),
        helper.make_node("Relu", ["logits"], ["positive"]),
        helper.make_node("MatMul", ["positive", "tail"], ["y"], name="tail"),
    ]
    constants = {
        "scale": np.float32(SCALE),
        "zero": np.uint8(0),
        "w": WEIGHTS,
        "zero_w": np.int8(0),
        "out_scale": np.float32(OUT_SCALE),
        "out_zero": np.uint8(ZERO),
        "both": np.float32(SCALE * SCALE),
        "head": HEAD,
        "tail": TAIL,
    }
    read = {name for node in nodes for name in node.input}
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in read]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, DEPTH])]
    wanted = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])]
    graph = helper.make_graph(nodes, f"own {kind}", given, wanted, stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made, {"x": inputs[:, 0]}


def by_hand(kind: str, inputs: np.ndarray) -> np.ndarray:
    """What the graph says, in float64 and integers."""
    quantized = np.clip(np.rint(inputs.astype(np.float64) / np.float32(SCALE)), 0, 255)
    sums = (quantized @ WEIGHTS.astype(np.float64)) * SCALE * SCALE
    if kind == "QDQ":
        sums = (np.clip(np.rint(sums / OUT_SCALE) + ZERO, 0, 255) - ZERO) * OUT_SCALE
    return np.asarray(np.maximum(sums @ HEAD.astype(np.float64), 0.0) @ TAIL.astype(np.float64))
