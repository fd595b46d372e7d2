"""Histograms of fixed size: ranges of any values, and what a library raises in one line."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization.calibrate import HistogramCollector

from taglio.errors import MeasurementFailed
from taglio.quantize.histogram import HISTOGRAM_BYTES, Equal, Logarithmic

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


@given(st.lists(FLOATS, min_size=1, max_size=200), st.floats(0.0, 100.0))
def test_the_range_holds_the_exact_one_and_little_more(values: list[float], percent: float) -> None:
    ordered, histogram = np.sort(np.array(values, np.float32)), Logarithmic()
    for part in np.array_split(ordered, 3):
        histogram.add(part)
    beyond = len(values) * (100.0 - percent) / 200.0
    first, last = float(ordered[int(beyond)]), float(ordered[max(0, int(np.ceil(len(values) - beyond)) - 1)])
    low, high = histogram.central_range(percent)
    assert first - abs(first) / 64 - 1e-37 <= low <= first
    assert last <= high <= last + abs(last) / 64 + 1e-37


@pytest.mark.parametrize("factor", [1e6, 1e12, 1e30])
def test_values_that_grow_by_any_factor_take_no_more_memory(factor: float) -> None:
    normal = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    histogram = Logarithmic()
    histogram.add(normal)
    histogram.add(np.array([factor, -factor, np.nan, np.inf], np.float32))
    exact = np.percentile(normal, [0.005, 99.995])
    assert histogram.central_range(99.99) == pytest.approx(tuple(exact), rel=0.02)
    assert histogram.central_range(100.0) == pytest.approx((-factor, factor), rel=0.02)
    assert len(pickle.dumps(histogram)) < HISTOGRAM_BYTES + 1000


def test_an_empty_histogram_has_an_empty_range() -> None:
    assert Logarithmic().central_range(50.0) == (0.0, 0.0)


def test_entropy_cuts_outliers_off_and_keeps_a_uniform_range() -> None:
    rng = np.random.default_rng(0)
    bell, flat = Equal(20.0), Equal(20.0)
    bell.add(np.append(rng.laplace(0.0, 0.7, 100_000), 20.0).astype(np.float32))
    flat.add(rng.uniform(-20.0, 20.0, 100_000).astype(np.float32))
    assert 5.0 <= bell.least_divergence("x")[1] <= 15.0
    assert flat.least_divergence("x") == pytest.approx((-20.0, 20.0), rel=0.05)


def test_what_the_library_raises_is_one_line_with_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("Too many bins\nfor data range")

    monkeypatch.setattr(HistogramCollector, "get_entropy_threshold", fail)
    with pytest.raises(MeasurementFailed, match=r"tensor conv1: .*ValueError: Too many bins for data range") as refused:
        Equal(1.0).least_divergence("conv1")
    assert "\n" not in str(refused.value)
