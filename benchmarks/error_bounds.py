"""Do the bounds hold? Random bounds on each network: the plan that the model alone allows, and the one after the loop.

Before the loop the plan is the fastest whose predicted error, at the upper end of the stated confidence, keeps the
bound; after it, the fastest that was also measured to. Both are measured on every held-out input.

    python benchmarks/error_bounds.py [--cases a,b] [--bounds 50] [--views 3]
"""

import argparse
import sys
from typing import Any

import numpy as np

from cases import markdown, write
from error_cases import NETWORKS, VIEWS, open_network
from taglio.error import study
from taglio.error.combine import fit_model
from taglio.error.study import StudyBudget
from taglio.flow.profile import profile_as
from taglio.flow.search import search
from taglio.plan.one_machine import make_plan
from taglio.plan.result import Limits
from taglio.profile.measure import pure_assignments
from taglio.quantize.precision import Assignment, precisions
from taglio.quantize.scheme import DEFAULT_SCHEME

CONFIDENCE = 0.9
SUBSETS = 96
SEED = 20261121


def measure(name: str, bounds: int, views: int, effort: float) -> dict[str, Any]:
    """Each bound with what was predicted and measured before and after the loop."""
    work, meter = open_network(name, views)
    forms = precisions(DEFAULT_SCHEME)
    profile = profile_as(work.at(effort), DEFAULT_SCHEME)
    budget = StudyBudget(1e6, SUBSETS, SUBSETS, 1e6)
    held_out = work.data.held_out
    measured = study.measure(work.graph, forms, meter, budget, study.StudyAim())
    model = fit_model(work.model, DEFAULT_SCHEME, measured, meter=meter, held_out=held_out, confidence=CONFIDENCE)
    everything = meter.error(pure_assignments(work.graph, forms)["int8"])
    measured_errors: dict[tuple[tuple[str, str], ...], float] = {}

    def error(assignment: Assignment) -> float:
        key = tuple(sorted((block, form.name) for block, form in assignment.items()))
        if key not in measured_errors:
            measured_errors[key] = meter.error(assignment)
        return measured_errors[key]

    rows = []
    for bound in np.exp(np.random.default_rng(SEED).uniform(np.log(0.05), np.log(0.95), bounds)) * everything:
        limits = Limits(float(bound))
        before = make_plan(work.graph, profile, model, limits)
        at_first = error(before.assignment())
        tried = search(work.graph, profile, model, limits, meter, rounds=6)
        holding = [trial for trial in tried if trial.holds]
        last = min(holding, key=lambda trial: trial.plan.predicted_latency_s.value) if holding else None
        after = error(last.plan.assignment()) if last is not None else 0.0  # nothing held: float stays
        rows.append(
            {
                "bound": float(bound),
                "predicted": before.predicted_error.value,
                "upper": before.predicted_error.high,
                "before": at_first,
                "after": after,
                "holds_before": at_first <= bound,
                "holds_after": after <= bound,
            }
        )
    return {
        "case": name,
        "inputs": len(held_out.samples),
        "all_int8": everything,
        "evaluations": model.evaluations,
        "upper": model.upper(1.0),
        "bounds": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--bounds", type=int, default=50)
    parser.add_argument("--views", type=int, default=VIEWS)
    parser.add_argument("--effort", type=float, default=0.25, help="of the latency profile that the plans need")
    options = parser.parse_args()
    results, rows = [], []
    for name in options.cases.split(","):
        try:
            result = measure(name, options.bounds, options.views, options.effort)
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        results.append(result)
        bounds = result["bounds"]
        used = [row["after"] / row["bound"] for row in bounds]
        cells = [name, str(result["inputs"]), str(result["evaluations"]), f"{result['upper']:.3f}"]
        cells += [f"{sum(row['holds_before'] for row in bounds)} of {len(bounds)}"]
        cells += [f"{sum(row['holds_after'] for row in bounds)} of {len(bounds)}", f"{np.median(used):.1%}"]
        rows.append(cells)
        print(" | ".join(cells), flush=True)
    header = ["network", "inputs", "evaluations", "upper end ×", f"hold before the loop ({CONFIDENCE:.0%} stated)"]
    table = markdown([*header, "hold after it", "median share of the bound used"], rows)
    print(f"wrote {write('error_bounds', {'options': vars(options), 'cases': results}, table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
