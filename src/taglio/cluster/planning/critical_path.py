"""The critical path: the best placement found by simulated latency, and a proven lower bound on the latency of any.

Placements come from the plan with the least sum, the plans on one device, and an evolutionary search (evolution.py).
The bound is in path_bound.py.
"""

import time

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.evolution import evolve
from taglio.cluster.planning.path_bound import lower_bound
from taglio.cluster.planning.path_search import PathSearch
from taglio.cluster.planning.problem import Totals
from taglio.cluster.planning.workload import Objective


def shorten(
    assembled: Assembled,
    objective: Objective,
    start: Totals,
    *,
    least: float,
    gap: float,
    time_limit_s: float,
) -> tuple[Totals, float, float]:
    """The best placement found from `start` (one within the limits), its value, and a lower bound on any value,
    once the gap is proven or time is up. `objective` weighs the critical path and the joules; `least` is a lower bound
    with the sum of seconds for the critical path."""
    started_s = time.perf_counter()
    search = PathSearch(assembled, objective)
    search.offer(start)
    bound = lower_bound(assembled, search.costs, objective.latency * search.shares, least)
    for _ in evolve(search, started_s + time_limit_s, good_enough=bound / (1.0 - gap)):
        pass
    assert search.best is not None, "the first placement keeps the limits"
    return search.best, search.value, min(bound, search.value)
