"""Is placing worth it? Measured latency of taglio's plan beside simpler ones, over bandwidths, on an emulated cluster.

The devices of cluster.py, 10 ms between all of them. Rivals: all on the camera; all on the server in float, its input
sent in float, and with an int8 input sent (in the best precisions within the same bound); Neurosurgeon's way
(float, one cut in the order of blocks between camera and server, the best of ten by prediction); the best float
placement over all devices. Times are over the engine, one request after another, in the long run.

    python benchmarks/cluster_worth.py [--case ultraface-rfb-320] [--bandwidths 5,20,100] [--runs 15]  (root, Linux)
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import cluster as study
from cases import CACHE, RESULTS, end_once, markdown, write
from error_plots import Series, curves
from taglio import artifact
from taglio.cluster.emulate.emulation import Emulation, start_devices
from taglio.cluster.file import load
from taglio.components.build import read
from taglio.flow.workspace import COMPONENTS, PLAN
from taglio.plan.result import Plan

LATENCY_MS = 10
BOUND = 0.05
CUTS = 10
OURS = "taglio"


def predicted_s(folder: Path) -> float:
    return artifact.load(folder / f"{PLAN}.json", PLAN, Plan).predicted_latency_s.value


def input_sent(folder: Path) -> str:
    """In which precision the model's inputs leave the camera, "" where they stay."""
    plan = artifact.load(folder / f"{PLAN}.json", PLAN, Plan)
    inputs = set(read(folder / COMPONENTS).inputs)
    return " ".join(sorted({each.precision for each in plan.crossings if each.tensor in inputs}))


def plans(made: Emulation, work: Path, links: Path, chosen: str) -> dict[str, Path]:
    """A built plan for each strategy."""
    server = (("server", 1.0),)
    asked = {
        OURS: study.Variant("free", chosen, (), BOUND),
        "camera": study.Variant("camera", chosen, (("camera", 1.0),), BOUND),
        "server, float input": study.Variant("server-float", chosen, server, 0.0),
        "server, int8 input": study.Variant("server", chosen, server, BOUND),
        "float anywhere": study.Variant("float", chosen, (), 0.0),
    }
    found = {name: study.make(made, work, links, variant) for name, variant in asked.items()}
    cuts = [
        study.Variant(f"cut-{number}", chosen, (("camera", number / CUTS), ("server", 1.0)), 0.0)
        for number in range(CUTS + 1)
    ]
    cut = min(cuts, key=lambda each: predicted_s(study.make(made, work, links, each, timed=False)))
    return {**found, "Neurosurgeon": study.make(made, work, links, cut)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="ultraface-rfb-320")
    parser.add_argument("--bandwidths", default="5,20,100")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--effort", type=float, default=0.3)
    options = parser.parse_args()
    end_once()
    rows: list[dict[str, Any]] = []
    speeds = [int(word) for word in options.bandwidths.split(",")]
    for speed in speeds:
        study.SCENARIOS[f"at{speed}"] = (speed, LATENCY_MS)
    try:
        file = study.written_cluster(CACHE / "cluster-worth")
        with Emulation(file) as made:
            start_devices(made)
            work = study.prepare(made, file, options.case, options.effort)
            for speed in speeds:
                chosen = f"at{speed}"
                links = study.probed(made, file, chosen)
                ready = plans(made, work, links, chosen)
                made.become(replace(load(file, chosen), scenario=chosen))
                told = study.measured(made, links, options.runs, False, list(dict.fromkeys(ready.values())))
                for name, folder in ready.items():
                    run = told.get(str(folder), {}).get("run")
                    row = {"case": options.case, "mbit_s": speed, "plan": name, "input": input_sent(folder)}
                    row["predicted_s"] = predicted_s(folder)
                    rows.append({**row, "measured_s": run["latency"]["steady_s"] if run else None})
                    print(rows[-1], flush=True)
    finally:
        report(rows, options)
    return 0


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """The table of ratios, and the plot."""
    good = [row for row in rows if row["measured_s"] is not None]
    names = list(dict.fromkeys(row["plan"] for row in good))
    speeds = list(dict.fromkeys(row["mbit_s"] for row in good))
    at = {(row["plan"], row["mbit_s"]): row["measured_s"] for row in good}
    lines = []
    for speed in speeds:
        ours = at.get((OURS, speed))
        if ours is None:
            continue
        cells = [
            f"{at[name, speed] * 1e3:.0f} ms, x {at[name, speed] / ours:.2f}" for name in names if (name, speed) in at
        ]
        lines.append([str(speed), *cells])
    table = markdown(["Mbit/s", *names], lines)
    drawn = [
        Series(name, np.array(speeds), np.array([at[name, speed] for speed in speeds]))
        for name in names
        if all((name, speed) in at for speed in speeds)
    ]
    if drawn and len(speeds) > 1:
        title = f"{options.case}: latency over the links' bandwidth"
        (RESULTS / f"cluster_worth_{options.case}.svg").write_text(curves(title, "Mbit/s", "seconds", drawn))
    print(f"{table}\nwrote {write('cluster_worth', {'options': vars(options), 'rows': rows}, table)}")


if __name__ == "__main__":
    sys.exit(main())
