"""The cheapest copies within the limits once every label is fixed: a small integer program for HiGHS. Moves no block.

At given prices each value's copies are chosen independently (costs.py); if a few large copies fill a limit, no prices
lead to the best combination.
"""

import highspy
import numpy as np

from taglio.plan.costs import Costs
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
    options = np.concatenate([np.argwhere(only), np.argwhere(both)])
    sent = np.repeat([int(Copies.INT8), int(Copies.FLOAT | Copies.INT8)], [only.sum(), both.sum()])
    value, device = options.T
    other = copies[value]
    other[np.arange(len(value)), device] = sent
    of_options = costs.ends(labels, value)
    change = costs.by_value(tables, of_options, costs.given(of_options, other)) - fixed[value]
    # Quantising is paid once for all devices that take the int8 copy, and is free if that copy exists anyway.
    making = np.flatnonzero(~served.quantized & np.isin(np.arange(len(fixed)), value))
    made = tables.quantize[making, np.minimum(ends.kind[making], 1), ends.place[making]]
    column = np.full(len(fixed), -1)
    column[making] = len(value) + np.arange(len(making))
    shared = column[value] >= 0
    change[shared] -= made[column[value[shared]] - len(value)]
    total = tables.unary[np.arange(costs.nodes), labels].sum(axis=0) + fixed.sum(axis=0)
    total[0] += costs.problem.constant
    amounts = np.concatenate([change, made])
    program = _Program(amounts[:, 0], total[0], time_limit_s)
    for one in np.unique(value * costs.devices + device).tolist():  # exactly one option per device
        program.most(np.flatnonzero(value * costs.devices + device == one), np.ones(2), 1.0)
    for index, each in enumerate(column[value].tolist()):
        if each >= 0:
            program.most(np.array([index, each]), np.array([1.0, -1.0]), 0.0)
    for each in column[making].tolist():  # may have a negative cost, but is only done for a reader
        takers = np.flatnonzero(column[value] == each)
        program.most(np.append(takers, each), np.append(-np.ones(len(takers)), 1.0), 0.0)
    for row, upper in enumerate(costs.uppers.tolist(), 1):
        program.most(np.arange(len(amounts)), amounts[:, row], upper + 1e-9 * max(1e-6, abs(upper)) - total[row])
    if np.isfinite(cutoff):
        program.most(np.arange(len(amounts)), amounts[:, 0], cutoff - total[0])
    taken, bound = program.solve()
    if taken is None:
        return None, bound
    copies[value[taken[: len(value)]], device[taken[: len(value)]]] = sent[taken[: len(value)]]
    return copies, bound


class _Program:
    """Minimise a linear sum over binary columns."""

    def __init__(self, cost: np.ndarray, constant: float, time_limit_s: float) -> None:
        self.highs, self.width, self.possible = Quiet(), len(cost), True
        self.constant = constant
        self.scale = 1e3 / max(1e-12, float(np.abs(cost).max(initial=0.0)))
        for index, each in enumerate(cost.tolist()):
            self.highs.addVar(0.0, 1.0)
            self.highs.changeColCost(index, each * self.scale)
            self.highs.changeColIntegrality(index, highspy.HighsVarType.kInteger)
        self.highs.setOptionValue("time_limit", max(0.01, time_limit_s))
        self.highs.setOptionValue("mip_rel_gap", _GAP)

    def most(self, columns: np.ndarray, factors: np.ndarray, upper: float) -> None:
        """Add the constraint Σ factors · columns ≤ upper."""
        used = np.flatnonzero(factors[: len(columns)])
        if not len(used):
            self.possible &= upper >= 0.0
            return
        self.highs.addRow(-highspy.kHighsInf, upper, len(used), columns[used].astype(np.int32), factors[used])

    def solve(self) -> tuple[np.ndarray | None, float]:
        """The chosen columns as a mask (None if none was found), and the proven bound."""
        if not self.possible:
            return None, np.inf
        if not self.width:
            return np.zeros(0, dtype=bool), self.constant
        self.highs.run()
        status, info = self.highs.getModelStatus(), self.highs.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None, np.inf
        bound = self.constant + float(info.mip_dual_bound) / self.scale
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None, bound
        return np.array(self.highs.getSolution().col_value) > 0.5, bound
