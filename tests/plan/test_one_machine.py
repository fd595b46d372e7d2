"""A plan is as fast as the fastest of all assignments: every one is tried, with times and noises worked out anew."""

from math import inf

import pytest
from hypothesis import given

from taglio.error.model import BlockNoise, EdgeNoise, ErrorModel, OutputModel
from taglio.errors import BadOption
from taglio.model.graph import Graph
from taglio.plan.one_machine import make_plan, pinned
from taglio.plan.program import Program, Solution
from taglio.plan.result import Limits, Plan
from taglio.plan.tables import Tables
from taglio.profile.result import Profile
from taglio.quantize.precision import Assignment
from tests.examples import examples
from tests.plan import made_up
from tests.plan.made_up import (
    LENIENT,
    Problem,
    Sketch,
    cheapest,
    choosers,
    error_of,
    forms,
    profile_of,
    seconds,
    within,
)


def solved(graph: Graph, profile: Profile, error: ErrorModel | None, limits: Limits) -> Plan:
    """The plan, after it was compared with the cheapest of all assignments.

    Rows of a program hold within a millionth, so assignments that close to a limit may count or not.
    """
    plan = make_plan(Tables(graph, profile, error), limits, gap=1e-7)
    lenient, _ = cheapest(graph, profile, error, limits, LENIENT)
    strict, wanted = cheapest(graph, profile, error, limits, -LENIENT)
    if plan.status == "infeasible":
        assert strict == inf, f"infeasible, but {named(wanted)} keeps the limits"
        return plan
    chosen = plan.assignment()
    assert plan.status == "optimal" and lenient < inf, f"nothing keeps the limits, the plan is {named(chosen)}"
    claimed = plan.predicted_latency_s.value
    assert claimed == pytest.approx(max(0.0, seconds(graph, profile, chosen)), rel=1e-9)
    # No plan takes less than no time, whatever changes of type save by the tables.
    lenient, strict = max(0.0, lenient), max(0.0, strict)
    assert lenient * (1 - 1e-6) <= claimed <= strict * (1 + 1e-6), f"{named(chosen)}, but fastest: {named(wanted)}"
    if error is not None and limits.max_error is not None:
        assert within(graph, error, limits.max_error, chosen, LENIENT)
        assert plan.predicted_error.high == pytest.approx(made_up.upper_error(graph, error, chosen), rel=1e-9)
    assert not set(limits.int8_blocks) - set(chosen)
    return plan


def named(chosen: Assignment) -> dict[str, str]:
    return {block: precision.name for block, precision in chosen.items()}


def test_a_model_too_quick_to_be_timed_has_a_plan() -> None:
    s = Sketch()
    graph = s.graph(s.conv(s.input("x")))
    times = {(block.name, form): 0.0 for block in graph.blocks for form in forms(block)}
    plan = solved(graph, profile_of(graph, times, dict.fromkeys(s.tensors, (0.0,) * 4)), None, Limits(None))
    assert (plan.predicted_latency_s.value, plan.predicted_rate_per_s) == (0.0, None)


@examples(100)
@given(made_up.problems())
def test_a_plan_is_the_fastest_of_all_assignments_that_keep_the_limits(problem: Problem) -> None:
    solved(problem.graph, problem.profile, problem.error, problem.limits)


@examples(60)
@given(made_up.problems(5, kinds=("product", "product", "soft", "conv", "join", "move", "refused"), smallest=3))
def test_so_it_is_with_forms_that_need_no_calibration(problem: Problem) -> None:
    solved(problem.graph, problem.profile, problem.error, problem.limits)


def between_two_convolutions(*, move: bool) -> tuple[Graph, Profile]:
    """conv → weightless block (→ movement) → conv, where the weightless block alone is slower in int8."""
    sketch = Sketch()
    middle = sketch.join(sketch.conv(sketch.input("x")))
    sketch.conv(sketch.move(middle)[0] if move else middle)
    graph = sketch.graph()
    times = {(block.name, name): 0.0 for block in graph.blocks for name in forms(block)}
    for block in choosers(graph):
        fast, slow = ("float32", "int8") if block.kind == "join" else ("int8", "float32")
        times |= {(block.name, fast): 10.0, (block.name, slow): 50.0 if block.kind == "join" else 60.0}
    flows = dict.fromkeys(tensor.name for tensor in made_up.origins(graph).values())
    return graph, profile_of(graph, times, dict.fromkeys(flows, (0.0, 0.0, 3.0, 3.0)))


def test_a_weightless_block_between_int8_blocks_counts_as_int8() -> None:
    graph, profile = between_two_convolutions(move=False)
    plan = solved(graph, profile, None, Limits(None))
    # A float block in the middle would make 3 + 10 + 3 + 10 + 3 + 10 + 3; that is not to be had.
    assert plan.predicted_latency_s.value == pytest.approx((3 + 10 + 50 + 10 + 3) * 1e-6)


