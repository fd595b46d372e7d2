"""Requests become shorter by parting components; what is found is as good as trying everything."""

from dataclasses import replace
from itertools import product
from math import inf

import pytest
from hypothesis import given, settings

from taglio.cluster.file import parse
from taglio.plan.assemble import Assembled, labels_of
from taglio.plan.costs import evaluate
from taglio.plan.describe import latencies
from taglio.plan.place import place
from taglio.plan.placements import Search
from taglio.plan.result import Limits
from taglio.plan.workload import Goal, Workload, parse_objective
from tests.plan import made_up
from tests.plan.made_up import Problem, Sketch, profile_of
from tests.plan.test_assemble import PAIR
from tests.plan.test_schedule import STEADY, drawn, on_two

CLUSTER = parse(PAIR)


def two_outputs(pins: tuple[str, ...]) -> Workload:
    """x → conv0 → conv1 → conv2, the first and the last of them outputs; a block takes 5 µs on far, 200 on near."""
    sketch = Sketch()
    early = sketch.conv(sketch.input("x"))
    sketch.conv(sketch.conv(early))
    graph = sketch.graph(early)
    costs = {
        where: {(block.name, form.name): each for block in graph.blocks for form in made_up.CHOICES}
        for where, each in (("near", 200.0), ("far", 5.0))
    }
    glue = {tensor.name: (0.0, 0.0, 0.0, 0.0) for tensor in graph.tensors}
    profiles = {where: profile_of(graph, cost, glue, 1.0) for where, cost in costs.items()}
    return Workload("m", graph, profiles, None, Limits(None, device_pins=tuple((name, "far") for name in pins)))


def best_stages(assembled: Assembled, labels: list[int]) -> float:
    """The shortest request of these labels over all stages of the blocks."""
    totals = evaluate(assembled.problem, labels)
    stages = product(range(2), repeat=len(labels))
    return min(latencies(assembled, replace(totals, stages=each))[0] for each in stages)


def test_an_output_leaves_before_the_rest_has_run() -> None:
    work = two_outputs(("conv0", "conv1", "conv2"))
    answer = place([work], CLUSTER, parse_objective("latency"), time_limit_s=5.0)
    plan, assembled = answer.plans[0], answer.assembled
    labels = labels_of(assembled, 0, dict.fromkeys((b.name for b in work.graph.blocks), "far"), plan.assignment())
    whole = latencies(assembled, replace(answer.totals, stages=()))[0]
    assert plan.stages() and [each.device for each in plan.pieces if each.blocks] == ["far", "far"]
    assert answer.value == pytest.approx(best_stages(assembled, labels)) and answer.value < 0.95 * whole
    sent = next(each for each in plan.timeline if each.transfer and each.what.startswith("conv0"))
    later = next(each for each in plan.timeline if each.what == "1-far")
    assert sent.start_s < later.end_s


def test_one_output_needs_no_parting() -> None:
    sketch = Sketch()
    sketch.conv(sketch.conv(sketch.input("x")))
    graph = sketch.graph()
    cost = {(block.name, form.name): 5.0 for block in graph.blocks for form in made_up.CHOICES}
    profile = profile_of(graph, cost, {tensor.name: (0.0, 0.0, 0.0, 0.0) for tensor in graph.tensors}, 1.0)
    pins = tuple((block.name, "far") for block in graph.blocks)
    work = Workload("m", graph, {"near": profile, "far": profile}, None, Limits(None, device_pins=pins))
    assert not place([work], CLUSTER, parse_objective("latency"), time_limit_s=5.0).plans[0].stages()


@settings(STEADY, max_examples=60)
@given(made_up.problems(largest=4, sparing=False))
def test_a_placement_that_is_offered_only_becomes_better(problem: Problem) -> None:
    assembled = on_two(problem)
    search = Search(assembled, Goal())
    least = inf
    for seed in range(3):
        totals = evaluate(assembled.problem, drawn(assembled, seed))
        if not totals.broken:
            least = min(least, latencies(assembled, totals)[0])
        search.offer(totals)
    assert search.value <= least * (1 + 1e-12)
    if search.best is not None:
        assert search.value == pytest.approx(latencies(assembled, search.best)[0])
        assert not evaluate(assembled.problem, search.best.labels, search.best.wires).broken
