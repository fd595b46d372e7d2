"""The conformal quantile by hand."""

import pytest

from taglio.conformal import conformal_quantile


@pytest.mark.parametrize(
    ("errors", "coverage", "expected"),
    [
        ([], 0.9, float("inf")),
        ([0.03], 0.9, 0.03),  # ⌈2 · 0.9⌉ = 2 of 1: the largest
        ([-0.04, 0.01, 0.02], 0.9, 0.02),
        ([i / 100 for i in range(1, 20)], 0.9, 0.18),  # ⌈20 · 0.9⌉ = 18th of 19
        ([0.01, 0.02, 0.03, 0.04], 0.5, 0.03),  # ⌈5 · 0.5⌉ = 3rd of 4
    ],
)
def test_the_quantile_by_hand(errors: list[float], coverage: float, expected: float) -> None:
    assert conformal_quantile(errors, coverage) == expected
    assert conformal_quantile(errors[::-1], coverage) == expected
