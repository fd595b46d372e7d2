"""The checker knows a right plan from every kind of wrong one, without the solver."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from taglio.error.model import BlockNoise, ErrorModel, OutputModel
from taglio.model.graph import Graph
from taglio.plan import check as checker
from taglio.plan.check import PlanIsWrong, check
from taglio.plan.result import Limits, Placement, Plan
from taglio.plan.solve import describe, make_plan, noise_limits
from taglio.profile.result import Profile
from tests.plan import made_up
from tests.plan.made_up import INT8, Problem, Sketch, choosers, error_of, forms, profile_of

LIMITS = Limits(0.1, float_blocks=("conv0",), int8_blocks=("conv1",))


@pytest.fixture(scope="module")
def graph() -> Graph:
    """conv0 (held in float) → conv1 (held in int8) → join2 → soft3 → refused4."""
    sketch = Sketch()
    x = sketch.conv(sketch.conv(sketch.input("x")))
    sketch.refused(sketch.conv(sketch.join(x), soft=True))
    return sketch.graph()


@pytest.fixture(scope="module")
def profile(graph: Graph) -> Profile:
    times = {(block.name, name): 10.0 if name == "int8" else 20.0 for block in graph.blocks for name in forms(block)}
    return profile_of(graph, times, {tensor.name: (1.0, 0.5, 2.0, 2.0) for tensor in graph.tensors}, 5.0)


@pytest.fixture(scope="module")
def error(graph: Graph) -> ErrorModel:
    own = tuple(BlockNoise(block.name, name, 1e-3) for block in choosers(graph) for name in forms(block)[1:])
    return error_of(graph, (OutputModel("y", own, (), 0.0, 1.0),), 0.1)


@pytest.fixture(scope="module")
def plan(graph: Graph, profile: Profile, error: ErrorModel) -> Plan:
    found = make_plan(graph, profile, error, LIMITS)
    assert set(found.assignment()) == {"conv1", "join2", "soft3"}
    return found


def in_precision(plan: Plan, **changes: str) -> Plan:
    """The plan with some blocks in another precision, and nothing else said of it."""
    placed = tuple(replace(each, precision=changes.get(each.block, each.precision)) for each in plan.placements)
    return replace(plan, placements=placed)


def honest(graph: Graph, profile: Profile, error: ErrorModel, plan: Plan, **changes: str) -> Plan:
    """The same, with times and errors as they are then."""
    changed = in_precision(plan, **changes)
    told = describe(graph, profile, error, plan.limits, changed.assignment())
    return replace(changed, predicted_latency_s=told.predicted_latency_s, predicted_error=told.predicted_error)


def test_a_right_plan_passes(graph: Graph, profile: Profile, error: ErrorModel, plan: Plan) -> None:
    bounds = noise_limits(error, 0.1, 1.0)
    seconds = plan.predicted_latency_s.value
    check(graph, profile, error, plan)
    check(graph, profile, error, plan, objective_s=seconds - profile.overhead_s, noise_bounds=bounds)
    check(graph, profile, None, plan)
    check(graph, profile, error, honest(graph, profile, error, plan, soft3="int8-anchor"))


@pytest.mark.parametrize("factor", [0.5, 0.999, 1.001, 2.0])
def test_a_wrong_latency_is_caught(
    graph: Graph, profile: Profile, error: ErrorModel, plan: Plan, factor: float
) -> None:
    claimed = plan.predicted_latency_s
    lying = replace(plan, predicted_latency_s=replace(claimed, value=factor * claimed.value))
    with pytest.raises(PlanIsWrong, match=r"ms by the tables, .* ms were claimed"):
        check(graph, profile, error, lying)


def test_another_precision_than_the_one_that_was_priced_is_caught(
    graph: Graph, profile: Profile, error: ErrorModel, plan: Plan
) -> None:
    with pytest.raises(PlanIsWrong, match="were claimed"):
        check(graph, profile, error, in_precision(plan, soft3="float32"))


def test_a_plan_slower_than_its_solver_promised_is_caught(
    graph: Graph, profile: Profile, error: ErrorModel, plan: Plan
) -> None:
    promised = plan.predicted_latency_s.value - profile.overhead_s
    with pytest.raises(PlanIsWrong, match="the solver promised"):
        check(graph, profile, error, plan, objective_s=promised - 3e-6)


def test_a_broken_pin_is_caught(graph: Graph, profile: Profile, error: ErrorModel, plan: Plan) -> None:
    with pytest.raises(PlanIsWrong, match="conv0 was to stay float, the plan has it in int8"):
        check(graph, profile, error, honest(graph, profile, error, plan, conv0="int8"))
    with pytest.raises(PlanIsWrong, match="conv1 was to be int8, the plan has it in float32"):
        check(graph, profile, error, honest(graph, profile, error, plan, conv1="float32", join2="float32"))


def test_a_pin_of_a_weightless_block_binds_too(graph: Graph, profile: Profile, error: ErrorModel, plan: Plan) -> None:
    assert plan.assignment()["join2"] is INT8
    with pytest.raises(PlanIsWrong, match="join2 was to stay float"):
        check(graph, profile, error, replace(plan, limits=Limits(0.1, float_blocks=("join2",))))


def test_movement_may_be_held_in_float_and_still_follow() -> None:
    """It has no precision of its own: it moves what its producer writes."""
    sketch = Sketch()
    sketch.conv(sketch.move(sketch.conv(sketch.input("x")))[0])
    graph = sketch.graph()
    profile = profile_of(graph, {}, dict.fromkeys(("x", "conv0.0", "conv2.0"), (0.0, 0.0, 0.0, 0.0)))
    moved = make_plan(graph, profile, None, Limits(None, float_blocks=("move1",), int8_blocks=("conv0",)))
    check(graph, profile, None, moved)
    assert set(moved.assignment()) >= {"conv0", "move1"}


def test_a_block_that_is_missing_doubled_or_made_up_is_caught(
    graph: Graph, profile: Profile, error: ErrorModel, plan: Plan
) -> None:
    for placed in (
        plan.placements[:-1],
        (*plan.placements, plan.placements[0]),
        (*plan.placements, Placement("conv9", "local", "float32")),
        (*plan.placements[:-1], Placement("conv9", "local", "float32")),
        (),
    ):
        with pytest.raises(PlanIsWrong, match=f"places {len(placed)} blocks of 5"):
            check(graph, profile, error, replace(plan, placements=placed))


def test_noise_over_its_bound_is_caught(graph: Graph, profile: Profile, error: ErrorModel, plan: Plan) -> None:
    check(graph, profile, error, plan, noise_bounds={"y": 3e-3})
    with pytest.raises(PlanIsWrong, match=r"output y: the plan's noise 0\.003 is over its bound 0\.00299"):
        check(graph, profile, error, plan, noise_bounds={"y": 2.99e-3})


@pytest.mark.parametrize(("block", "precision"), [("refused4", "int8"), ("join2", "int8-anchor"), ("soft3", "int4")])
def test_a_precision_that_the_block_does_not_have_is_caught(
    graph: Graph, profile: Profile, error: ErrorModel, plan: Plan, block: str, precision: str
) -> None:
    wrong = in_precision(plan, **{block: precision})
    names = {each.block: each.precision for each in wrong.placements}
    seconds = checker.latency(graph, profile, names)
    wrong = replace(wrong, predicted_latency_s=replace(plan.predicted_latency_s, value=seconds))
    with pytest.raises(PlanIsWrong, match=block):
        check(graph, profile, error, wrong)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(made_up.problems())
def test_its_sums_are_those_that_are_worked_out_from_the_readers(problem: Problem) -> None:
    graph, error = problem.graph, problem.error
    for chosen in list(made_up.assignments(graph, Limits(None)))[:20]:
        names = {b.name: chosen[b.name].name if b.name in chosen else "float32" for b in graph.blocks}
        told = checker.latency(graph, problem.profile, names)
        assert told == pytest.approx(made_up.seconds(graph, problem.profile, chosen), rel=1e-9, abs=1e-15)
        for output in error.outputs:
            total = checker.noise(graph, error, output.output, names)
            assert total == pytest.approx(made_up.noise(graph, output, chosen), rel=1e-9)
            assert total == pytest.approx(output.noise(graph, chosen), rel=1e-9)
        if INT8 in chosen.values():
            check(graph, problem.profile, error, describe(graph, problem.profile, error, Limits(None), chosen))


def test_it_imports_neither_solver_nor_formulation() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {
        "taglio.plan.formulate",
        "taglio.plan.highs",
        "taglio.plan.solve",
        "taglio.quantize.effective",
    }
