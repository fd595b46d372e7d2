"""Starting values by hand: a block alone has the error that was measured, and what its inputs cause is not its own."""

from collections.abc import Mapping

import numpy as np
import pytest

from taglio.error.terms import Design, design, starting_noises
from tests.plan.made_up import ANCHOR, INT8, Sketch

CHOICES = (INT8, ANCHOR)


def chain() -> Design:
    """x → conv0 → conv1."""
    sketch = Sketch()
    sketch.conv(sketch.conv(sketch.input("x")))
    return design(sketch.graph(), CHOICES)


def total(columns: Design, start: np.ndarray, assignment: Mapping[str, object]) -> float:
    return float(columns.row(assignment) @ start)  # type: ignore[arg-type]


def test_a_block_alone_starts_from_what_it_does_alone() -> None:
    columns = chain()
    alone = {("conv0", "int8"): np.array([3.0, 0.0]), ("conv1", "int8"): np.array([0.0, 2.0])}
    for flows in ({}, {"x": np.array([1.0, 0.0]), "conv0.0": np.array([0.0, 1.0])}):
        start = starting_noises(columns, CHOICES, alone, flows)
        assert (start >= 0.0).all()
        assert total(columns, start, {"conv0": INT8}) == pytest.approx(9.0)
        assert total(columns, start, {"conv1": INT8}) == pytest.approx(4.0)


def test_what_an_input_causes_is_told_apart_from_what_the_block_causes() -> None:
    """conv1 alone is the rounded tensor t and its weights b; behind an int8 conv0, t is there already."""
    columns = chain()
    t, a, b = np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.5, 1.0])
    alone = {("conv0", "int8"): a, ("conv1", "int8"): t + b}
    start = starting_noises(columns, CHOICES, alone, {"x": np.zeros(3), "conv0.0": t})
    assert total(columns, start, {"conv0": INT8}) == pytest.approx(float(a @ a))
    assert total(columns, start, {"conv1": INT8}) == pytest.approx(float((t + b) @ (t + b)))
    assert total(columns, start, {"conv0": INT8, "conv1": INT8}) == pytest.approx(float(a @ a + b @ b))


def test_a_block_that_is_all_its_input_starts_above_nothing() -> None:
    columns = chain()
    t = np.array([1.0, 0.0])
    alone = {("conv0", "int8"): 0.0 * t, ("conv1", "int8"): t}
    start = starting_noises(columns, CHOICES, alone, {"x": 0.0 * t, "conv0.0": t})
    assert 0.0 < total(columns, start, {"conv0": INT8, "conv1": INT8}) < 0.1
