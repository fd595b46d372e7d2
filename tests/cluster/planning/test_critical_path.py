"""The path bound: no placement undercuts it. Requests become shorter by parting components."""

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio.cluster.file import parse
from taglio.cluster.planning.assemble import Assembled, assemble, labels_of
from taglio.cluster.planning.costs import Costs, evaluate
from taglio.cluster.planning.critical_path import lower_bound
from taglio.cluster.planning.describe import latencies
from taglio.cluster.planning.evolution import Pool
from taglio.cluster.planning.path_search import PathSearch
from taglio.cluster.planning.place import place
from taglio.cluster.planning.solve import solve
from taglio.cluster.planning.workload import Objective, Workload, parse_objective
from taglio.plan.result import Limits
from tests.cluster.planning.test_assemble import PAIR
from tests.cluster.planning.test_place import shortest
from tests.cluster.planning.test_schedule import drawn, on_two, some_levels
from tests.examples import examples
from tests.plan import made_up
from tests.plan.made_up import Problem, Sketch, profile_of

TWO = parse(PAIR)


def bound(assembled: Assembled) -> float:
    least = solve(assembled.problem).bound - assembled.problem.constant
    return lower_bound(assembled, Costs(assembled.problem), np.ones(1), least)


@examples(12)
@given(made_up.problems(largest=9, sparing=False), st.integers(0, 2**32))
def test_no_placement_of_a_larger_graph_undercuts_the_bound(problem: Problem, seed: int) -> None:
    """Too many to try: some at random, and what a pool makes of them, whose aim is to be below."""
    assembled = on_two(problem)
    search = PathSearch(assembled, Objective())
    for each in range(5):
        totals = evaluate(assembled.problem, drawn(assembled, seed + each))
        if search.kept(totals):
            search.offer(replace(totals, levels=some_levels(assembled, seed + each)))
    if search.best is not None:
        pool = Pool(search, price=search.value)
        pool.add(np.array([search.best.labels]), most=1)
        pool.run(inf, 5, good_enough=0.0)
        for member in pool.members:
            search.offer(member.totals)
        assert bound(assembled) <= search.value * (1 + 1e-9)


def test_branches_are_bounded_by_their_sum_where_a_link_costs_more_than_they_take() -> None:
    """Two branches of 5 µs each in turn on one device: no path has both, and the other device is 10 µs away."""
    sketch = Sketch()
    source = sketch.input("x")
    sketch.join(sketch.conv(source), sketch.conv(source))
    graph = sketch.graph()
    cost = {(block.name, form.name): 5.0 for block in graph.blocks for form in made_up.CHOICES}
    profile = profile_of(graph, cost, {tensor.name: (0.0, 0.0, 0.0, 0.0) for tensor in graph.tensors}, 1.0)
    work = Workload("m", graph, {"near": profile, "far": profile}, None, Limits(None))
    assembled = assemble([work], TWO, Objective())
    assert bound(assembled) == pytest.approx(shortest(assembled))


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


def best_levels(assembled: Assembled, labels: list[int]) -> float:
    """The shortest request of these labels over all levels of the blocks."""
    totals = evaluate(assembled.problem, labels)
    levels = product(range(2), repeat=len(labels))
    return min(latencies(assembled, replace(totals, levels=each))[0] for each in levels)


def test_an_output_leaves_before_the_rest_has_run() -> None:
    work = two_outputs(("conv0", "conv1", "conv2"))
    answer = place([work], TWO, parse_objective("latency"), time_limit_s=5.0)
    plan, assembled = answer.plans[0], answer.assembled
    labels = labels_of(assembled, 0, dict.fromkeys((b.name for b in work.graph.blocks), "far"), plan.assignment())
    whole = latencies(assembled, replace(answer.totals, levels=()))[0]
    assert plan.levels() and [each.device for each in plan.pieces if each.blocks] == ["far", "far"]
    assert answer.value == pytest.approx(best_levels(assembled, labels)) and answer.value < 0.95 * whole
    sent = next(each for each in plan.timeline if each.transfer and each.what.startswith("conv0"))
    later = next(each for each in plan.timeline if each.what == "1-far")
    assert sent.start_s < later.end_s
