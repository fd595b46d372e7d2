"""Is taglio's plan the fastest that holds the bound? Against float, all-int8, top-K by FLOPs, the notes' "only layers
with speed-up > 1", and a sensitivity-greedy exclusion as NNCF's accuracy control does.

Everything shares one scheme, one calibration and one meter of error on held-out inputs; only rivals that hold the
bound count. All models of a network are timed in one interleaved session.

    python benchmarks/quality.py [--cases a,b] [--bounds 0.005,0.01,0.02,0.05]
"""

import argparse
import sys
from functools import partial
from math import exp, log
from typing import Any

from cases import CASES, markdown, open_case, write
from taglio.choose_scheme import choose
from taglio.error.measure import ErrorMeter
from taglio.graph import Graph
from taglio.optimize import decide, error_stage, open_switchable, profile_stage, verifier
from taglio.plan.result import Limits
from taglio.profile.layerwise import layer_times, speedups
from taglio.profile.measure import FLOAT_RUN, pure_assignments
from taglio.profile.stopwatch import Effort, time_models
from taglio.quantize.effective import effective
from taglio.quantize.precision import Precision, precisions

TOP_K = (3, 5, 10, 15, 20, 30, 40, 60, 80, 100)


def rivals(
    graph: Graph, int8: Precision, everything: dict[str, Precision], speedup: dict[str, float]
) -> dict[str, dict[str, Precision]]:
    """Assignments that do not depend on the bound, by name."""
    result: dict[str, dict[str, Precision]] = {"all int8": everything}
    flops = sorted((b for b in graph.candidates() if not b.movement), key=lambda b: -b.flops)
    for count in TOP_K:
        if count < len(flops):
            result[f"top-{count} FLOPs"] = effective(graph, {b.name: int8 for b in flops[:count]}, int8)
    faster = {name: int8 for name, ratio in speedup.items() if ratio > 1.0 and name in everything}
    result["speed-up > 1"] = effective(graph, faster, int8)
    return result


def greedy(
    graph: Graph,
    int8: Precision,
    everything: dict[str, Precision],
    alone: dict[str, float],
    meter: ErrorMeter,
    bound: float,
) -> dict[str, Precision]:
    """Start from all int8; put the block that hurts most alone back to float until the bound holds."""
    chosen = {name: each for name, each in everything.items() if not graph.block(name).movement}
    for name in sorted(chosen, key=lambda each: -alone.get(each, 0.0)):
        current = effective(graph, chosen, int8)
        if meter.error(current) <= bound:
            return current
        del chosen[name]
    return {}


def measure(name: str, bounds: list[float], effort: float, auto: bool) -> dict[str, Any]:
    """Measured latency of every contender at every bound."""
    work = open_case(name)
    scheme = choose(work, bounds[len(bounds) // 2])[0] if auto else None
    scheme = scheme or work.setup.scheme
    assert scheme is not None
    builder = work.builder(scheme)
    profile = profile_stage(work, scheme, builder, effort)
    switchable = open_switchable(work, builder, scheme)
    model = error_stage(work, scheme, switchable, effort=effort)
    meter = verifier(work, switchable)
    layers = layer_times(work.model, work.graph, builder, precisions(scheme), work.setup.options())
    int8 = next(each for each in precisions(scheme) if each.form == "whole")
    everything = dict(pure_assignments(work.graph, precisions(scheme))["int8"])
    alone = {each.block: each.error for each in model.alone if each.precision == "int8"}
    contenders = rivals(work.graph, int8, everything, speedups(layers))
    contenders["float"] = {}
    plans = {}
    for bound in bounds:
        contenders[f"greedy {bound}"] = greedy(work.graph, int8, everything, alone, meter, bound)
        decision = decide(work, builder, switchable, profile, model, Limits(bound), effort=effort)
        winner = decision.finalists[decision.winner]
        plans[bound] = winner.plan
        contenders[f"taglio {bound}"] = winner.plan.assignment()
    errors = {key: meter.error(assignment) for key, assignment in contenders.items()}
    models = {key: partial(builder.build, assignment) for key, assignment in contenders.items()}
    models[FLOAT_RUN] = models.pop("float")
    timed = time_models(
        models,
        work.data.held_out.samples[0],
        work.setup.options(),
        Effort(minimum=7, maximum=60, budget_s=40.0 * effort),
        kernels=False,
    )
    seconds = {key: timed[FLOAT_RUN if key == "float" else key].wall.median_s for key in contenders}
    table = []
    for bound in bounds:
        allowed = {
            key: seconds[key]
            for key in contenders
            if errors[key] <= bound
            and not key.startswith("taglio")
            and (not key.startswith("greedy") or key == f"greedy {bound}")
        }
        best = min(allowed, key=lambda key: allowed[key])
        ours = seconds[f"taglio {bound}"]
        table.append(
            {
                "bound": bound,
                "taglio_s": ours,
                "taglio_error": errors[f"taglio {bound}"],
                "predicted_s": plans[bound].predicted_latency_s.value,
                "holds": errors[f"taglio {bound}"] <= bound,
                "best_rival": best.split(" 0.")[0],
                "best_rival_s": allowed[best],
                "float_s": seconds["float"],
                "int8_s": seconds["all int8"],
                "int8_holds": errors["all int8"] <= bound,
                "gain": allowed[best] / ours,
            }
        )
    return {
        "case": name,
        "scheme": str(scheme),
        "threads": work.setup.threads,
        "bounds": table,
        "seconds": seconds,
        "errors": errors,
        "deviations": {key: timed[FLOAT_RUN if key == "float" else key].wall.deviation_s for key in contenders},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits,ultraface-rfb-320,yunet-n-640,yolo11n-seg,yolo11s-seg")
    parser.add_argument("--bounds", default="0.005,0.01,0.02,0.05")
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--auto-scheme", action="store_true", help="let each network choose its scheme first")
    options = parser.parse_args()
    bounds = [float(bound) for bound in options.bounds.split(",")]
    results, rows, gains = [], [], []
    for name in options.cases.split(","):
        if name not in CASES:
            parser.error(f"{name} is none of {', '.join(CASES)}")
        try:
            results.append(measure(name, bounds, options.effort, options.auto_scheme))
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        for row in results[-1]["bounds"]:
            gains.append(row["gain"])
            mark = "" if row["int8_holds"] else " (breaks)"
            rows.append(
                [
                    name,
                    f"{row['bound']:.1%}",
                    f"{row['float_s'] * 1e3:.2f}",
                    f"{row['int8_s'] * 1e3:.2f}{mark}",
                    f"{row['best_rival']} {row['best_rival_s'] * 1e3:.2f}",
                    f"**{row['taglio_s'] * 1e3:.2f}**",
                    f"{row['taglio_error']:.2%}",
                    f"{row['gain']:.3f}",
                ]
            )
            print(" | ".join(rows[-1]), flush=True)
    mean = exp(sum(log(gain) for gain in gains) / len(gains)) if gains else float("nan")
    header = ["network", "bound", "float ms", "all int8 ms", "best rival ms", "taglio ms", "error", "rival / taglio"]
    table = markdown(header, rows) + f"\n\nGeometric mean of rival / taglio: **{mean:.3f}**; smallest {min(gains):.3f}."
    print(f"geometric mean {mean:.3f}, smallest {min(gains):.3f}")
    print(f"wrote {write('quality', {'options': vars(options), 'cases': results}, table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
