"""Opening a model with its data: faults of the model are not blamed on the data, and what cannot be measured is refused
at once."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import taglio
from taglio.errors import BadData
from taglio.notes import Kind
from tests.models import Sketch, saved

INPUTS = np.random.default_rng(0).standard_normal((6, 16, 4, 4)).astype(np.float32)


def transposed_weight(channels: int = 16) -> onnx.ModelProto:
    """Int8 weights with a scale per row that are transposed after they are dequantised: ONNX Runtime fuses them into an
    integer convolution, whose scales then belong to the input channels, and fails when it runs."""
    weight = np.random.default_rng(1).integers(-90, 90, channels * 8)
    scales = np.random.default_rng(2).uniform(0.001, 0.01, channels)
    return parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        transposed (float[N, {channels}, 4, 4] x) => (float[N, 8, 4, 4] y) <
            int8[{channels}, 8, 1, 1] w = {{{", ".join(map(str, weight))}}},
            float[{channels}] s = {{{", ".join(map(str, scales))}}},
            int8[{channels}] z = {{{", ".join(["0"] * channels)}}},
            float step = {{0.05}}, int8 zero = {{0}}
        > {{
            q = QuantizeLinear (x, step, zero)
            d = DequantizeLinear (q, step, zero)
            rows = DequantizeLinear <axis = 0> (w, s, z)
            t = Transpose <perm = [1, 0, 2, 3]> (rows)
            c = Conv (d, t)
            r = QuantizeLinear (c, step, zero)
            y = DequantizeLinear (r, step, zero)
        }}"""
    )


def test_a_model_whose_fused_kernels_fail_is_run_at_a_lower_level(tmp_path: Path) -> None:
    work = taglio.Model(saved(transposed_weight(), tmp_path), INPUTS, threads=1)
    assert work.setup.optimization == "basic"
    (text,) = (note.text for note in work.notes if note.kind is Kind.LOWERED_LEVEL)
    assert "fails on tiny at optimisation all (QLinearConv" in text and text.endswith("level basic is used")
    assert ".cc" not in text
    assert len(work.float_answers()) == len(work.data.held_out.samples)


@pytest.mark.parametrize(
    ("bias", "inputs", "words"),
    [
        (None, np.zeros_like(INPUTS), "is zero for all 3"),
        (-1e6, INPUTS, "is zero for all 3"),
        (7.0, INPUTS, "the same"),
    ],
)
def test_outputs_that_never_change_are_refused_at_once(
    bias: float | None, inputs: np.ndarray, words: str, tmp_path: Path
) -> None:
    g = Sketch(2)
    convolved = g.conv(g.input("x", "N", 16, 4, 4), 16, 8, bias=False)
    if bias is not None:  # a ReLU that is dead, or a Clip that always is at its end
        convolved = g.op("Add", g.op("Mul", convolved, g.constant(1e-9)), g.constant(bias))
    low, high = g.constant(0.0), g.constant(6.0)
    model = saved(g.model(g.op("Clip", convolved, low, high)), tmp_path)
    with pytest.raises(BadData, match=f"{words}.*no error can be measured"):
        taglio.optimize(model, inputs, max_error=0.01, threads=1)
