"""How long does the planner for several devices take on large problems, and what does it prove?

Costs are made up from a seed (plan_instances.py), so that nothing is measured but the planner. Each row has the median
and the longest of `--seeds` instances.

    python benchmarks/plan_scale.py [--seeds 3] [--time-limit-s 20]
"""

import argparse
import sys
import time
from typing import Any

import numpy as np

from cases import markdown, write
from plan_instances import instance
from taglio.cluster.planning.costs import evaluate
from taglio.cluster.planning.problem import Problem
from taglio.cluster.planning.solve import solve
from taglio.plan.result import GAP

# Blocks, devices, graph, target in seconds: a new plan after a loss has 4 s.
ROWS = (
    (100, 3, "static", 1.0),
    (300, 3, "chain", 1.0),
    (300, 3, "static", 4.0),
    (300, 4, "random", 4.0),
    (652, 6, "chain", 20.0),
    (652, 6, "static", 20.0),
)


def timed(problem: Problem, time_limit_s: float) -> dict[str, Any]:
    """A plan and the seconds of its solve, evaluated once more by the plain code."""
    start = time.perf_counter()
    placed = solve(problem, time_limit_s=time_limit_s)
    total_s = time.perf_counter() - start
    totals = evaluate(problem, placed.labels, placed.copies) if placed.labels else None
    return {
        "total_s": total_s,
        "gap": None if totals is None else max(0.0, 1.0 - placed.bound / placed.objective),
        "status": placed.status,
        "objective": None if totals is None else totals.objective,
        "bound": placed.bound,
        "broken": ["no plan"] if totals is None else list(totals.broken),
    }


def cells(name: str, plans: list[dict[str, Any]], target_s: float) -> list[str]:
    """A row of the table."""
    seconds = [plan["total_s"] for plan in plans]
    gaps = [np.inf if plan["gap"] is None or plan["broken"] else plan["gap"] for plan in plans]
    proven = f"{sum(gap <= GAP for gap in gaps)} of {len(plans)}"
    return [name, f"{np.median(seconds):.2f}", f"{max(seconds):.2f}", f"{target_s:g}", proven, f"{max(gaps):.1e}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="instances of each case")
    parser.add_argument("--time-limit-s", type=float, default=20.0)
    options = parser.parse_args()
    limit_s, seeds = options.time_limit_s, range(options.seeds)
    results: dict[str, list[dict[str, Any]]] = {}
    rows = []

    def add(name: str, plans: list[dict[str, Any]], target_s: float) -> None:
        results[name] = plans
        rows.append(cells(name, plans, target_s))
        print(rows[-1], file=sys.stderr, flush=True)

    solve(instance("static", 40, 2, 0), time_limit_s=5.0)  # loads what Python loads once
    for blocks, devices, graph, target_s in ROWS:
        problems = [instance(graph, blocks, devices, seed) for seed in seeds]
        add(f"{blocks} × {devices}, {graph}", [timed(problem, limit_s) for problem in problems], target_s)
    problems = [instance("yolo11x", 0, 4, seed) for seed in seeds]
    add("yolo11x-seg × 4", [timed(problem, limit_s) for problem in problems], 4.0)
    table = markdown(["case", "median s", "longest s", "target s", f"proven to {GAP:.0e}", "largest gap"], rows)
    print(f"{table}\nwrote {write('plan_scale', {'options': vars(options), 'rows': results}, table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
