"""Sketches keep inner products: exactly where they fit, and on average where they do not."""

import numpy as np
import pytest

from taglio.error.sketch import Sketcher


def sketch(sketcher: Sketcher, samples: list[list[np.ndarray]]) -> np.ndarray:
    result = np.zeros((len(samples[0]), sketcher.size))
    for index, sample in enumerate(samples):
        sketcher.add(result, index, sample)
    return result


def test_what_fits_is_kept_as_it_is() -> None:
    rng = np.random.default_rng(0)
    samples = [[rng.standard_normal(5).astype(np.float32), rng.standard_normal(7).astype(np.float32)] for _ in range(3)]
    found = sketch(Sketcher([[5, 7]] * 3, size=32), samples)
    for output in range(2):
        whole = np.concatenate([sample[output] for sample in samples])
        np.testing.assert_allclose(found[output, : whole.size], whole, rtol=1e-6)
        assert not found[output, whole.size :].any()


@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.5, 1.0])
def test_inner_products_of_long_differences_are_nearly_kept(correlation: float) -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal(40_000).astype(np.float32)
    b = (correlation * a + np.sqrt(1 - correlation**2) * rng.standard_normal(40_000)).astype(np.float32)
    sketcher = Sketcher([[20_000]] * 2, size=2048)
    one, other = (sketch(sketcher, [[each[:20_000]], [each[20_000:]]])[0] for each in (a, b))
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    assert one @ other / scale == pytest.approx(float(a @ b) / scale, abs=4 * np.sqrt(2 / 2048))


def test_it_is_linear_and_repeatable() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(9000).astype(np.float32) for _ in range(2))
    first, second = Sketcher([[9000]], size=256), Sketcher([[9000]], size=256)
    np.testing.assert_allclose(
        sketch(first, [[a]]) + sketch(first, [[b]]), sketch(second, [[a + b]]), rtol=1e-3, atol=1e-3
    )
