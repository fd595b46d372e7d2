"""What a problem's numbers say of an assignment is what the tables say of it, worked out anew."""

from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
import pytest
from hypothesis import given

from taglio.cluster.devices import Cluster, Device
from taglio.cluster.file import parse
from taglio.cluster.planning.assemble import Assembled, assemble, labels_of, placements_of
from taglio.cluster.planning.costs import evaluate
from taglio.cluster.planning.problem import Copies
from taglio.cluster.planning.solve import solve
from taglio.cluster.planning.workload import Objective, Workload
from taglio.error.model import BlockNoise
from taglio.errors import BadOption
from taglio.model.graph import Graph
from taglio.plan.one_machine import make_plan, noise_limits
from taglio.plan.result import GAP, Limits
from taglio.plan.tables import Tables
from taglio.profile.result import Profile
from tests.cluster.planning.reference import brute_force
from tests.examples import examples
from tests.plan import made_up
from tests.plan.made_up import INT8, MICROSECOND, Problem, Sketch, assignments, noise, profile_of, seconds

HERE = Cluster("local", (Device("local", profile="profile.json"),), ())
NONE = Limits(None)
PAIR = """
start = "near"
[device.near]
active_watts = 2.0
[device.far]
active_watts = 10.0
[[link]]
from = "near"
to = "far"
both = true
bandwidth_mbit_s = 8
latency_ms = 0.01
joules_per_mb = 3.0
"""


def alone(problem: Problem) -> Assembled:
    """One machine."""
    bound = problem.limits.max_error
    bounds = None if bound is None else noise_limits(problem.error, bound, 1.0)
    work = Workload("m", problem.graph, {"local": problem.profile}, problem.error, problem.limits, noise_limits=bounds)
    return assemble([work], HERE, Objective())


@examples(60)
@given(made_up.problems(sparing=False))
def test_on_one_machine_every_assignment_costs_what_the_profile_says(problem: Problem) -> None:
    here = dict.fromkeys((block.name for block in problem.graph.blocks), "local")
    assembled = alone(replace(problem, limits=replace(problem.limits, float_blocks=(), int8_blocks=())))
    for chosen in islice(assignments(problem.graph, Limits(None)), 40):
        labels = labels_of(assembled, 0, here, chosen)
        totals = evaluate(assembled.problem, labels)
        assert totals.objective == pytest.approx(seconds(problem.graph, problem.profile, chosen), rel=1e-9, abs=1e-12)
        assert not [each for each in totals.broken if not each.startswith("error of")]
        placed = {each.block: each.precision for each in placements_of(assembled, 0, labels)}
        assert {block: name for block, name in placed.items() if name != "float32"} == {
            block: precision.name for block, precision in chosen.items()
        }
        for bound, amount in zip(assembled.problem.noises, totals.noises):
            output = next(each for each in problem.error.outputs if bound.name.endswith(each.output))
            limit = noise_limits(problem.error, problem.limits.max_error or 0.0, 1.0)[output.output]
            wanted = noise(problem.graph, output, chosen)
            assert amount == pytest.approx(wanted / limit, rel=1e-6, abs=1e-12) or wanted > 5 * limit


@pytest.mark.parametrize("seed", range(8))
def test_one_device_is_planned_as_one_machine(seed: int) -> None:
    """Of two planners that share no code, neither has a plan below what the other proves."""
    problem = made_up.problem_of(Random(seed), 50, kinds=(*made_up.KINDS, "product", "product"), sparing=False)
    plan = make_plan(Tables(problem.graph, problem.profile, problem.error), problem.limits)
    placed = solve(alone(problem).problem, time_limit_s=0.5)
    if plan.status == "infeasible":
        assert not placed.labels
        return
    seconds = plan.predicted_latency_s.value
    assert plan.gap <= GAP and placed.status != "infeasible"
    assert placed.bound <= seconds * (1.0 + 1e-6)
    assert seconds * (1.0 - plan.gap) <= placed.objective * (1.0 + 1e-6)


