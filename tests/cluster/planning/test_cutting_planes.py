"""The best prices of limits, on functions that are known."""

import numpy as np
import pytest

from taglio.cluster.planning.cutting_planes import Plane, maximise

# What two answers cost, and by how much each breaks the one limit: the best price is 1, where both give 2.
CHEAP, DEAR = (1.0, 1.0), (3.0, -1.0)


def oracle(point: np.ndarray) -> Plane:
    """The cheaper of the two at a price."""
    cost, over = min((cost + float(point[0]) * over, (cost, over)) for cost, over in (CHEAP, DEAR))[1]
    return Plane(cost + float(point[0]) * over, cost, np.array([over]))


def test_the_best_price_is_found_with_the_shares_that_keep_the_limit() -> None:
    found = maximise(oracle, np.zeros(1), tolerance=1e-6, calls=50)
    assert found.bound == pytest.approx(2.0)
    assert found.multipliers == pytest.approx([1.0])
    assert found.shares.sum() == pytest.approx(1.0)


def test_shares_keep_the_limit_though_the_search_ends_far_from_the_best_price() -> None:
    seen = []

    def watched(point: np.ndarray) -> Plane:
        answer = oracle(point)
        seen.append(float(answer.slope[0]))
        return answer

    found = maximise(watched, np.array([5.0]), tolerance=1e-6, calls=2, reach=2.25)
    assert found.multipliers == pytest.approx([0.5]) and seen == [DEAR[1], CHEAP[1]]
    assert found.shares @ seen == pytest.approx(0.0)
