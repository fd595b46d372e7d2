"""Sketches keep inner products on average, whatever the samples that the differences come from."""

import numpy as np
import pytest

from taglio.error.sketch import SIZE, add_differences


def sketch(samples: list[list[np.ndarray]]) -> np.ndarray:
    sums = np.zeros((len(samples[0]), SIZE))
    for index, sample in enumerate(samples):
        add_differences(sums, index, sample)
    return sums


@pytest.mark.parametrize("length", [40, 20_000])
@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.5, 1.0])
def test_inner_products_are_nearly_kept(correlation: float, length: int) -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal(2 * length).astype(np.float32)
    b = (correlation * a + np.sqrt(1 - correlation**2) * rng.standard_normal(2 * length)).astype(np.float32)
    one, other = (sketch([[vector[:length]], [vector[length:]]])[0] for vector in (a, b))
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    assert one @ other / scale == pytest.approx(float(a @ b) / scale, abs=4 * np.sqrt(2 / SIZE))


def test_it_is_linear_and_repeatable() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(9000).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(sketch([[a]]) + sketch([[b]]), sketch([[a + b]]), rtol=1e-3, atol=1e-3)
