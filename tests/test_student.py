"""Student's t beside published tables and its own integral."""

import numpy as np
import pytest

from taglio.student import t_probability, t_quantile


@pytest.mark.parametrize(
    ("probability", "degrees", "published"),
    [
        (0.95, 1, 6.314), (0.95, 30, 1.697), (0.995, 7, 3.499), (0.80, 10, 0.879), (0.975, 120, 1.980),
    ],
)  # fmt: skip
def test_quantiles_equal_the_published_table(probability: float, degrees: int, published: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(published, abs=6e-4)
    assert t_quantile(1.0 - probability, degrees) == pytest.approx(-published, abs=6e-4)


@pytest.mark.parametrize("degrees", [1, 4, 15])
def test_the_probability_is_the_integral_of_the_density(degrees: int) -> None:
    grid = np.linspace(0.0, 2.5, 200_001)
    density = (1.0 + grid**2 / degrees) ** (-(degrees + 1) / 2)
    # The constant is fixed by the whole line having probability 1; the far tail by x = tan(u).
    angles = np.linspace(0.0, np.pi / 2 - 1e-9, 400_001)
    whole = np.trapezoid((1.0 + np.tan(angles) ** 2 / degrees) ** (-(degrees + 1) / 2) / np.cos(angles) ** 2, angles)
    share = np.trapezoid(density, grid) / whole
    assert t_probability(2.5, degrees) == pytest.approx(0.5 + 0.5 * share, abs=1e-6)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_what_has_no_quantile_is_refused(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="no t for"):
        t_quantile(probability, degrees)
