"""What is folded, and that answers stay the same."""

import numpy as np
import onnx
import pytest

from taglio.model.fold import fold
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import parsed

RNG = np.random.default_rng(0)
PLAIN = SessionOptions(1, Optimization.NONE)
W = RNG.normal(0, 0.3, (6, 4, 3, 3))
W1 = RNG.normal(0, 0.5, (5, 6, 1, 1))
DW = RNG.normal(0, 0.5, (6, 1, 3, 3))
B = RNG.normal(0, 1, 6)
PER_CHANNEL = RNG.normal(0, 1, (1, 6, 1, 1))
PADDED = "c = Conv <pads = [1, 1, 1, 1]> (x, w, b)"
HEAD = "(float[1, 4, 9, 7] x) => (float[1, n, h, l] y)"


def folded(proto: onnx.ModelProto) -> list[str]:
    """The operators that are left. Answers stay the same, and the graph is valid."""
    feed = {"x": RNG.normal(0, 3, (1, 4, 9, 7)).astype(np.float32)}
    wanted = open_session(proto, PLAIN).run(None, feed)
    fold(proto.graph)
    onnx.checker.check_model(proto)
    for one, other in zip(open_session(proto, PLAIN).run(None, feed), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize("scale", [0.7, [0.7], PER_CHANNEL, PER_CHANNEL[0]])
@pytest.mark.parametrize("shift", [-1.3, [-1.3], PER_CHANNEL])
def test_a_convolution_absorbs_the_scale_and_the_shift_behind_it(scale: object, shift: object) -> None:
    text = f"{HEAD} {{ {PADDED} d = Mul (c, s) y = Add (t, d) }}"
    assert folded(parsed(text, {"w": W, "b": B, "s": scale, "t": shift})) == ["Conv"]


def test_a_convolution_without_a_bias_gets_one_only_for_a_shift() -> None:
    text = f"{HEAD} {{ c = Conv (x, w) y = Mul (c, s) }}"
    proto = parsed(text, {"w": W, "s": 2.0})
    assert folded(proto) == ["Conv"] and len(proto.graph.node[0].input) == 2
    text = f"{HEAD} {{ c = Conv (x, w) d = Add (c, s) y = Conv <group = 6> (d, v) }}"
    assert folded(parsed(text, {"w": W, "s": 2.0, "v": DW})) == ["Conv", "Conv"]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        # Both readers absorb the scale, and the shift, which neither pads.
        ("r = Relu (c) d = Mul (r, s) e = Add (d, t) f = Conv (e, v) g = Conv <strides = [2, 2]> (e, v) "
         "h = GlobalAveragePool (f) k = GlobalAveragePool (g) y = Add (h, k)",
         ["Conv", "Relu", "Conv", "Conv", "GlobalAveragePool", "GlobalAveragePool", "Add"]),
        # Padding is zero before and after a scale, but not behind a shift.
        ("r = Relu (c) d = Mul (r, s) y = Conv <group = 6, pads = [1, 1, 1, 1]> (d, dw)", ["Conv", "Relu", "Conv"]),
        ("r = Relu (c) d = Add (r, s) y = Conv <group = 6, pads = [1, 1, 1, 1]> (d, dw)",
         ["Conv", "Relu", "Add", "Conv"]),
        ("r = Relu (c) d = Add (r, s) y = Conv <group = 6, auto_pad = \"SAME_UPPER\"> (d, dw)",
         ["Conv", "Relu", "Add", "Conv"]),
        # Others read what is scaled.
        ("d = Mul (c, s) e = Relu (c) y = Add (d, e)", ["Conv", "Mul", "Relu", "Add"]),
        ("r = Relu (c) d = Mul (r, s) e = Conv <group = 6, pads = [1, 1, 1, 1]> (d, dw) y = Add (d, e)",
         ["Conv", "Relu", "Mul", "Conv", "Add"]),
        # One number per row of the picture is none per channel.
        ("y = Mul (c, rows)", ["Conv", "Mul"]),
    ],
)  # fmt: skip
def test_what_is_folded_into_convolutions(body: str, left: list[str]) -> None:
    constants = {"w": W, "b": B, "s": 0.4, "t": [-0.3], "v": W1, "dw": DW, "rows": RNG.normal(0, 1, (9, 1))}
    assert folded(parsed(f"{HEAD} {{ {PADDED} {body} }}", constants)) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("d = Add (c, three) e = Clip (d, zero, six) f = Mul (c, e) y = Div (f, six)", ["Conv", "HardSigmoid", "Mul"]),
        ("d = Add (three, c) e = Clip (d, zero, six) f = Mul (e, c) y = Mul (f, sixth)",
         ["Conv", "HardSigmoid", "Mul"]),
        ("d = Add (c, three) e = Clip (d, zero, six) y = Div (e, six)", ["Conv", "HardSigmoid"]),
        # Another shift, another bound, another reader, another factor.
        ("d = Add (c, six) e = Clip (d, zero, six) y = Div (e, six)", ["Conv", "Clip", "Div"]),
        ("d = Add (c, three) e = Clip (d, zero, three) y = Div (e, six)", ["Conv", "Clip", "Div"]),
        ("d = Add (c, three) e = Clip (d, zero, six) f = Div (e, six) y = Add (e, f)",
         ["Conv", "Clip", "Div", "Add"]),
        ("r = Relu (c) d = Add (c, three) e = Clip (d, zero, six) f = Mul (r, e) y = Div (f, six)",
         ["Conv", "Relu", "Add", "Clip", "Mul", "Div"]),
    ],
)  # fmt: skip
def test_hard_sigmoid_is_recognised(body: str, left: list[str]) -> None:
    constants = {"w": W, "b": B, "three": 3.0, "zero": 0.0, "six": 6.0, "sixth": 1.0 / 6.0}
    assert folded(parsed(f"{HEAD} {{ {PADDED} {body} }}", constants)) == left
