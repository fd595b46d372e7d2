"""HiGHS without its output, and with an error where it does not run."""

import highspy

from taglio.errors import TaglioError


class SolverFailed(TaglioError):
    """HiGHS did not run, so its solution is missing or belongs to an earlier problem."""


class Quiet(highspy.Highs):
    """HiGHS without output: since 1.16 it prints its banner in the constructor, before any option can be set."""

    def __init__(self) -> None:
        highspy.Highs.__init__(self)

    def enableCallbacks(self) -> None:  # noqa: N802
        """Turn output off first: the HiGHS constructor calls this method, and the call prints."""
        self.setOptionValue("output_flag", False)
        highspy.Highs.enableCallbacks(self)

    def run(self) -> highspy.HighsStatus:
        """Solve. Raises SolverFailed if HiGHS refused, which it otherwise reports only on standard output."""
        status = highspy.Highs.run(self)
        if status == highspy.HighsStatus.kError:
            raise SolverFailed(f"HiGHS did not run a program of {self.getNumCol()} columns and {self.getNumRow()} rows")
        return status
