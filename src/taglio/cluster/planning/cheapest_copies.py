"""The cheapest copies of given labels within all limits, by HiGHS. Chooses no labels."""

import time
from itertools import product

import highspy
import numpy as np

from taglio.cluster.planning.costs import Costs
from taglio.cluster.planning.problem import Kind
from taglio.plan.highs import Quiet


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
    total = costs.limited.unary[np.arange(costs.nodes), labels].sum(axis=0)
    total[0] += costs.problem.constant
    within = costs.uppers + 1e-9 * np.maximum(1e-6, np.abs(costs.uppers))
    limits = np.concatenate([[np.inf], within]) - total
    deadline = time.perf_counter() + time_limit_s
    # Live activations are limited where an answer exceeds a memory.
    while True:
        taken, bound = _one_of_each(value, amounts, limits, deadline - time.perf_counter())
        full = [] if taken is None else costs.full(labels, copies[taken])
        if not full or time.perf_counter() > deadline:
            return None if taken is None else copies[taken], total[0] + bound
        for device, node, room in full:
            amounts = np.column_stack([amounts, costs.live(ends, served, device, node)])
            limits = np.append(limits, room)


def _one_of_each(
    group: np.ndarray, amounts: np.ndarray, limits: np.ndarray, time_limit_s: float
) -> tuple[np.ndarray | None, float]:
    """One column of each group, as a mask, with the least sum of the first of its `amounts` (column, limit) within the
    limits; None if none were found. And a lower bound, infinite if there are none."""
    highs, scale, count = Quiet(), 1e3 / max(1e-12, float(np.abs(amounts[:, 0]).max())), len(group)
    columns = np.arange(count, dtype=np.int32)
    highs.addVars(count, np.zeros(count), np.ones(count))
    highs.changeColsCost(count, columns, amounts[:, 0] * scale)
    highs.changeColsIntegrality(count, columns, np.full(count, highspy.HighsVarType.kInteger))
    for number in np.unique(group):
        members = np.flatnonzero(group == number).astype(np.int32)
        highs.addRow(1.0, 1.0, len(members), members, np.ones(len(members)))
    for row, limit in zip(amounts.T, limits, strict=True):
        if np.isfinite(limit):
            highs.addRow(-highspy.kHighsInf, limit, count, columns, row)
    highs.setOptionValue("time_limit", max(0.01, time_limit_s))
    highs.setOptionValue("mip_rel_gap", 1e-4)
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return None, np.inf
    info = highs.getInfo()
    is_solved = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    taken = np.array(highs.getSolution().col_value) > 0.5 if is_solved else None
    return taken, float(info.mip_dual_bound) / scale
