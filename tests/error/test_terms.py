"""Starting values by hand: a block alone has the error that was measured, part of which its inputs cause."""

import pytest

from taglio.error.terms import design, starting_noises
from tests.plan.made_up import ANCHOR, INT8, Sketch


def test_a_block_alone_has_its_error_and_less_behind_an_int8_block() -> None:
    """x → conv0 → soft1, whose activation is float in the form that was not measured alone."""
    sketch = Sketch()
    sketch.conv(sketch.conv(sketch.input("x")), soft=True)
    columns = design(sketch.graph(), (INT8, ANCHOR))
    start = starting_noises(columns, (INT8, ANCHOR), {("conv0", "int8"): 1.0, ("soft1", "int8"): 2.0})
    for assignment, noise in (
        ({"conv0": INT8}, 1.0),
        ({"soft1": INT8}, 4.0),
        ({"conv0": INT8, "soft1": INT8}, 1.0 + 0.7 * 4.0),
        ({"conv0": INT8, "soft1": ANCHOR}, 1.0 + 0.35 * 4.0),
    ):
        assert columns.row(assignment) @ start == pytest.approx(noise)
