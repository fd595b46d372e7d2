"""No placement of a small problem undercuts the bound of a diagram, and on a chain one reaches it."""

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taglio.cluster.file import parse
from taglio.errors import BadOption
from taglio.plan.assemble import Assembled, assemble
from taglio.plan.critical import flow
from taglio.plan.diagram import Diagram, keys
from taglio.plan.evaluate import evaluate
from taglio.plan.evolve import Pool
from taglio.plan.local_search import LocalSearch
from taglio.plan.result import Limits
from taglio.plan.timetable import Timetable
from taglio.plan.workload import Goal, Workload
from tests.plan import made_up
from tests.plan.made_up import Problem
from tests.plan.test_assemble import PAIR, chain
from tests.plan.test_place import CLUSTER, every, seconds, workload
from tests.plan.test_schedule import STEADY, drawn, on_two, some_stages


def diagram(assembled: Assembled) -> Diagram:
    return Diagram(Timetable(assembled, 0), flow(assembled.problem, assembled.nodes(0)).windows)


def dearer(assembled: Assembled, factor: float) -> Assembled:
    """The same where changing a type takes `factor` times as long."""
    values = assembled.problem.values
    quantize_s, dequantize_s = factor * values.quantize_s, factor * values.dequantize_s
    values = replace(values, quantize_s=quantize_s, dequantize_s=dequantize_s)
    return replace(assembled, problem=replace(assembled.problem, values=values))


def shortest(assembled: Assembled) -> float:
    """Of all placements, copies and stages."""
    stages = list(product(range(2), repeat=len(assembled.problem.nodes)))
    return min((seconds(assembled, replace(t, stages=s)) for t in every(assembled) for s in stages), default=inf)


@settings(STEADY, max_examples=20)
@given(made_up.problems(largest=3, sparing=False), st.sampled_from([1, 3, 1000]), st.sampled_from([1.0, 30.0]))
def test_no_placement_undercuts_the_bound(problem: Problem, width: int, dear: float) -> None:
    try:
        assembled = dearer(assemble([workload(problem)], CLUSTER, Goal()), dear)
    except BadOption:
        return
    best = shortest(assembled)
    bound = diagram(assembled).bound(width, inf, inf)
    assert bound <= best * (1 + 1e-9)
    # Whatever the target, and whatever one before it left out, it is reached only where nothing is below it.
    again = diagram(assembled)
    for target in (1.01 * best, 1.01 * best, 0.5 * best, 2.0 * best):
        assert again.bound(width, target, inf) <= min(target, best) * (1 + 1e-9)
    assert again.bound(width, 0.5 * best, inf) >= min(0.5 * best, bound) * (1 - 1e-9)


@settings(STEADY, max_examples=60)
@given(
    made_up.problems(largest=9, sparing=False),
    st.sampled_from([2, 20, 1000]),
    st.integers(0, 2**32),
    st.sampled_from([1.0, 30.0]),
)
def test_no_placement_of_a_larger_graph_undercuts_the_bound(
    problem: Problem, width: int, seed: int, dear: float
) -> None:
    """Too many to try: some at random, and what a pool makes of them, whose aim is to be below."""
    assembled = dearer(on_two(problem), dear)
    bound = diagram(assembled).bound(width, inf, inf)
    search = LocalSearch(assembled, Goal())
    for each in range(5):
        totals = evaluate(assembled.problem, drawn(assembled, seed + each))
        if search.kept(totals):
            stages = some_stages(assembled, seed + each)
            assert bound <= search.worth(replace(totals, stages=stages)) * (1 + 1e-9)
            search.offer(totals)
    if search.best is not None:
        pool = Pool(search, [Timetable(assembled, 0)], price=search.value)
        pool.add(np.array([search.best.labels]))
        pool.run(inf, 5, good_enough=0.0)
        for labels, wires, stages in pool.plans():
            search.offer(replace(evaluate(assembled.problem, labels, wires), stages=stages))
        assert bound <= search.value * (1 + 1e-9)


def test_a_chain_is_bounded_by_its_shortest_placement() -> None:
    graph, profiles = chain()
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], parse(PAIR), Goal())
    assert diagram(assembled).bound(1000, inf, inf) == pytest.approx(shortest(assembled))


def test_rows_of_many_labels_have_one_number_each() -> None:
    labels = np.random.default_rng(0).integers(0, 90, (300, 40))
    labels[100:200] = labels[:100]
    found = keys(labels)
    assert len(np.unique(found)) == 200 and (found[100:200] == found[:100]).all()
