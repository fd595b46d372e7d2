"""Replays say what the simulator says where nothing is left to choose; a pool only gets better and keeps the limits."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given

from taglio.cluster.file import parse
from taglio.cluster.planning.assemble import Assembled, assemble
from taglio.cluster.planning.costs import evaluate
from taglio.cluster.planning.describe import period_s
from taglio.cluster.planning.evolution import Pool, evolve
from taglio.cluster.planning.path_search import PathSearch, PeriodSearch
from taglio.cluster.planning.replay import Replay, Timetable
from taglio.cluster.planning.workload import Objective, Workload
from taglio.plan.result import Limits
from tests.cluster.planning.reference import every
from tests.cluster.planning.test_assemble import PAIR, chain
from tests.cluster.planning.test_place import CLUSTER, workload
from tests.cluster.planning.test_schedule import on_two
from tests.examples import examples
from tests.plan import made_up
from tests.plan.made_up import Problem


def sent(assembled: Assembled, labels: list[int]) -> np.ndarray:
    """The copies that a replay sends."""
    copies = np.zeros((len(assembled.problem.values), len(assembled.problem.devices)), dtype=np.intp)
    Replay(Timetable(assembled, 0), 0.0).copies(labels, copies)
    return copies


def played(assembled: Assembled, labels: list[int]) -> tuple[float, float]:
    """Seconds of a request by replay, and by the simulator with the same copies and levels."""
    replay = Replay(Timetable(assembled, 0), 0.0)
    found = replay.play(np.array([labels]))
    copies = sent(assembled, labels)
    totals = replace(evaluate(assembled.problem, labels, copies), levels=tuple(found.component[0].tolist()))
    return float(found.latency_s[0]), PathSearch(assembled, Objective()).worth(totals)


@pytest.mark.parametrize("receive_ms", [0.0, 0.5])
def test_a_chain_has_in_a_replay_the_period_of_its_plan(receive_ms: float) -> None:
    graph, profiles = chain()
    pair = parse(PAIR.replace("active_", f"receive_ms = {receive_ms}\nsend_ms_per_mb = {1e3 * receive_ms}\nactive_"))
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], pair, Objective())
    replay, search = Replay(Timetable(assembled, 0), 0.0), PeriodSearch(assembled)
    for labels in {totals.labels for totals in every(assembled.problem)}:
        found = replay.play(np.array([labels]))
        totals = evaluate(assembled.problem, labels, sent(assembled, list(labels)))
        levels = tuple(found.component[0].tolist())
        busy_s = (found.busy_s * search.counted[0])[0]
        assert busy_s.max() == pytest.approx(period_s(assembled, replace(totals, levels=levels)))


@pytest.mark.parametrize("send_ms", [0.0, 0.05, 1.0])
def test_a_chain_takes_in_a_replay_what_it_takes_in_the_simulator(send_ms: float) -> None:
    graph, profiles = chain()
    pair = parse(PAIR.replace("active_", f"send_ms = {send_ms}\nsend_ms_per_mb = {1e3 * send_ms}\nactive_"))
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], pair, Objective())
    tried = {totals.labels for totals in every(assembled.problem)}
    assert len(tried) > 20
    for labels in tried:
        replayed, simulated = played(assembled, list(labels))
        assert replayed == pytest.approx(simulated)


@examples(30)
@given(made_up.problems(sparing=False))
def test_in_float_on_one_device_a_replay_is_the_simulation(problem: Problem) -> None:
    assembled = on_two(problem)
    for device in range(2):
        labels = [assembled.problem.label(device, 0)] * len(assembled.problem.nodes)
        replayed, simulated = played(assembled, labels)
        if not sent(assembled, labels).any():
            assert replayed == pytest.approx(simulated)
        # What is quantised for the way keeps its device busy, which a replay leaves out.
        assert 0.7 * simulated <= replayed <= simulated * (1 + 1e-9)


@examples(15)
@given(made_up.problems(largest=5, sparing=False))
def test_a_pool_only_becomes_better_and_keeps_the_limits(problem: Problem) -> None:
    assembled = assemble([workload(problem)], CLUSTER, Objective())
    search = PathSearch(assembled, Objective())
    pool = Pool(search, [Timetable(assembled, 0)], price=1e-5)
    allowed = assembled.problem.allowed.reshape(len(assembled.problem.nodes), -1)
    pool.add(np.array([allowed.argmax(axis=1)]))
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
    assert len(list(evolve(search, [Timetable(assembled, 0)], inf, good_enough=0.0))) >= 4
    assert search.value == pytest.approx(best, rel=3e-3)  # a component has to be worth it
