"""Float16: the blocks beyond its range, and a model's answers in true float16."""

import numpy as np
import pytest

import taglio
from taglio.compare.float16 import float16, most_in_float16
from taglio.flow.quantize import quantize
from taglio.lab.work import Work
from taglio.runtimes.onnxruntime import NAME, SessionOptions, open_session
from tests.models import parsed

WIDTH = 16
DRAWS = np.random.default_rng(0)
BEFORE, AFTER = (DRAWS.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(2))


def opened(gain: float, after: np.ndarray = AFTER) -> Work:
    """x → MatMul → × gain → × 1/gain → MatMul: the middle reaches about 10 × `gain`."""
    proto = parsed(
        """(float[1, 16] x) => (float[1, 16] y) {
            [first] a = MatMul (x, before)
            [up] large = Mul (a, gain)
            [down] small = Mul (large, back)
            [last] y = MatMul (small, after)
        }""",
        {"before": BEFORE, "gain": gain, "back": 1.0 / gain, "after": after},
    )
    inputs = np.random.default_rng(1).standard_normal((40, WIDTH)).astype(np.float32)
    return taglio.Model(proto, {"x": inputs}, threads=1, runtime=NAME)


def in_numpy(x: np.ndarray, gain: float) -> np.ndarray:
    """All of it in float16, products summed in float32."""
    half = np.float16
    with np.errstate(over="ignore", invalid="ignore"):
        a = (x.astype(half).astype(np.float32) @ BEFORE.astype(half).astype(np.float32)).astype(half)
        small = (a * half(gain)) * half(1.0 / gain)
        return np.asarray((small.astype(np.float32) @ AFTER.astype(half).astype(np.float32)).astype(half), np.float32)


@pytest.mark.parametrize("gain", [4.0, 60000.0])
def test_true_float16_is_that_of_numpy(gain: float) -> None:
    work = opened(gain)
    proto = float16(work.model, work.graph, [block.name for block in work.graph.blocks], rounded=True)
    sample = work.data.held_out.samples[0]
    (answer,) = open_session(proto, SessionOptions(1)).run(None, dict(sample))
    wanted = in_numpy(sample["x"], gain)
    assert np.isfinite(wanted).all() == (gain < 100.0)
    assert np.array_equal(np.isfinite(answer), np.isfinite(wanted))
    assert np.allclose(answer, wanted, rtol=2e-3, atol=2e-3, equal_nan=True)


def test_blocks_beyond_the_range_stay_in_float32_and_the_first_is_named() -> None:
    work = opened(60000.0)
    _, report = quantize(work, "float16")
    assert any("of 4 blocks left in float32: large reaches" in note and "65504" in note for note in report.notes)
    assert report.error < 0.01
    names = [block.name for block in work.graph.blocks]
    blocks = most_in_float16(work.model, work.graph, names, work.ranges().low_high).blocks
    rounded = float16(work.model, work.graph, blocks, rounded=True)
    for sample, answers in zip(work.data.held_out.samples[:4], work.float_answers(4), strict=True):
        (answer,) = open_session(rounded, SessionOptions(1)).run(None, dict(sample))
        assert np.linalg.norm(answer - answers[0]) < 0.01 * np.linalg.norm(answers[0])
