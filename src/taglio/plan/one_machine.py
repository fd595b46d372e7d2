"""Plan for one machine from its tables and limits: solve its program, describe the plan and check it.

Measures nothing; search/search.py is the loop that measures.
"""

from collections.abc import Mapping, Sequence
from math import inf, isclose

from taglio.error.model import ErrorModel
from taglio.errors import BadOption
from taglio.model.graph import Graph
from taglio.model.select import match
from taglio.plan.check import PlanIsWrong, check
from taglio.plan.formulate import formulate
from taglio.plan.result import GAP, Limits, Plan
from taglio.plan.tables import Tables

# 300 blocks in all forms reach this gap in at most 200 nodes.
_FINE_GAP, _NODES = 1e-3, 5000
# HiGHS may violate a row by its tolerance, so the objective may be off by up to this share.
_OBJECTIVE_TOLERANCE = 1e-5


def pinned(graph: Graph, keep_float: Sequence[str], force_int8: Sequence[str]) -> Limits:
    """Limits from name patterns. Raises BadOption for a pattern that matches nothing, that contradicts another, or that
    matches a block without that form."""
    names = match(graph, force_int8)
    computing = tuple(name for name in names if not graph.block(name).movement) or names
    floats = match(graph, keep_float, lambda block: "" if block.has_choice else block.refusal)
    if both := {*floats} & {*computing}:
        raise BadOption(f"block {min(both)} is pinned to both float and int8: remove one of the pins")
    for name in computing:
        block = graph.block(name)
        if block.refusal or block.movement:
            reason = block.refusal or "a movement operator follows its producer"
            raise BadOption(f"block {name} cannot be pinned to int8: {reason}")
    return Limits(None, floats, computing)


def noise_limits(error: ErrorModel, bound: float, slack: float) -> dict[str, float]:
    """Largest noise sum per output for an error bound. `slack` multiplies the bound. At 1 the upper end of the
    prediction stays within the bound; above 1, only measuring shows whether a plan keeps it."""
    target = error.noise_target(bound) * slack
    return {output.output: output.noise_limit(target) for output in error.outputs}


def make_plan(
    tables: Tables, limits: Limits, *, slack: float = 1.0, gap: float = GAP, time_limit_s: float = 60.0
) -> Plan:
    """The fastest plan for one machine under `limits`, proven within `gap` (or less if that is quick) and checked
    independently. Its status is "infeasible" if blocks that are pinned to int8 break the limit on the error, or no plan
    that keeps both was found in time."""
    graph, error = tables.graph, tables.error
    noise: Mapping[str, float] = {}
    if limits.max_error is not None and error is not None:
        noise = noise_limits(error, limits.max_error, slack)
    formulation = formulate(tables, limits, noise)
    solution = formulation.program.minimise(
        formulation.cost, gap=min(gap, _FINE_GAP), nodes=_NODES, time_limit_s=time_limit_s
    )
    if solution.values is None:
        # Without pins to int8 the float model keeps all limits.
        out_of_time = solution.status == "limit" and not limits.int8_blocks
        return tables.describe(limits, {}, status="time limit" if out_of_time else "infeasible", gap=inf)
    is_proven = solution.status == "optimal" or solution.gap <= gap
    assignment = formulation.assignment(solution.values)
    plan = tables.describe(limits, assignment, status="optimal" if is_proven else "time limit", gap=solution.gap)
    seconds, predicted_s = max(0.0, solution.objective), plan.predicted_latency_s.value
    if not isclose(seconds, predicted_s, rel_tol=_OBJECTIVE_TOLERANCE, abs_tol=1e-9):
        raise PlanIsWrong(
            f"the plan takes {seconds * 1e3:.4f} ms by the program, {predicted_s * 1e3:.4f} ms by the profile"
        )
    check(graph, tables.profile, error, plan, noise)
    return plan
