"""The cheapest copies of given labels within all limits, as a mixed-integer program. Chooses no labels."""

import time
from itertools import product

import numpy as np

from taglio.cluster.planning.costs import Costs
from taglio.cluster.planning.problem import Kind
from taglio.plan.program import ONE, Linear, Program, total, weighted


def cheapest_copies(costs: Costs, labels: np.ndarray, *, time_limit_s: float) -> tuple[np.ndarray | None, float]:
    """Copies (value, device) that keep the limits, None if there are none or none was found in time; and a lower bound
    on the objective, infinite if there are none."""
    ends = costs.ends(labels)
    _, floats, there = costs.readers_on(ends)
    plain = (ends.kind != Kind.INT8)[:, None]
    may = np.stack(  # by value, device and `Copies` number
        [
            ~there,
            there & plain,
            there & (~plain | (floats == 0) | costs.problem.wire_only),
        ],
        axis=2,
    )
    if may.sum(axis=2).prod(axis=1, dtype=float).sum() > 1e5:  # too many for HiGHS
        return None, -np.inf
    choices = [(value, numbers) for value, row in enumerate(may) for numbers in product(*map(np.flatnonzero, row))]
    value, copies = np.array([value for value, _ in choices]), np.array([numbers for _, numbers in choices])
    ends = costs.ends(labels, value)
    served = costs.given(ends, copies)
    amounts = costs.by_value(costs.limited, ends, served)
    own = costs.limited.unary[np.arange(costs.nodes), labels].sum(axis=0)
    limits = costs.uppers + 1e-9 * np.maximum(1e-6, np.abs(costs.uppers)) - own[1:]
    deadline = time.perf_counter() + time_limit_s
    # Live activations are limited where an answer exceeds a memory.
    while True:
        taken, least = _one_of_each(value, amounts, limits, deadline - time.perf_counter())
        bound = float(own[0]) + costs.problem.constant + least
        if taken is None:
            return None, bound
        full = costs.full(labels, copies[taken])
        if not full or time.perf_counter() > deadline:
            return copies[taken], bound
        for device, node, room in full:
            amounts = np.column_stack([amounts, costs.live(ends, served, device, node)])
            limits = np.append(limits, room)


def _one_of_each(
    group: np.ndarray, amounts: np.ndarray, limits: np.ndarray, time_limit_s: float
) -> tuple[np.ndarray | None, float]:
    """One column of each group, as a mask, so that the sum of the first of their `amounts` (column, 1 + limits) is
    least and those of the others keep the limits; None if none were found. And a lower bound on that sum."""
    alone = np.bincount(group)[group] == 1
    program, fixed = Program(), amounts[alone].sum(axis=0)
    columns = {column: program.binary() for column in np.flatnonzero(~alone).tolist()}
    for number in np.unique(group[~alone]):
        program.equal(total(columns[column] for column in np.flatnonzero(group == number).tolist()), ONE)
    cost, *rows = (weighted((row[column], columns[column]) for column in columns) for row in amounts.T.tolist())
    for row, limit in zip(rows, (limits - fixed[1:]).tolist(), strict=True):
        program.at_most(row, Linear(limit))
    solution = program.minimise(cost, gap=1e-4, nodes=10**6, time_limit_s=time_limit_s)
    if solution.values is None:
        return None, float(fixed[0]) + solution.bound
    alone[[*columns]] = solution.values > 0.5
    return alone, float(fixed[0]) + solution.bound
