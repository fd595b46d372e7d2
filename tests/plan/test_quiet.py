"""Standard output is the user's."""

import pytest

from taglio.plan.quiet import Quiet


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    solver = Quiet()
    solver.addVar(0.0, 1.0)
    solver.changeColCost(0, -1.0)
    solver.run()
    assert solver.getInfo().objective_function_value == -1.0
    assert capfd.readouterr() == ("", "")
