"""Plans of small models are nearly the best of all placements by every objective and limit. Bounds are bounds."""

from dataclasses import replace
from math import inf

import pytest

from taglio.cluster.devices import Cluster
from taglio.cluster.planning.assemble import Assembled, assemble
from taglio.cluster.planning.place import place
from taglio.cluster.planning.problem import LATENCY
from taglio.cluster.planning.workload import Objective, Workload, parse_objective
from taglio.errors import BadOption, Infeasible
from tests.cluster.planning.small_clusters import OBJECTIVES, Trial, case

LIMIT_S = 20.0
# Predictions are good to a few per cent.
NEARLY = 1.05


def problem_of(work: Workload, cluster: Cluster, objective: Objective) -> Assembled:
    """The problem, without limits on summed seconds."""
    assembled = assemble([work], cluster, objective)
    resources = assembled.problem.resources
    free = tuple(replace(resource, upper=inf) if resource.kind == LATENCY else resource for resource in resources)
    return assembled.with_problem(resources=free)


def is_nearly_the_best(seed: int, labellings: int) -> None:
    work, cluster = case(seed, labellings)
    objective = replace(parse_objective(OBJECTIVES[seed % len(OBJECTIVES)]), then=())
    try:
        best = Trial(problem_of(work, cluster, objective), objective).least()
    except BadOption:  # pins that contradict each other
        return
    if best == inf:
        with pytest.raises(Infeasible, match=r"no plan keeps|needs? at least"):
            place([work], cluster, objective, time_limit_s=LIMIT_S)
        return
    answer = place([work], cluster, objective, time_limit_s=LIMIT_S)
    assert answer.bound <= best * (1 + 1e-6)
    # Components split in more parts than need be may be faster still.
    assert answer.bound * (1 - 1e-9) <= answer.value <= NEARLY * best


@pytest.mark.parametrize("seed", range(8))
def test_a_small_model_is_placed_nearly_as_well_as_possible(seed: int) -> None:
    is_nearly_the_best(seed, labellings=500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 40))
def test_many_small_models_are_placed_nearly_as_well_as_possible(seed: int) -> None:
    is_nearly_the_best(seed, labellings=3**7)
