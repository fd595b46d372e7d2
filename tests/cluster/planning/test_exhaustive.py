"""Small problems are proven, and their plans are the best of all placements, by every objective and limit."""

from dataclasses import replace
from math import inf

import pytest

from taglio.cluster.devices import Cluster
from taglio.cluster.planning.assemble import Assembled, assemble
from taglio.cluster.planning.bounds import Caps
from taglio.cluster.planning.exhaustive import Found, enumerate_placements
from taglio.cluster.planning.place import place
from taglio.cluster.planning.problem import LATENCY
from taglio.cluster.planning.workload import Objective, Workload, parse_objective
from taglio.errors import BadOption, Infeasible
from tests.cluster.planning.small_clusters import OBJECTIVES, Trial, case

# Far more than a proof takes: a slow processor with one busy core needed 20 s for the largest.
LIMIT_S = 200.0


def problem_of(work: Workload, cluster: Cluster, objective: Objective) -> Assembled:
    """The problem, without limits on summed seconds."""
    assembled = assemble([work], cluster, objective)
    held = assembled.problem.resources
    free = tuple(replace(each, upper=inf) if each.kind == LATENCY else each for each in held)
    return assembled.with_problem(resources=free)


def is_the_best(seed: int, labellings: int) -> None:
    """Proven in far less than the limit; a busy machine takes longer."""
    work, cluster = case(seed, labellings)
    objective = parse_objective(OBJECTIVES[seed % len(OBJECTIVES)])
    first = replace(objective, then=())
    try:
        best = Trial(problem_of(work, cluster, first), first).least()
    except BadOption:  # pins that contradict each other
        return
    if best == inf:
        with pytest.raises(Infeasible, match=r"no plan keeps|needs? at least"):
            place([work], cluster, objective, time_limit_s=20.0)
        return
    answer = place([work], cluster, objective, gap=1e-6, time_limit_s=LIMIT_S)
    assert answer.plans[0].status == "optimal" and answer.gap <= 1e-6
    alone = place([work], cluster, first, gap=1e-6, time_limit_s=LIMIT_S) if objective.then else answer
    # Components split in more parts than need be may be faster still.
    assert alone.bound <= alone.value * (1 + 1e-9) <= best * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_a_small_problem_is_proven_and_equals_the_best_of_all_placements(seed: int) -> None:
    is_the_best(seed, labellings=500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_many_small_problems_are_proven(seed: int) -> None:
    is_the_best(seed, labellings=3**8)


@pytest.mark.parametrize("objective", ["latency", "throughput", "energy"])
def test_without_time_the_bound_is_still_one(objective: str) -> None:
    aim = parse_objective(objective)
    for seed in (1, 5, 8, 15):
        assembled = problem_of(*case(seed, 500), aim)

        def found(time_limit_s: float, problem: Assembled = assembled) -> Found:
            return enumerate_placements(problem, aim, Caps((inf,)), gap=1e-6, time_limit_s=time_limit_s)

        assert found(0.0).bound <= found(20.0).value * (1 + 1e-6)
