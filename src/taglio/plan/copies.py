"""The cheapest copies within the limits once every label is fixed: a small integer program for HiGHS. Moves no block.

At given prices each value's copies are chosen independently (costs.py); if a few large copies fill a limit, no prices
lead to the best combination.
"""

import highspy
import numpy as np

from taglio.plan.costs import BOTH, Costs
from taglio.plan.cutting_planes import Quiet
from taglio.plan.problem import Copies, Kind

_GAP = 1e-4


def cheapest_copies(
    costs: Costs, labels: np.ndarray, *, cutoff: float, time_limit_s: float
) -> tuple[np.ndarray | None, float]:
    """Copies (value, device) that keep the limits and cost at most `cutoff`, None if there are none or none was found
    in time; and a lower bound on the objective, infinite if nothing is cheaper than `cutoff`."""
    ends, tables = costs.ends(labels), costs.limited
    ints, floats, there = costs.readers_on(ends)
    written_float = ends.kind != Kind.INT8
    copies = np.where(there, np.where(written_float, int(Copies.FLOAT), int(Copies.INT8))[:, None], 0)
    served = costs.given(ends, copies)
    fixed = costs.by_value(tables, ends, served)
    # Where an alternative to the float copy alone exists: the int8 copy alone, or both.
    only = there & written_float[:, None] & ((floats == 0) | costs.problem.wire_only)
    both = there & written_float[:, None] & (ints > 0) & (floats > 0)
    value, device = np.concatenate([np.argwhere(only), np.argwhere(both)]).T
    sent = np.repeat([int(Copies.INT8), int(BOTH)], [only.sum(), both.sum()])
    other = copies[value]
    other[np.arange(len(value)), device] = sent
    of_options = costs.ends(labels, value)
    change = costs.by_value(tables, of_options, costs.given(of_options, other)) - fixed[value]
    # Quantising is paid once for all devices that take the int8 copy, and is free if that copy exists anyway.
    making = np.setdiff1d(value, np.flatnonzero(served.quantized))
    made = tables.quantize[making, np.minimum(ends.kind[making], 1), ends.place[making]]
    for_whom = value[:, None] == making  # (options, made)
    change -= for_whom @ made
    total = tables.unary[np.arange(costs.nodes), labels].sum(axis=0) + fixed.sum(axis=0)
    total[0] += costs.problem.constant
    amounts = np.concatenate([change, made])
    group = value * costs.devices + device
    takes = for_whom.any(axis=1)

    def row(of_options: np.ndarray, of_made: np.ndarray) -> np.ndarray:
        return np.hstack([of_options, of_made]).astype(float)

    groups = np.unique(group)[:, None]
    rows = [
        row(group == groups, np.zeros((len(groups), len(making)))),  # one option per device
        row(np.eye(len(value)), -1.0 * for_whom)[takes],
        row(-1.0 * for_whom.T, np.eye(len(making))),  # it may have a negative cost, but is only done for a reader
        amounts.T[1:],
        amounts.T[:1],
    ]
    within = costs.uppers + 1e-9 * np.maximum(1e-6, np.abs(costs.uppers)) - total[1:]
    zeros = np.zeros(int(takes.sum()) + len(making))
    uppers = np.concatenate([np.ones(len(groups)), zeros, within, [cutoff - total[0]]])
    taken, bound = _minimum(amounts[:, 0], np.concatenate(rows), uppers, time_limit_s)
    if taken is None:
        return None, total[0] + bound
    chosen = taken[: len(value)]
    copies[value[chosen], device[chosen]] = sent[chosen]
    return copies, total[0] + bound


def _minimum(
    cost: np.ndarray, rows: np.ndarray, uppers: np.ndarray, time_limit_s: float
) -> tuple[np.ndarray | None, float]:
    """The binary columns (a mask) of least cost with rows · columns ≤ uppers, None if none were found; and a bound."""
    if not len(cost):
        return (np.zeros(0, dtype=bool), 0.0) if (uppers >= 0.0).all() else (None, np.inf)
    highs, scale = Quiet(), 1e3 / max(1e-12, float(np.abs(cost).max()))
    columns = np.arange(len(cost), dtype=np.int32)
    highs.addVars(len(cost), np.zeros(len(cost)), np.ones(len(cost)))
    highs.changeColsCost(len(cost), columns, cost * scale)
    highs.changeColsIntegrality(len(cost), columns, np.full(len(cost), highspy.HighsVarType.kInteger))
    row, column = np.nonzero(rows)
    starts = np.searchsorted(row, np.arange(len(rows))).astype(np.int32)
    lowers = np.full(len(rows), -highspy.kHighsInf)
    highs.addRows(len(rows), lowers, uppers, len(row), starts, column.astype(np.int32), rows[row, column])
    highs.setOptionValue("time_limit", max(0.01, time_limit_s))
    highs.setOptionValue("mip_rel_gap", _GAP)
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return None, np.inf
    info = highs.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    taken = np.array(highs.getSolution().col_value) > 0.5 if found else None
    return taken, float(info.mip_dual_bound) / scale
