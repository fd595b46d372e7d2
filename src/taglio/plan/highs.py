"""Solve a `Program` exactly with HiGHS. Knows nothing of networks."""

from dataclasses import dataclass

import highspy
import numpy as np

from taglio.plan.formulate import Program
from taglio.plan.quiet import Quiet
from taglio.plan.result import Status

RELATIVE_GAP = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Values by column, objective in the program's unit, and the proven relative gap."""

    status: Status
    values: np.ndarray
    objective: float
    gap: float


def solve(program: Program, time_limit_s: float = 60.0) -> Solution:
    """The best assignment of a program within `time_limit_s`."""
    count, rows = len(program.cost), len(program.rows)
    if count == 0:
        return Solution("optimal", np.zeros(0), program.constant, 0.0)
    model = highspy.HighsModel()
    lp = model.lp_
    lp.num_col_, lp.num_row_ = count, rows
    lp.col_cost_ = np.array(program.cost)
    lp.col_lower_, lp.col_upper_ = np.zeros(count), np.ones(count)
    lp.row_lower_ = np.array([low for low, _, _ in program.rows])
    lp.row_upper_ = np.array([high for _, high, _ in program.rows])
    lp.offset_ = program.constant
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    starts, columns, values = [0], [], []
    for _, _, terms in program.rows:
        columns += list(terms.keys())
        values += list(terms.values())
        starts.append(len(columns))
    lp.a_matrix_.start_, lp.a_matrix_.index_ = np.array(starts), np.array(columns)
    lp.a_matrix_.value_ = np.array(values)
    lp.integrality_ = [
        highspy.HighsVarType.kInteger if integral else highspy.HighsVarType.kContinuous for integral in program.integral
    ]
    highs = Quiet()
    highs.setOptionValue("time_limit", time_limit_s)
    highs.setOptionValue("mip_rel_gap", RELATIVE_GAP)
    highs.setOptionValue("random_seed", 0)
    highs.passModel(model)
    highs.run()
    info = highs.getInfo()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Solution("infeasible", np.zeros(count), float("inf"), float("inf"))
    values_found = np.array(highs.getSolution().col_value)
    if len(values_found) != count or info.primal_solution_status != 2:
        return Solution("infeasible", np.zeros(count), float("inf"), float("inf"))
    done = status == highspy.HighsModelStatus.kOptimal
    return Solution(
        "optimal" if done else "time limit",
        values_found,
        float(info.objective_function_value),
        float(max(0.0, info.mip_gap)),
    )
