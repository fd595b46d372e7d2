"""Regions taken from another labelling: what they change is exact, and crossing never makes a labelling worse."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taglio.plan.crossover import cross
from taglio.plan.descent import Descent
from taglio.plan.ledger import Ledger
from taglio.plan.prices import Market
from taglio.plan.problem import Problem
from tests.plan.small_problems import problems

slowly = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def drawn(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    rows = problem.allowed.reshape(len(problem.nodes), -1)
    return np.array([rng.choice(np.flatnonzero(row)) for row in rows], dtype=np.intp)


@slowly
@given(problems(), st.integers(0, 2**16))
def test_what_a_region_changes_is_what_its_labels_change(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    market = Market(problem)
    ledger = Ledger(market)
    priced = market.price(rng.exponential(5.0, len(market.rows)))
    labels, other = drawn(problem, rng), drawn(problem, rng)
    before, use = ledger.totals(priced, labels)
    nodes = np.flatnonzero(rng.random(len(labels)) < 0.6)
    if not len(nodes):
        return
    move = np.zeros(len(nodes), dtype=np.intp)
    change, which, value = ledger.regions(priced, labels, use, move, nodes, other[nodes])
    after = labels.copy()
    after[nodes] = other[nodes]
    assert (before + change[0]).tolist() == pytest.approx(ledger.totals(priced, after)[0].tolist())
    untouched = np.setdiff1d(np.arange(len(use)), value[which == 0])
    assert np.allclose(use[untouched], ledger.totals(priced, after)[1][untouched])


@slowly
@given(problems(), st.integers(0, 2**16))
def test_crossing_keeps_a_plan_a_plan_and_never_makes_it_dearer(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    market = Market(problem)
    ledger = Ledger(market)
    multipliers = rng.exponential(5.0, len(market.rows))
    priced = market.price(multipliers)
    labels, answers = drawn(problem, rng), [drawn(problem, rng) for _ in range(4)]
    crossed = cross(market, ledger, Descent(market, ledger).near, priced, multipliers, labels, answers, deadline=np.inf)
    offered = np.stack([labels, *answers])
    assert all(crossed[node] in offered[:, node] for node in range(len(labels)))
    before, after = (ledger.totals(priced, each)[0] for each in (labels, crossed))
    if (before[1:] <= market.uppers).all():
        assert (after[1:] <= market.uppers + 1e-9).all()
        assert after[0] <= before[0] * (1.0 + 1e-9)
