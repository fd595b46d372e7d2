"""Two answers are compared by what differs, however far a mask in them reaches."""

from math import inf

import numpy as np
import pytest

from taglio.runtimes.difference import difference


def test_masks_in_an_output_hide_no_difference() -> None:
    one = np.array([1.0, 2.0, -np.inf])
    assert difference(one, one.copy()) == 0.0
    assert difference(one, np.array([1.0, 2.5, -np.inf])) == pytest.approx(0.5 / np.sqrt(5.0))


@pytest.mark.parametrize(
    "other", [np.array([1.0, 2.0, 3.0]), np.array([1.0, np.nan, -np.inf]), np.array([1.0, 2.0]), np.array([1, 2, 3])]
)
def test_answers_that_cannot_be_compared_are_infinitely_far_apart(other: np.ndarray) -> None:
    assert difference(np.array([1.0, 2.0, -np.inf]), other) == inf
    assert difference([np.zeros(2)], [np.zeros(2), other]) == inf
