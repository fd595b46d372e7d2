"""The parts of a page: what cannot be placed is counted; browsers can read the script."""

from math import inf, nan

import pytest

from taglio.report import console
from taglio.report.parts import Axis, Cell, Chart, Mark, Table


def test_values_that_are_not_finite_are_counted() -> None:
    marks = [Mark(1.0, y, "dot", "") for y in (1.0, 0.0, inf, nan)]
    assert Chart("", Axis("x"), Axis("y", "log"), marks).undrawn() == 3
    assert Chart("", Axis("x"), Axis("y", "log", zero=True), marks).undrawn() == 2


def test_the_terminal_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("Add:a: [bold] is not float32")
    console.show([Table(["block:b:"], [[Cell("Mul:x:")]])])
    assert capsys.readouterr().out.split() == ["Add:a:", "[bold]", "is", "not", "float32", "block:b:", "Mul:x:"]
