"""HiGHS, whose standard output is the user's."""

import pytest

from taglio.plan.highs import Quiet, SolverFailed


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
