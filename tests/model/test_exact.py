"""Integer products of every kind, with weights that saturate sums of 16 bits: the exact model answers as NumPy does."""

import re
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from taglio.model.exact import saturating_products, with_exact_sums
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import parsed
from tests.processor import SATURATES

ROWS, DEPTH, WIDTH = 4, 256, 32
LARGE = np.random.default_rng(0).integers(180, 256, (ROWS, DEPTH)).astype(np.uint8)
WEIGHTS = np.random.default_rng(1).integers(-128, 128, (DEPTH, WIDTH)).astype(np.int8)
EXACT = LARGE.astype(np.int64) @ WEIGHTS.astype(np.int64)
NARROW = (WEIGHTS // 2).astype(np.int8)
IMAGE = np.random.default_rng(2).integers(180, 256, (1, 16, 8, 8)).astype(np.uint8)
KERNEL = np.random.default_rng(3).integers(-128, 128, (8, 16, 3, 3)).astype(np.int8)
TYPES = {np.uint8: "uint8", np.int8: "int8", np.float32: "float"}

ONE, ZERO_U8, ZERO_S8, MIDDLE = np.float32(1.0), np.uint8(0), np.int8(0), np.uint8(128)
MOST = np.float32(np.abs(EXACT).max() / 127.0)


def convolved() -> np.ndarray:
    x, w = IMAGE.astype(np.int64), KERNEL.astype(np.int64)
    total = np.zeros((1, 8, 6, 6), np.int64)
    for i in range(3):
        for j in range(3):
            total += np.einsum("nchw,oc->nohw", x[:, :, i : i + 6, j : j + 6], w[:, :, i, j])
    return total


CONVOLVED = convolved()
CONV_SCALE = np.float32(np.abs(CONVOLVED).max() / 127.0)
PLAIN = {"sx": ONE, "zx": ZERO_U8, "sw": ONE, "zw": ZERO_S8}
PER_CHANNEL = {**PLAIN, "sw": np.ones(8, np.float32), "zw": np.zeros(8, np.int8)}


class Case(NamedTuple):
    """Operators that compute `y` from `x` in ONNX's notation, the type of `y`, `x`, constants, and what NumPy makes."""

    text: str
    kind: str
    x: np.ndarray
    constants: dict[str, Any]
    wanted: np.ndarray

    def model(self) -> onnx.ModelProto:
        shape = ", ".join(map(str, self.x.shape))
        used = {name: value for name, value in self.constants.items() if name in re.findall(r"\w+", self.text)}
        return parsed(f"({TYPES[self.x.dtype.type]}[{shape}] x) => ({self.kind}[] y) {{ {self.text} }}", used)

    def answer(self, proto: onnx.ModelProto, level: Optimization = Optimization.NONE) -> np.ndarray:
        return np.asarray(open_session(proto, SessionOptions(1, level)).run(None, {"x": self.x})[0])

    def distance(self, proto: onnx.ModelProto, level: Optimization = Optimization.NONE) -> float:
        """How far the answers of `proto` are from those of NumPy, relative to their norm."""
        difference = self.answer(proto, level).astype(np.float64) - self.wanted
        return float(np.linalg.norm(difference) / np.linalg.norm(self.wanted))


def quantized(values: np.ndarray, scale: np.floating) -> np.ndarray:
    return np.asarray(np.clip(np.rint(values / scale) + 128, 0, 255))


def dynamic() -> Case:
    values = LARGE.astype(np.float32)
    values[0, 0] = 255.0  # its scale is then 1
    exact = values.astype(np.int64) @ WEIGHTS.astype(np.int64)
    node = "y = com.microsoft.DynamicQuantizeMatMul (x, w, sw)"
    return Case(node, "float", values, {"w": WEIGHTS, "sw": ONE}, exact)


MATRIX, CONV = {**PLAIN, "w": WEIGHTS}, {**PLAIN, "w": KERNEL, "so": CONV_SCALE, "zo": MIDDLE}
QLINEAR = "(x, sx, zx, w, sw, zw, so, zo)"
CASES = {
    "MatMulInteger": Case("y = MatMulInteger (x, w, zx, zw)", "int32", LARGE, MATRIX, EXACT),
    "MatMulInteger without zero points": Case("y = MatMulInteger (x, w)", "int32", LARGE, MATRIX, EXACT),
    "ConvInteger": Case("y = ConvInteger (x, w, zx, zw)", "int32", IMAGE, CONV, CONVOLVED),
    "QLinearMatMul": Case(
        f"y = QLinearMatMul {QLINEAR}", "uint8", LARGE, {**MATRIX, "so": MOST, "zo": MIDDLE}, quantized(EXACT, MOST)
    ),
    "QLinearConv": Case(f"y = QLinearConv {QLINEAR}", "uint8", IMAGE, CONV, quantized(CONVOLVED, CONV_SCALE)),
    "QLinearConv per channel": Case(
        f"y = QLinearConv {QLINEAR}", "uint8", IMAGE, CONV | PER_CHANNEL, quantized(CONVOLVED, CONV_SCALE)
    ),
    "QGemm": Case("y = com.microsoft.QGemm (x, sx, zx, w, sw, zw)", "float", LARGE, MATRIX, EXACT),
    "MatMulIntegerToFloat": Case(
        "y = com.microsoft.MatMulIntegerToFloat (x, w, sx, sw, zx, zw)", "float", LARGE, MATRIX, EXACT
    ),
    "DynamicQuantizeMatMul": dynamic(),
}


@pytest.mark.parametrize("name", CASES)
def test_exact_sums_are_those_of_numpy(name: str) -> None:
    case = CASES[name]
    proto = case.model()
    for level in Optimization:
        assert case.distance(with_exact_sums(proto), level) < 1e-6
    assert saturating_products(proto) == f"1 {proto.graph.node[0].op_type}"


def test_weights_within_7_bits_stay() -> None:
    proto = CASES["QGemm"].model()
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
    weight.CopyFrom(numpy_helper.from_array(NARROW, "w"))
    assert with_exact_sums(proto) is proto
    assert saturating_products(proto) == ""


def test_signed_activations_keep_their_kernels() -> None:
    signed = (LARGE.astype(np.int16) - 128).astype(np.int8)
    constants = {**MATRIX, "zx": np.int8(-128), "so": MOST, "zo": ZERO_S8}
    proto = Case(f"y = QLinearMatMul {QLINEAR}", "int8", signed, constants, EXACT).model()
    assert with_exact_sums(proto) is proto


@pytest.mark.parametrize("scales", [PLAIN, PER_CHANNEL], ids=["per tensor", "per channel"])
def test_dequantised_weights_are_exact_where_the_graph_is_optimised(scales: dict[str, Any]) -> None:
    text = """xf = DequantizeLinear (x, sx, zx)
        wf = DequantizeLinear <axis = 0> (w, sw, zw)
        yf = Conv (xf, wf)
        yq = QuantizeLinear (yf, so, zo)
        y = DequantizeLinear (yq, so, zo)"""
    case = Case(text, "float", IMAGE, CONV | scales, (quantized(CONVOLVED, CONV_SCALE) - 128) * CONV_SCALE)
    proto = case.model()
    assert with_exact_sums(proto) is proto
    assert case.distance(proto) < 1e-6
    assert case.distance(with_exact_sums(proto, fused=True), Optimization.ALL) < 1e-6
    if SATURATES:
        assert case.distance(proto, Optimization.ALL) > 0.05
