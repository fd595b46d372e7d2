"""Starting values by hand: a block alone has the error that was measured, and what its inputs cause is not its own."""

import numpy as np
import pytest

from taglio.error.terms import design, starting_noises
from tests.plan.made_up import ANCHOR, INT8, Sketch


def test_what_an_input_causes_is_told_apart_from_what_the_block_causes() -> None:
    """x → conv0 → conv1: conv1 alone is the rounded tensor t and its weights b; behind an int8 conv0, t is there
    already."""
    sketch = Sketch()
    sketch.conv(sketch.conv(sketch.input("x")))
    columns = design(sketch.graph(), (INT8, ANCHOR))
    t, a, b = np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.5, 1.0])
    alone = {("conv0", "int8"): a, ("conv1", "int8"): t + b}
    start = starting_noises(columns, (INT8, ANCHOR), alone, {"x": np.zeros(3), "conv0.0": t})
    for assignment, noise in (
        ({"conv0": INT8}, a @ a),
        ({"conv1": INT8}, (t + b) @ (t + b)),
        ({"conv0": INT8, "conv1": INT8}, a @ a + b @ b),
    ):
        assert columns.row(assignment) @ start == pytest.approx(float(noise))