@examples(20)
@given(made_up.problems(sparing=False))
def test_errors_of_bfloat16_which_components_cannot_have_are_left_out(problem: Problem) -> None:
    """On a machine with bfloat16 they are measured, too."""
    low = tuple(BlockNoise(block.name, "bfloat16", 1.0) for block in problem.graph.blocks)
    outputs = tuple(replace(output, blocks=(*output.blocks, *low)) for output in problem.error.outputs)
    with_low = alone(replace(problem, error=replace(problem.error, outputs=outputs))).problem.noises
    for found, wanted in zip(with_low, alone(problem).problem.noises, strict=True):
        assert (found.own == wanted.own).all()


def chain(*, soft: bool = False) -> tuple[Graph, dict[str, Profile]]:
    """conv0 → conv1 → conv2 with 8 elements between; near takes 30 / 12 / 15 µs a block, far 5 / 1 / 2."""
    sketch = Sketch()
    tensor = sketch.input("x")
    for _ in range(3):
        tensor = sketch.conv(tensor, soft=soft)
    graph = sketch.graph()
    near, far = {}, {}
    for block in graph.blocks:
        for name, a, b in (("float32", 30, 5), ("int8", 12, 1), ("int8-anchor", 15, 2)):
            near[block.name, name], far[block.name, name] = float(a), float(b)
    glue = {tensor.name: (2.0, 1.0, 4.0, 3.0) for tensor in graph.tensors}
    return graph, {"near": profile_of(graph, near, glue, 7.0), "far": profile_of(graph, far, glue, 9.0)}


def without_wire_only(assembled: Assembled) -> Assembled:
    """Where float values are not quantised for the way alone."""
    return replace(assembled, problem=replace(assembled.problem, wire_only=False))


def two(
    graph: Graph,
    profiles: dict[str, Profile],
    cluster: Cluster | None = None,
    limits: Limits = NONE,
    *,
    wire_only: bool = True,
) -> Assembled:
    works = [Workload("m", graph, profiles, None, limits)]
    assembled = assemble(works, cluster or parse(PAIR), Objective())
    return assembled if wire_only else without_wire_only(assembled)


def test_a_chain_over_a_link_costs_what_its_parts_do() -> None:
    graph, profiles = chain()
    assembled = two(graph, profiles, wire_only=False)
    names = [block.name for block in graph.blocks]
    places = dict(zip(names, ("near", "far", "far")))
    # 8 floats are 32 bytes, 32 µs at a byte a microsecond, and 10 µs of latency; back the same.
    totals = evaluate(assembled.problem, labels_of(assembled, 0, places, {}))
    base = 2.0 + 2.0  # the input's flow is charged to conv0 beside its own
    compute = (30 + base) + (5 + 2) + (5 + 2)
    assert totals.objective == pytest.approx((compute + 2 * (32 + 10) + 7) * MICROSECOND)
    # In int8 all along: the input is quantised near (4), conv0 writes int8, 8 bytes travel there, and back to be
    # dequantised near (3).
    chosen = dict.fromkeys(names, INT8)
    totals = evaluate(assembled.problem, labels_of(assembled, 0, places, chosen))
    compute = (12 + 2 + 1) + (1 + 1) + (1 + 1) + 4 + 3
    assert totals.objective == pytest.approx((compute + 2 * (8 + 10) + 7) * MICROSECOND)
    energy = next(i for i, each in enumerate(assembled.problem.resources) if each.name == "energy")
    joules = (2.0 * (15 + 4 + 3) + 10.0 * (2 + 2)) * MICROSECOND + 2 * 8 * 3e-6
    assert totals.resources[energy] == pytest.approx(joules)


