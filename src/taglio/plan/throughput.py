"""The plan that streams fastest: the least busy seconds of the busiest device or link. Parts no components."""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from taglio.plan.assemble import Assembled
from taglio.plan.costs import evaluate
from taglio.plan.describe import loads
from taglio.plan.problem import CALLER, SOURCE, Problem, Resource, Totals
from taglio.plan.solve import Placed, solve
from taglio.plan.tables import NOT_CONNECTED, busy_times, request_shares

# Of the time, what placing everything on the start device may take.
_STAYING_SHARE = 0.2


def fastest_stream(
    assembled: Assembled, start: Sequence[int] | None, gap: float, time_limit_s: float
) -> tuple[Totals, float, float] | None:
    """A placement, its period and a bound on any: busy seconds of the busiest device or link with blocks and messages,
    a request of the mix of all models. None where no placement keeps the limits.

    What was reached and what was proven impossible are halved, each time looking for the plan of fewest seconds a
    request. Of the plans on the way, the one that streams fastest with what its components take beyond blocks.
    """
    deadline = time.perf_counter() + time_limit_s
    shares = request_shares(assembled.workloads)
    placed = solve(assembled.problem, gap=10 * gap, time_limit_s=time_limit_s, incumbent=start)
    first = totals_of(assembled.problem, placed)
    if first is None:
        return None
    leaving_s = _leaving(assembled)
    stays, stays_s = _staying(assembled, gap, _STAYING_SHARE * time_limit_s) if leaving_s > 0.0 else (None, 0.0)
    streams = [first] if stays is None else [first, stays]
    reached = min(streams, key=lambda each: _period(assembled, each))
    period = _period(assembled, reached)
    low = min(period, stays_s, leaving_s)
    while low < (1.0 - gap) * period and time.perf_counter() < deadline:
        middle = np.sqrt(low * period) if low > 0.0 else 0.5 * period
        caps = busy_times(assembled.workloads, assembled.cluster, shares, float(middle), "period")
        problem = replace(assembled.problem, resources=(*assembled.problem.resources, *caps))
        left = deadline - time.perf_counter()
        placed = solve(problem, gap=0.5, time_limit_s=left, incumbent=reached.labels)
        totals = totals_of(problem, placed)
        if totals is not None:
            reached = evaluate(assembled.problem, totals.labels, totals.wires)
            period = min(period, _period(assembled, reached))
            streams.append(reached)
        elif placed.status == "infeasible":
            low = float(middle)
        else:
            break
    best = min(streams, key=lambda each: max(loads(assembled, each, list(shares)).values()))
    return best, _period(assembled, best), low


def totals_of(problem: Problem, placed: Placed) -> Totals | None:
    """What a placement costs; None where there is none, or it needs a link that is not there."""
    if not placed.labels:
        return None
    totals = evaluate(problem, placed.labels, placed.wires)
    names = [each.name for each in problem.resources]
    return None if totals.resources[names.index(NOT_CONNECTED)] > 0.0 else totals


def _period(assembled: Assembled, totals: Totals) -> float:
    problem = replace(assembled.problem, resources=_periods(assembled))
    return float(evaluate(problem, totals.labels, totals.wires).resources.max())


def _periods(assembled: Assembled) -> tuple[Resource, ...]:
    return busy_times(assembled.workloads, assembled.cluster, request_shares(assembled.workloads), inf, "period")


def _staying(assembled: Assembled, gap: float, time_limit_s: float) -> tuple[Totals | None, float]:
    """The placement of everything on the start device with the least period, if any is found, and a bound on it."""
    problem, home = assembled.problem, assembled.cluster.start
    here = np.array([name == home for name in problem.devices])[None, :, None]
    row = next(each for each in _periods(assembled) if each.name == f"period of {home}")
    held = tuple(replace(each, weight=0.0) for each in problem.resources)
    only = replace(
        problem,
        allowed=problem.allowed & here,
        resources=(*held, replace(row, weight=1.0)),
        extra=None,
        constant=0.0,
    )
    if not only.allowed.any(axis=(1, 2)).all():
        return None, inf
    placed = solve(only, gap=gap, time_limit_s=time_limit_s)
    if placed.status == "infeasible":
        return None, inf
    totals = totals_of(only, placed)
    return None if totals is None else evaluate(problem, totals.labels, totals.wires), placed.bound


def _leaving(assembled: Assembled) -> float:
    """The least that the start device is busy where a block is elsewhere: inputs and outputs are there, so a message
    leaves it and one comes back. Without blocks that read nothing or whose outputs nobody reads: their way is none."""
    values = assembled.problem.values
    nodes = np.arange(len(assembled.problem.nodes))
    reads = values.readers[values.readers != CALLER]
    read = values.producer[np.diff(values.start) > 0]
    if not (np.isin(nodes, reads).all() and np.isin(nodes, read[read != SOURCE]).all()):
        return 0.0
    cluster = assembled.cluster
    if any(each.processor == cluster.processor(cluster.start) for each in cluster.devices):
        return 0.0  # a block may run on the same processor and not leave it
    home = cluster.device(cluster.start)
    shares = request_shares(assembled.workloads)
    works = zip(shares, assembled.workloads, strict=True)
    taken = min(float(share) * work.profiles[home.name].sustained() for share, work in works)
    return taken * (home.send_s + home.receive_s)
