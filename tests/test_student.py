"""Student's t beside published tables."""

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
    assert t_probability(published, degrees) == pytest.approx(probability, abs=3e-4)
