"""The one rule of costs against plain loops: sums, limits and the cheapest copies of any labelling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio.cluster.planning.costs import Costs
from taglio.cluster.planning.problem import Problem, Totals
from tests.cluster.planning import reference
from tests.cluster.planning.small_problems import problems
from tests.examples import examples

slowly = examples(60, steady=False)


def drawn(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    rows = problem.allowed.reshape(len(problem.nodes), -1)
    return np.array([rng.choice(np.flatnonzero(row)) for row in rows], dtype=np.intp)


def same(found: Totals, wanted: Totals) -> None:
    assert found.objective == pytest.approx(wanted.objective)
    assert found.resources == pytest.approx(wanted.resources) and found.noises == pytest.approx(wanted.noises)
    assert found.weight_bytes == pytest.approx(wanted.weight_bytes)
    assert found.peak_bytes == pytest.approx(wanted.peak_bytes)
    assert sorted(found.broken) == sorted(wanted.broken)


@slowly
@given(problems(peak=True), st.integers(0, 2**16))
def test_any_labelling_with_any_copies_costs_what_plain_loops_say(problem: Problem, seed: int) -> None:
    rng, costs = np.random.default_rng(seed), Costs(problem)
    for _ in range(5):
        labels = drawn(problem, rng).tolist()
        options = [list(reference.choices(problem, labels, value)) for value in range(len(problem.values))]
        copies = reference.array_of(problem, [each[rng.integers(len(each))] for each in options])
        same(costs.totals(labels, copies), reference.evaluate(problem, labels, copies))


@slowly
@given(problems(), st.integers(0, 2**16))
def test_the_cheapest_copies_are_the_cheapest_of_all(problem: Problem, seed: int) -> None:
    labels = drawn(problem, np.random.default_rng(seed)).tolist()
    found, wanted = Costs(problem).totals(labels), reference.evaluate(problem, labels)
    assert found.objective == pytest.approx(wanted.objective)
    same(found, reference.evaluate(problem, labels, found.copies))


@slowly
@given(problems(), st.integers(0, 2**16))
def test_labellings_at_once_cost_what_each_costs_alone(problem: Problem, seed: int) -> None:
    rng, costs = np.random.default_rng(seed), Costs(problem)
    priced = costs.price(rng.exponential(5.0, len(costs.rows)))
    labels = np.array([drawn(problem, rng) for _ in range(5)])
    together, copies = costs.sums_of(priced, labels)
    for row, sums, sent in zip(labels, together, copies, strict=True):
        totals = costs.totals(row, sent)
        assert (sent == costs.cheapest(priced, costs.ends(row)).copies).all()
        assert totals.broken or sums[0] == pytest.approx(totals.objective)
        assert sums[1 : 1 + len(problem.resources)] == pytest.approx(totals.resources)
