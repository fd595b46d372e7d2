"""Starting values by hand: a block alone, and a chain of int8 blocks, have the errors that their vectors say."""

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


def test_two_blocks_that_share_a_tensor_quantise_it_once() -> None:
    """conv0 alone is its weights a and its output t; conv1 alone is t and its weights b; together a + t + b."""
    columns = chain()
    x, t, a, b = np.zeros(3), np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.5, 1.0])
    alone = {("conv0", "int8"): a + t, ("conv1", "int8"): t + b}
    start = starting_noises(columns, CHOICES, alone, {"x": x, "conv0.0": t})
    together = a + t + b
    assert total(columns, start, {"conv0": INT8, "conv1": INT8}) == pytest.approx(float(together @ together))
    assert total(columns, start, {"conv1": INT8}) == pytest.approx(float((t + b) @ (t + b)))


def test_blocks_that_cancel_start_above_nothing() -> None:
    columns = chain()
    one = np.array([1.0, 0.0])
    alone = {("conv0", "int8"): one, ("conv1", "int8"): -one}
    start = starting_noises(columns, CHOICES, alone, {"x": 0 * one, "conv0.0": 0 * one})
    assert 0.0 < total(columns, start, {"conv0": INT8, "conv1": INT8}) < 1.1
