"""Foreign errors on one line: what a long one names and its reason are kept."""

from taglio.errors import one_line


def test_of_a_long_error_the_beginning_and_the_end_are_kept() -> None:
    text = "Concat of join:\n " + "a shape, " * 100 + "which differ in the axis 'frames'"
    line = one_line(text, 120)
    assert len(line) == 120 and "\n" not in line
    assert line.startswith("Concat of join: a shape") and line.endswith("which differ in the axis 'frames'")
    assert one_line("short", 120) == "short"
