"""How well is the latency of an unseen subset predicted? Attribution beside the notes' layer sum, on the same subsets.

For each network: profile once, time every layer alone, then time random subsets that no fit has seen, interleaved
with the float model, whose change since the profile is the machine's drift and is taken out of the ratio (both
ratios are kept). Spinning off, threads fixed.

    python benchmarks/prediction.py [--cases a,b] [--subsets 20] [--threads 2] [--runtime openvino]

The sum of layers is ONNX Runtime's, whatever the runtime.
"""

import argparse
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cases import CASES, markdown, open_case, write
from layerwise import LayerTimes, layer_times
from taglio.flow.profile import profile_as
from taglio.model.graph import Graph
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import predict
from taglio.profile.stopwatch import FEEDS
from taglio.quantize.mixes import random_mixes
from taglio.quantize.precision import Assignment, form_of, precisions
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.openvino import NAME as OPENVINO

# Never one of the seeds that a profile or a search draws from.
SEED = 20261120


def sum_of_layers(times: LayerTimes, graph: Graph, assignment: Assignment) -> float:
    """Predicted seconds of one inference, as if boundaries cost nothing."""
    return sum(times[block.name, form_of(assignment, block.name)] for block in graph.blocks)


def measure(name: str, subsets: int, threads: int | None, effort: float, runtime: str) -> dict[str, Any]:
    """Ratios predicted / measured of one case."""
    work = open_case(name, threads, runtime)
    scheme = DEFAULT_SCHEME
    builder = work.builder(scheme)
    start = time.perf_counter()
    profile = profile_as(work.at(effort), scheme)
    profile_s = time.perf_counter() - start
    start = time.perf_counter()
    options = work.setup.options()
    alone = replace(options, runtime=NAME)
    layers = layer_times(builder, work.graph, precisions(scheme), alone, work.typical[0])
    layers_s = time.perf_counter() - start
    mixes = random_mixes(work.graph, precisions(scheme), subsets, SEED)
    models = {key: partial(builder.build, mix) for key, mix in {FLOAT_RUN: {}, **mixes}.items()}
    stopwatch = replace(work.stopwatch, feeds=work.data.held_out.samples[:FEEDS])
    timed = stopwatch.time(models, work.within(30.0 * effort)).all()
    profiled = next(run for run in profile.runs if run.name == FLOAT_RUN).wall.median_s
    drift = timed[FLOAT_RUN].wall.median_s / profiled
    rows = []
    for key, mix in mixes.items():
        measured = timed[key].wall.median_s
        predicted = predict(profile, work.graph, mix).total_s
        rows.append(
            {
                "subset": key,
                "int8_blocks": len(mix),
                "measured_s": measured,
                "deviation_s": timed[key].wall.deviation_s,
                "predicted_s": predicted,
                "layer_sum_s": sum_of_layers(layers, work.graph, mix),
                "raw": predicted / measured - 1.0,
                "steady": predicted * drift / measured - 1.0,
                "layers": sum_of_layers(layers, work.graph, mix) * drift / measured - 1.0,
            }
        )
    steady = np.array([row["steady"] for row in rows])
    raw = np.array([row["raw"] for row in rows])
    layer = np.array([row["layers"] for row in rows])
    return {
        "case": name,
        "runtime": runtime,
        "threads": work.setup.threads,
        "scheme": str(scheme),
        "blocks": len(work.graph.blocks),
        "profile_took_s": profile_s,
        "layers_took_s": layers_s,
        "float_s": timed[FLOAT_RUN].wall.median_s,
        "drift": drift,
        "median": float(np.median(np.abs(steady))),
        "p95": float(np.percentile(np.abs(steady), 95)),
        "bias": float(np.median(steady)),
        "raw_median": float(np.median(np.abs(raw))),
        "raw_p95": float(np.percentile(np.abs(raw), 95)),
        "interval": profile.interval_ratio,
        "covered": float(np.mean(np.abs(steady) <= profile.interval_ratio)),
        "layer_sum_median": float(np.median(np.abs(layer))),
        "layer_sum_p95": float(np.percentile(np.abs(layer), 95)),
        "layer_sum_bias": float(np.median(layer)),
        "subsets": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits,ultraface-rfb-320,yunet-n-640,yolo11n-seg,yolo11s-seg")
    parser.add_argument("--subsets", type=int, default=20)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--runtime", default=NAME, choices=[NAME, OPENVINO])
    options = parser.parse_args()
    results = []
    for name in options.cases.split(","):
        if name not in CASES:
            parser.error(f"{name} is none of {', '.join(CASES)}")
        try:
            results.append(measure(name, options.subsets, options.threads, options.effort, options.runtime))
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        last = results[-1]
        print(
            f"{name}: median {last['median']:.1%}, p95 {last['p95']:.1%}, layer sum {last['layer_sum_median']:.1%}",
            flush=True,
        )
    header = [
        "network",
        "median",
        "p95",
        "bias",
        "interval holds (claims 90 %)",
        "without drift correction",
        "layer sum: median",
        "p95",
        "bias",
    ]
    rows = [
        [
            r["case"],
            f"**{r['median']:.1%}**",
            f"**{r['p95']:.1%}**",
            f"{r['bias']:+.1%}",
            f"{r['covered']:.0%} within ±{r['interval']:.1%}",
            f"{r['raw_median']:.1%} / {r['raw_p95']:.1%}",
            f"{r['layer_sum_median']:.1%}",
            f"{r['layer_sum_p95']:.1%}",
            f"{r['layer_sum_bias']:+.1%}",
        ]
        for r in results
    ]
    print(f"wrote {write('prediction', {'options': vars(options), 'cases': results}, markdown(header, rows))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
