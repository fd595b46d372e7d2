"""Estimated periods are those of the plans where nothing is left to choose; a pool only gets better and keeps the
limits."""

from math import inf

import numpy as np
import pytest
from hypothesis import given

from taglio.cluster.file import parse
from taglio.cluster.planning.assemble import assemble
from taglio.cluster.planning.costs import evaluate
from taglio.cluster.planning.evolution import Pool, evolve
from taglio.cluster.planning.path_search import PathSearch, PeriodSearch
from taglio.cluster.planning.workload import Objective, Workload
from taglio.plan.result import Limits
from tests.cluster.planning.reference import every
from tests.cluster.planning.test_assemble import PAIR, chain
from tests.cluster.planning.test_place import CLUSTER, workload
from tests.examples import examples
from tests.plan import made_up
from tests.plan.made_up import Problem


@pytest.mark.parametrize("receive_ms", [0.0, 0.5])
def test_a_chain_has_the_period_that_is_estimated(receive_ms: float) -> None:
    graph, profiles = chain()
    pair = parse(PAIR.replace("active_", f"receive_ms = {receive_ms}\nsend_ms_per_mb = {1e3 * receive_ms}\nactive_"))
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], pair, Objective())
    search = PeriodSearch(assembled)
    labels = np.array(sorted({totals.labels for totals in every(assembled.problem)}))
    sums, copies = search.costs.sums_of(search.costs.plain, labels)
    estimates = search.estimates(labels, copies, sums)
    assert len(labels) > 20
    for row, sent, estimate in zip(labels, copies, estimates, strict=True):
        assert estimate == pytest.approx(search.worth(search.costs.totals(row, sent)))


@examples(15)
@given(made_up.problems(largest=5, sparing=False))
def test_a_pool_only_becomes_better_and_keeps_the_limits(problem: Problem) -> None:
    assembled = assemble([workload(problem)], CLUSTER, Objective())
    search = PathSearch(assembled, Objective())
    pool = Pool(search, price=1e-5)
    allowed = assembled.problem.allowed.reshape(len(assembled.problem.nodes), -1)
    pool.add(np.array([allowed.argmax(axis=1)]), most=1)
    before = pool.members[0].rank if pool.members else inf
    pool.run(inf, 5, good_enough=0.0)
    ranks = [each.rank for each in pool.members]
    assert ranks == sorted(ranks) and min(ranks, default=inf) <= before
    for each in pool.members:
        assert not each.totals.broken
        assert search.worth(each.totals) <= each.rank


def test_pools_end_by_themselves_where_there_is_nothing_more_to_find() -> None:
    """Of a chain on two devices every placement is known; nothing is good enough, and there is no deadline."""
    graph, profiles = chain()
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], parse(PAIR), Objective())
    search = PathSearch(assembled, Objective())
    best = min(search.worth(totals) for totals in every(assembled.problem))
    search.offer(evaluate(assembled.problem, [0] * len(assembled.problem.nodes)))
    assert len(list(evolve(search, inf, good_enough=0.0))) >= 4
    assert search.value == pytest.approx(best, rel=3e-3)  # a crossing has to be worth it
