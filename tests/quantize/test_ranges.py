"""Calibration: ranges of what is float, and why a tensor has none."""

from pathlib import Path

import numpy as np
import pytest

from taglio.data.dataset import Dataset, assemble
from taglio.quantize.ranges import calibrate
from tests.models import Sketch, loaded, parsed


def dataset(*samples: dict[str, np.ndarray]) -> Dataset:
    return assemble("made up", samples, [str(i) for i in range(len(samples))], None)


def test_extremes_are_those_of_all_samples(tmp_path: Path) -> None:
    g = Sketch(1)
    model = loaded(g.model(g.op("Relu", g.input("x", 1, 4))), tmp_path)
    rows = [np.array([[-3.0, 1.0, 0.0, 2.0]], np.float32), np.array([[0.5, 5.0, -1.0, 0.0]], np.float32)]
    ranges = calibrate(model, dataset(*({"x": row} for row in rows))).low_high
    assert ranges["x"] == (-3.0, 5.0)
    assert ranges[model.outputs[0]] == (0.0, 5.0)


@pytest.mark.parametrize("mask", [-np.inf, float(np.finfo(np.float32).min)])
def test_a_masked_tensor_has_no_range_and_says_why(mask: float, tmp_path: Path) -> None:
    text = "(float[1, 2] x) => (float[1, 2] y) { y = Where (keep, x, mask) }"
    proto = parsed(text, {"keep": [[True, False]], "mask": np.array(mask)})
    ranges = calibrate(loaded(proto, tmp_path), dataset({"x": np.ones((1, 2), np.float32)}))
    assert "x" in ranges.low_high and "y" not in ranges.low_high
    assert "mask" in ranges.without["y"]


def test_infinite_and_missing_values_leave_a_tensor_without_a_range(tmp_path: Path) -> None:
    g = Sketch(1)
    model = loaded(g.model(g.op("Relu", g.input("x", 1, 4)), g.op("Neg", g.input("z", 1, 4))), tmp_path)
    ones = np.ones((1, 4), np.float32)
    odd = {"x": np.array([[1.0, np.inf, 0.0, 2.0]], np.float32), "z": ones * np.nan}
    ranges = calibrate(model, dataset({"x": ones, "z": ones}, odd))
    assert "x" in ranges.without
    assert ranges.without["z"] == "is NaN for sample 1"
