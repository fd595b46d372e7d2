"""The best prices of limits, on functions that are known; and HiGHS, whose standard output is the user's."""

import numpy as np
import pytest

from taglio.plan.cutting_planes import Plane, Quiet, SolverFailed, maximise

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


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    solver = Quiet()
    solver.addVar(0.0, 1.0)
    solver.changeColCost(0, -1.0)
    solver.run()
    assert solver.getInfo().objective_function_value == -1.0
    assert capfd.readouterr() == ("", "")


def test_a_run_that_is_refused_is_no_answer() -> None:
    """Threads are the process's: once they run, another number of them ends every run that asks for it."""
    solver = Quiet()
    solver.addVar(0.0, 1.0)
    solver.run()
    other = Quiet()
    other.setOptionValue("threads", 13)
    other.addVar(0.0, 1.0)
    with pytest.raises(SolverFailed, match="1 columns and 0 rows"):
        other.run()
