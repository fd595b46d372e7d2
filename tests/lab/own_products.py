"""Models that are quantised already, with products of their own that saturate sums of 16 bits."""

import numpy as np
import onnx

from tests.models import parsed

DEPTH, WIDTH, CLASSES = 256, 64, 10
_DRAWS = np.random.default_rng(0)
WEIGHTS = _DRAWS.integers(-127, 128, (DEPTH, WIDTH)).astype(np.int8)
HEAD = _DRAWS.standard_normal((WIDTH, CLASSES)).astype(np.float32)
TAIL = _DRAWS.standard_normal((CLASSES, CLASSES)).astype(np.float32)
INPUTS = (_DRAWS.random((40, 1, DEPTH)) * 0.4 + 2.15).astype(np.float32)  # near 255 as u8
SCALE, OUT_SCALE, ZERO = 0.01, 1.0, 128


_OWN = {
    "QDQ": """xq = QuantizeLinear (x, scale, zero)
        xf = DequantizeLinear (xq, scale, zero)
        wf = DequantizeLinear (w, scale, zero_w)
        yf = MatMul (xf, wf)
        yq = QuantizeLinear (yf, out_scale, out_zero)
        h = DequantizeLinear (yq, out_scale, out_zero)""",
    "MatMulInteger": """xq = QuantizeLinear (x, scale, zero)
        sums = MatMulInteger (xq, w, zero, zero_w)
        sums_f = Cast <to = 1> (sums)
        h = Mul (sums_f, both)""",
}


def own_products(kind: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A product of `kind`, "QDQ" or "MatMulInteger", and two float ones; with its inputs."""
    constants: dict[str, object] = {"scale": np.float32(SCALE), "zero": np.uint8(0), "w": WEIGHTS, "zero_w": np.int8(0)}
    constants |= {"head": HEAD, "tail": TAIL}
    if kind == "QDQ":
        constants |= {"out_scale": np.float32(OUT_SCALE), "out_zero": np.uint8(ZERO)}
    else:
        constants |= {"both": np.float32(SCALE * SCALE)}
    text = f"""(float[1, {DEPTH}] x) => (float[1, {CLASSES}] y) {{
        {_OWN[kind]}
        logits = MatMul (h, head)
        positive = Relu (logits)
        [tail] y = MatMul (positive, tail)
    }}"""
    return parsed(text, constants), {"x": INPUTS[:, 0]}


def by_hand(kind: str, inputs: np.ndarray) -> np.ndarray:
    """What the graph says, in float64 and integers."""
    quantized = np.clip(np.rint(inputs.astype(np.float64) / np.float32(SCALE)), 0, 255)
    sums = (quantized @ WEIGHTS.astype(np.float64)) * SCALE * SCALE
    if kind == "QDQ":
        sums = (np.clip(np.rint(sums / OUT_SCALE) + ZERO, 0, 255) - ZERO) * OUT_SCALE
    return np.asarray(np.maximum(sums @ HEAD.astype(np.float64), 0.0) @ TAIL.astype(np.float64))