def test_a_float_tensor_may_be_quantised_for_the_wire_alone() -> None:
    graph, profiles = chain()
    assembled = two(graph, profiles)
    places = dict(zip((block.name for block in graph.blocks), ("near", "far", "near")))
    totals = evaluate(assembled.problem, labels_of(assembled, 0, places, {}))
    # 42 µs in float; 4 to quantise + 8 + 10 + 3 to dequantise in int8.
    assert totals.copies[1:3].tolist() == [[0, Copies.INT8], [Copies.INT8, 0]]
    assert totals.objective == pytest.approx((34 + 7 + 32 + 2 * 25 + 7) * MICROSECOND)


def test_devices_without_a_link_are_not_connected() -> None:
    graph, profiles = chain()
    cluster = replace(parse(PAIR), links=())
    problem = two(graph, profiles, cluster).problem
    best = brute_force(problem)
    assert best is not None
    assert {problem.split(label)[0] for label in best.labels} == {0}


def test_pins_exclusions_and_what_a_device_may_not_run() -> None:
    graph, profiles = chain()
    cluster = parse(PAIR.replace("[device.far]", '[device.far]\nnever = ["conv1"]'))
    names = [block.name for block in graph.blocks]
    pins = Limits(None, device_pins=((names[0], "near"),), device_exclusions=((names[2], "near"),))
    assembled = two(graph, profiles, cluster, pins)
    assert [row.any(axis=1).tolist() for row in assembled.problem.allowed] == [
        [True, False],
        [True, False],
        [False, True],
    ]
    with pytest.raises(BadOption, match="cannot run on any device"):
        two(graph, profiles, cluster, Limits(None, device_pins=((names[1], "far"),)))
    no_int8 = replace(cluster, devices=tuple(replace(each, int8=False) for each in cluster.devices))
    with pytest.raises(BadOption, match="no form that its pins and devices allow"):
        two(graph, profiles, no_int8, Limits(None, int8_blocks=(names[0],)))


def test_forms_of_products_are_for_products_where_int8_is_allowed() -> None:
    """Such forms read and write float, as movement behind a product does, and have int8 inside."""
    sketch = Sketch()
    sketch.move(sketch.product(sketch.input("x")))
    graph = sketch.graph()
    profile = profile_of(graph, {}, {tensor.name: (0.0,) * 4 for tensor in graph.tensors})
    allowed = {}
    for int8 in (True, False):
        cluster = replace(HERE, devices=tuple(replace(device, int8=int8) for device in HERE.devices))
        problem = two(graph, {"local": profile}, cluster).problem
        for block, row in zip(("product", "movement"), problem.allowed[:, 0], strict=True):
            allowed[block, int8] = {problem.forms[index].name for index in np.flatnonzero(row)}
    assert {"float32", "int8", "int8-weights"} <= allowed["product", True]
    assert "int8" in allowed["movement", True] and "int8-weights" not in allowed["movement", True]
    assert allowed["product", False] == {"float32"}


def test_several_models_share_devices_by_their_rates() -> None:
    graph, profiles = chain()
    cluster = parse(PAIR)
    works = [
        Workload("often", graph, profiles, None, Limits(None), rate_per_s=3000.0),
        Workload("seldom", graph, profiles, None, Limits(None), rate_per_s=1000.0),
    ]
    assembled = assemble(works, cluster, Objective())
    problem = assembled.problem
    here = dict.fromkeys((block.name for block in graph.blocks), "near")
    labels = labels_of(assembled, 0, here, {}) + labels_of(assembled, 1, here, dict.fromkeys(here, INT8))
    totals = evaluate(problem, labels)
    by_name = dict(zip((each.name for each in problem.resources), totals.resources))
    slow, fast = (34 + 32 + 32) * MICROSECOND, (15 + 13 + 13 + 4 + 3) * MICROSECOND
    assert by_name["latency of often"] == pytest.approx(slow)
    assert by_name["latency of seldom"] == pytest.approx(fast)
    assert by_name["time of near"] == pytest.approx(3000 * slow + 1000 * fast)
    assert totals.objective == pytest.approx(0.75 * slow + 0.25 * fast + 7 * MICROSECOND)
    assert problem.nodes[0] == "often/conv0" and problem.nodes[3] == "seldom/conv0"
