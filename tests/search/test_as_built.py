"""What plans err in a place follows from what one of them errs there, and from their errors in float32."""

from dataclasses import replace

import numpy as np
import pytest

import taglio
from taglio.embedded import digits_data, digits_model
from taglio.error.loss import RELATIVE, Metric
from taglio.model.graph import Graph
from taglio.plan.result import Interval, Limits, Placement, Plan
from taglio.quantize.precision import FLOAT32, Precision
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.openvino import NAME as OPENVINO
from taglio.search.as_built import AsBuilt
from taglio.search.ledger import Entry
from tests.plan.made_up import Sketch
from tests.processor import needs_bfloat16

INT8 = Precision("int8", DEFAULT_SCHEME, "whole")
LIMITS = Limits(0.01)


def tried(error: float, *blocks: str, name: str = "", limits: Limits = LIMITS) -> Entry:
    """A plan of the search with these blocks in int8."""
    error_s = Interval(0.0, error, 2.0 * error)
    placed = tuple(Placement(block, "local", "int8" if block in blocks else "float32") for block in ("a", "b"))
    plan = Plan(
        "m", DEFAULT_SCHEME, (FLOAT32, INT8), limits, placed, "optimal", 0.0, Interval(1.0, 1.0, 1.0), error_s,
        runtime=OPENVINO,
    )  # fmt: skip
    return Entry(plan, error, error <= 0.01, name, solved=not name)


@pytest.fixture
def graph() -> Graph:
    sketch = Sketch()
    sketch.conv(sketch.conv(sketch.input("x")))
    return sketch.graph()


def test_errors_are_expected_as_squares_until_one_is_measured(graph: Graph) -> None:
    place = AsBuilt(LIMITS, 0.006)
    assert place.bound == pytest.approx(0.008)
    one, other = tried(0.008, "a"), tried(0.004, "b")
    assert place.deployed(one).error == pytest.approx(0.01)
    one = replace(one, built=0.015)  # instead of 0.010
    place = place.following(one, [one, other])
    assert place.deployed(one).error == pytest.approx(0.015)
    assert place.deployed(other).error == pytest.approx(1.5 * (0.004**2 + 0.006**2) ** 0.5)
    assert place.within.max_error == pytest.approx(((0.01 / 1.5) ** 2 - 0.006**2) ** 0.5)
    assert [entry.holds for entry in place.judged(graph, [one, other, tried(0.0, name="float32")])] == [
        False, False, True
    ]  # fmt: skip


def test_a_plan_that_errs_less_than_expected_leaves_room(graph: Graph) -> None:
    leader = replace(tried(0.008, "a"), built=0.005)
    place = AsBuilt(LIMITS, 0.006).following(leader, [leader])
    assert place.bound == pytest.approx((0.02**2 - 0.006**2) ** 0.5)
    (again,) = place.judged(graph, [tried(0.012, "b")])
    assert again.holds and place.deployed(again).error < 0.01


def test_float_is_as_it_is_and_plans_follow_what_most_err() -> None:
    float32, measured = tried(0.0, name="float32"), replace(tried(0.008, "b"), built=0.02)
    place = AsBuilt(LIMITS, 0.006)
    assert place.following(tried(0.008, "a"), [tried(0.008, "a")]).usual == 1.0
    place = place.following(float32, [float32, measured])
    assert place.usual == pytest.approx(2.0)
    assert place.deployed(float32).error == 0.006


def test_pins_and_the_last_plans_that_hold_are_kept(graph: Graph) -> None:
    name = graph.blocks[0].name
    place = AsBuilt(Limits(0.01, float_blocks=(name,)), 0.0)
    ruled = tried(0.001, "a", name="int8")
    pinned = replace(ruled, plan=replace(ruled.plan, placements=(Placement(name, "local", "int8"),)))
    assert [entry.holds for entry in place.judged(graph, [pinned, tried(0.0, name="float32")])] == [False, True]
    far = replace(place, usual=100.0)
    assert [entry.holds for entry in far.judged(graph, [tried(0.008, "a")])] == [True]  # none would be left


def test_what_may_hold_and_is_not_known_is_measured() -> None:
    plan, place = tried(0.008, "a"), AsBuilt(LIMITS, 0.0)
    assert place.unsure(plan)
    assert not place.unsure(replace(plan, built=0.009))
    assert not place.unsure(replace(plan, plan=replace(plan.plan, runtime="onnxruntime")))
    assert not place.unsure(tried(0.0)) and not place.unsure(tried(0.3, "a"))
    assert not AsBuilt(replace(LIMITS, metric=Metric("tokens", True)), 0.0).unsure(plan)
    assert RELATIVE.smooth


@needs_bfloat16
@pytest.mark.whole
def test_the_predicted_error_of_a_plan_in_openvino_is_that_of_its_file() -> None:
    """A plan with 0.12 % was said to have 0.31 %: most of it was of blocks that the plan has in int8."""
    with np.load(digits_data()) as arrays:
        images = {"image": arrays["image"][:24]}
    result = taglio.optimize(
        digits_model(), images, max_error=0.6, force_int8=["*Conv*"], effort=0.01, scheme="qdq-u8s8-asym-pc-bf16",
        runtime=OPENVINO, threads=1,
    )  # fmt: skip
    assert result.table is not None and result.table.plan.int8_blocks > 0
    assert result.table.plan.predicted_error == pytest.approx(result.table.plan.error, rel=0.02)
