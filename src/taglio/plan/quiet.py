"""HiGHS without a word on standard output, which is the user's."""

import highspy

from taglio.errors import TaglioError


class SolverFailed(TaglioError):
    """HiGHS did not run: what it would be asked for is the answer to something else, or nothing."""


class Quiet(highspy.Highs):
    """HiGHS that prints nothing: since 1.16 it names itself while it is made, where no option has been set yet."""

    def __init__(self) -> None:
        highspy.Highs.__init__(self)

    def enableCallbacks(self) -> None:  # noqa: N802
        """Silence first: HiGHS calls this while it is made, and what it calls prints."""
        self.setOptionValue("output_flag", False)
        highspy.Highs.enableCallbacks(self)

    def run(self) -> highspy.HighsStatus:
        """Solve. Raises SolverFailed where that was refused, which HiGHS itself says on standard output alone."""
        status = highspy.Highs.run(self)
        if status == highspy.HighsStatus.kError:
            raise SolverFailed(f"HiGHS did not run a program of {self.getNumCol()} columns and {self.getNumRow()} rows")
        return status
