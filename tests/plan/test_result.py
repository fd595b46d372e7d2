"""A plan refuses what no plan can be, and says why it does not fit a graph."""

from dataclasses import replace

import pytest

from taglio.plan.one_machine import describe
from taglio.plan.result import Interval, Limits, Placement, Plan
from tests.plan.made_up import FLOAT, INT8, MICROSECOND, Sketch, profile_of

SKETCH = Sketch()
FIRST = SKETCH.conv(SKETCH.input("x"))
SKETCH.refused(FIRST)
GRAPH = SKETCH.graph()
COSTS = {("conv0", "float32"): 9.0, ("conv0", "int8"): 3.0, ("refused1", "float32"): 1.0}
GLUE = {tensor.name: (0.0, 0.0, 1.0, 1.0) for tensor in GRAPH.tensors}
PLAN = describe(GRAPH, profile_of(GRAPH, COSTS, GLUE), None, Limits(None), {"conv0": INT8})


def test_a_plan_from_an_assignment_takes_what_the_profile_says() -> None:
    PLAN.check()
    assert PLAN.misfit(GRAPH) == ""
    assert PLAN.assignment() == {"conv0": INT8}
    # int8 conv, its input quantised and its output dequantised.
    assert PLAN.predicted_latency_s.value == pytest.approx(6 * MICROSECOND)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (replace(PLAN, precisions=(FLOAT, FLOAT)), "distinct"),
        (replace(PLAN, precisions=(INT8,)), "float32 is missing"),
        (replace(PLAN, placements=()), "no placements"),
        (replace(PLAN, placements=PLAN.placements[:1] * 2), "placed twice"),
        (replace(PLAN, placements=(Placement("conv0", "local", "int4"),)), "unknown precision int4"),
        (replace(PLAN, placements=(Placement("conv0", "", "int8"),)), "no device"),
        (replace(PLAN, placements=(Placement("conv0", "local", "int8", -1),)), "negative level"),
        (replace(PLAN, gap=-0.1), "must not be negative"),
        (replace(PLAN, limits=Limits(-0.1)), "max_error must not be negative"),
        (replace(PLAN, measured_error=-0.1), "an error must not be negative"),
    ],
)
def test_what_no_plan_can_be_is_refused(wrong: Plan, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wrong.check()


def test_an_interval_is_in_order() -> None:
    with pytest.raises(ValueError, match="low"):
        Interval(2.0, 1.0, 3.0, 0.9).check()


@pytest.mark.parametrize(
    ("placements", "words"),
    [
        (PLAN.placements[:1], "no placement of block refused1"),
        ((*PLAN.placements, Placement("other", "local", "float32")), "unknown block other"),
        ((PLAN.placements[0], Placement("refused1", "local", "int8")), "block refused1 cannot be int8"),
    ],
)
def test_a_plan_says_why_it_does_not_fit(placements: tuple[Placement, ...], words: str) -> None:
    assert replace(PLAN, placements=placements).misfit(GRAPH) == words
