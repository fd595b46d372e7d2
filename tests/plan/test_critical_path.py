"""The path bound: no placement undercuts it, a chain reaches it, and a limit on noise raises it."""

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taglio.cluster.file import parse
from taglio.plan.assemble import Assembled, assemble
from taglio.plan.costs import evaluate
from taglio.plan.critical_path import path_bound
from taglio.plan.evolution import Pool
from taglio.plan.placements import Search
from taglio.plan.problem import NoiseBound
from taglio.plan.replay import Timetable
from taglio.plan.result import Limits
from taglio.plan.workload import Goal, Workload
from tests.plan import made_up
from tests.plan.made_up import Problem
from tests.plan.test_assemble import PAIR, chain
from tests.plan.test_place import CLUSTER, every, seconds, workload
from tests.plan.test_schedule import STEADY, drawn, on_two, some_stages


def bound(assembled: Assembled) -> float:
    return path_bound(Timetable(assembled, 0))


def shortest(assembled: Assembled) -> float:
    """Of all placements, copies and stages."""
    stages = list(product(range(2), repeat=len(assembled.problem.nodes)))
    return min((seconds(assembled, replace(t, stages=s)) for t in every(assembled) for s in stages), default=inf)


@settings(STEADY, max_examples=20)
@given(made_up.problems(largest=3, sparing=False))
def test_no_placement_undercuts_the_bound(problem: Problem) -> None:
    assembled = assemble([workload(problem)], CLUSTER, Goal())
    assert bound(assembled) <= shortest(assembled) * (1 + 1e-9)


@settings(STEADY, max_examples=40)
@given(made_up.problems(largest=9, sparing=False), st.integers(0, 2**32))
def test_no_placement_of_a_larger_graph_undercuts_the_bound(problem: Problem, seed: int) -> None:
    """Too many to try: some at random, and what a pool makes of them, whose aim is to be below."""
    assembled = on_two(problem)
    search = Search(assembled, Goal())
    for each in range(5):
        totals = evaluate(assembled.problem, drawn(assembled, seed + each))
        if search.kept(totals):
            search.offer(replace(totals, stages=some_stages(assembled, seed + each)))
    if search.best is not None:
        pool = Pool(search, [Timetable(assembled, 0)], price=search.value)
        pool.add(np.array([search.best.labels]))
        pool.run(inf, 5, good_enough=0.0)
        for labels, wires, stages in pool.plans():
            search.offer(replace(evaluate(assembled.problem, labels, wires), stages=stages))
        assert bound(assembled) <= search.value * (1 + 1e-9)


def test_a_chain_is_bounded_by_its_shortest_placement() -> None:
    graph, profiles = chain()
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], parse(PAIR), Goal())
    assert bound(assembled) == pytest.approx(shortest(assembled))


def test_a_limit_on_noise_raises_the_bound() -> None:
    """Of a chain whose blocks are faster and noisy in int8 only half may be int8."""
    graph, profiles = chain()
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], parse(PAIR), Goal())
    problem = assembled.problem
    own = np.tile([0.0 if form.name == "float32" else 1.0 for form in problem.forms], (len(problem.nodes), 1))
    none = np.zeros(len(problem.values.readers))
    limited = replace(problem, noises=(NoiseBound("error", own, none, none, 0.5 * len(problem.nodes)),))
    held = replace(assembled, problem=limited)
    assert bound(assembled) < bound(held) <= shortest(held) * (1 + 1e-9)