@pytest.mark.parametrize("noise", [0.0, 1e-2], ids=["slower", "over the bound"])
def test_a_weightless_block_held_in_float_is_not_surrounded_by_int8(noise: float) -> None:
    """ONNX Runtime would run it in int8: what the user asked for can only be kept by leaving a neighbour in float."""
    graph, profile = between_two_convolutions(move=False)
    own = tuple(BlockNoise(b.name, "int8", noise if b.kind == "join" else 1e-6) for b in choosers(graph))
    error = error_of(graph, (OutputModel("y", own, (), 0.0, 1.0),))
    plan = solved(graph, profile, error, Limits(0.01, float_blocks=("join1",)))
    assert len(plan.assignment()) == 1 and "join1" not in plan.assignment()
    pins = Limits(None, float_blocks=("join1",), int8_blocks=("conv0", "conv2"))
    assert solved(graph, profile, error, pins).status == "infeasible"


def noisy(noise: float, exponent: float) -> tuple[Graph, Profile, ErrorModel]:
    sketch = Sketch()
    sketch.conv(sketch.conv(sketch.input("x")))
    graph = sketch.graph()
    times = {(block.name, name): 10.0 if name == "int8" else 20.0 for block in graph.blocks for name in forms(block)}
    own = tuple(BlockNoise(block.name, "int8", noise) for block in graph.blocks)
    edge = tuple(EdgeNoise(flow, reader, noise) for flow, reader in made_up.edges(graph))
    profile = profile_of(graph, times, dict.fromkeys((t.name for t in graph.tensors), (0.0, 0.0, 1.0, 1.0)))
    return graph, profile, error_of(graph, (OutputModel("y", own, edge, 0.5, exponent),), 0.3)


@pytest.mark.parametrize("exponent", [0.3, 1.0])
@pytest.mark.parametrize("bound", [0.0, 1e-12, 1e-100, 1e-300])
def test_a_bound_below_all_noise_leaves_the_model_in_float(bound: float, exponent: float) -> None:
    graph, profile, error = noisy(1e-4, exponent)
    plan = solved(graph, profile, error, Limits(bound))
    assert plan.status == "optimal" and plan.assignment() == {}
    assert plan.predicted_error.value == 0.0
    # What adds no noise keeps any bound; what is pinned and adds some keeps none of these.
    graph, profile, error = noisy(0.0, exponent)
    assert set(solved(graph, profile, error, Limits(bound)).assignment()) == {"conv0", "conv1"}
    graph, profile, error = noisy(1e-4, exponent)
    assert solved(graph, profile, error, Limits(bound, int8_blocks=("conv0",))).status == "infeasible"


@pytest.mark.parametrize(
    ("keep_float", "force_int8", "words"),
    [
        (["conv0"], ["conv*"], "conv0 is pinned to both float and int8"),
        ([], ["refused1"], "matches only blocks without an int8 form: no int8 kernel"),
        ([], ["conv0", "conv7"], "matches none of 3 blocks"),
        ([], ["move2"], "move2 cannot be pinned to int8: a movement operator follows its producer"),
    ],
)
def test_pins_that_no_plan_can_keep_are_refused(keep_float: list[str], force_int8: list[str], words: str) -> None:
    sketch = Sketch()
    sketch.move(sketch.refused(sketch.conv(sketch.input("x")))[0])
    with pytest.raises(BadOption, match=words):
        pinned(sketch.graph(), keep_float, force_int8)


def test_movement_reads_what_steers_it_in_the_type_of_what_it_moves() -> None:
    """The flow of its second input is quantised for it, or dequantised, as for any reader."""
    sketch = Sketch()
    moved, steering = sketch.conv(sketch.input("x")), sketch.conv(sketch.input("y"))
    sketch.conv(sketch.move(moved, steered_by=steering)[0])
    graph = sketch.graph()
    times = {(block.name, name): 10.0 for block in graph.blocks for name in forms(block)}
    times |= {("conv0", "int8"): 1.0, ("conv3", "int8"): 1.0}
    flows = dict.fromkeys(tensor.name for tensor in made_up.origins(graph).values())
    profile = profile_of(graph, times, dict.fromkeys(flows, (0.0, 0.0, 2.0, 2.0)))
    plan = make_plan(Tables(graph, profile), Limits(None), gap=1e-7)
    assert named(plan.assignment()) == {"conv0": "int8", "move2": "int8", "conv3": "int8"}
    # The input of conv0, the steering input and the output change their types.
    assert plan.predicted_latency_s.value == pytest.approx((2 + 1 + 10 + 2 + 10 + 1 + 2) * 1e-6)


def test_a_solver_without_time_leaves_the_model_in_float(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, profile, error = noisy(1e-4, 1.0)
    monkeypatch.setattr(Program, "minimise", lambda *_, **__: Solution("limit", None, inf, -inf))
    plan = make_plan(Tables(graph, profile, error), Limits(1e9))
    assert (plan.status, plan.gap, plan.assignment()) == ("time limit", inf, {})
    assert make_plan(Tables(graph, profile, error), Limits(1e9, int8_blocks=("conv0",))).status == "infeasible"
