"""HiGHS without a word on standard output, which is the user's."""

import highspy


class Quiet(highspy.Highs):
    """HiGHS that prints nothing: since 1.16 it names itself while it is made, where no option has been set yet."""

    def __init__(self) -> None:
        highspy.Highs.__init__(self)

    def enableCallbacks(self) -> None:  # noqa: N802
        """Silence first: HiGHS calls this while it is made, and what it calls prints."""
        self.setOptionValue("output_flag", False)
        highspy.Highs.enableCallbacks(self)
