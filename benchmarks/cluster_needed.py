"""Where one machine does not do: a model that fits no device's memory, and a rate that needs three devices.

Three emulated devices of half a core each, in a row of links of 100 Mbit/s and 5 ms. For each case what the best single
device does, Neurosurgeon's way (float, one cut in the order of blocks between two devices, the best of ten), the best
float placement, and taglio's plan within 5 %; predicted, then measured over the engine.

* memory: every device has so much less than the whole model in int8 needs (weights and live activations, as the planner
  counts them) as still leaves a plan over several;
* rate: more requests a second than the best plan on any two devices has room for.

    python benchmarks/cluster_needed.py [--network ultraface-rfb-320] [--cases memory,rate] [--runs 15] [--json]

It takes root, Linux, and taglio[cluster].
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from glob import escape
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import Any

import cluster as study
from cases import CACHE, CASES, end_once, markdown, write
from cluster import DEVICES
from taglio import artifact
from taglio.cluster import file as cluster_file
from taglio.cluster.emulate.devices import start_devices
from taglio.cluster.emulate.emulation import Emulation
from taglio.cluster.engine.probe import written
from taglio.errors import Infeasible
from taglio.flow import stages
from taglio.flow.placing import place
from taglio.flow.workspace import GRAPH
from taglio.model.graph import Graph
from taglio.plan.result import Plan

study.TOML = 'start = "camera"\n' + "".join(f"[device.{name}]\ncpus = 0.5\nthreads = 1\n" for name in DEVICES)
BOUND, CUTS, LIMIT_S = 0.05, 10, 4.0
# Of what the whole model in int8 needs, what devices have: the least of these that a plan fits.
SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def only(names: tuple[str, ...]) -> list[str]:
    """Keep all blocks off every other device."""
    return [f"{name}=*" for name in DEVICES if name not in names]


def planned(work: Path, file: Path, name: str, **asked: Any) -> tuple[Path, Plan] | None:
    """A plan in a folder of its own; None where none keeps the limits."""
    folder = work.parent / "needed" / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(work, folder, symlinks=True)
    try:
        return folder, place(folder, file, time_limit_s=LIMIT_S, **asked).answer.plans[0]
    except Infeasible:
        return None


def cuts(work: Path) -> Iterator[list[str]]:
    """Pins of float cuts in the order of blocks, between the start and another device."""
    graph = artifact.load(work / f"{GRAPH}.json", GRAPH, Graph)
    for number in range(CUTS + 1):
        ends = (("camera", number / CUTS), ("server", 1.0))
        yield [f"{device}={escape(block)}" for block, device in study.pins(graph, ends)]


def strategies(work: Path, file: Path, what: str, **asked: Any) -> dict[str, tuple[Path, Plan] | None]:
    """Each way's plan under the same limits."""

    def best(found: list[tuple[Path, Plan] | None]) -> tuple[Path, Plan] | None:
        able = [each for each in found if each is not None]
        return min(able, key=lambda each: each[1].predicted_latency_s.value, default=None)

    single = [
        planned(work, file, f"{what}-{name}", max_error=BOUND, keep_off=only((name,)), **asked) for name in DEVICES
    ]
    cut = [
        planned(work, file, f"{what}-cut{number}", max_error=0.0, pins=pins, **asked)
        for number, pins in enumerate(cuts(work))
    ]
    return {
        "best single device": best(single),
        "Neurosurgeon": best(cut),
        "float anywhere": planned(work, file, f"{what}-float", max_error=0.0, **asked),
        "taglio": planned(work, file, f"{what}-plan", max_error=BOUND, **asked),
    }


def memory(work: Path, file: Path) -> tuple[Path, dict[str, Any], str]:
    """The cluster with devices of less memory than the model needs, what is asked of plans, and the case in words."""
    cluster = cluster_file.load(file)
    whole = planned(work, file, "whole", max_error=BOUND, keep_off=only(("server",)))
    assert whole is not None, "without limits there is a plan"
    needs = max(each.peak_bytes for each in whole[1].usage)
    for share in SHARES:
        small = replace(cluster, devices=tuple(replace(each, memory_bytes=share * needs) for each in cluster.devices))
        path = file.parent / "small.toml"
        path.write_text(written(small, ()))
        if planned(work, path, "small", max_error=BOUND) is not None:
            return path, {}, f"{share * needs / 1e6:.2f} MB a device, the model needs {needs / 1e6:.2f} MB in int8"
    raise RuntimeError(f"no plan fits devices of less than {needs / 1e6:.2f} MB")


def rate(work: Path, file: Path) -> tuple[Path, dict[str, Any], str]:
    """The same of a rate between what two devices have room for and what three have."""
    rooms = {}
    for count in (1, 2, 3):
        found = [
            planned(work, file, "room", max_error=BOUND, objective="throughput", keep_off=only(names))
            for names in combinations(DEVICES, count)
        ]
        plans = [each[1] for each in found if each is not None and each[1].predicted_rate_per_s is not None]
        rooms[count] = max(each.predicted_rate_per_s.value for each in plans if each.predicted_rate_per_s)
    asked = sqrt(rooms[2] * rooms[3])
    told = ", ".join(f"{count} device{'s' * (count > 1)} {room:.2f}" for count, room in rooms.items())
    return file, {"min_rate_per_s": asked}, f"{asked:.2f} requests a second; room in the best plan on {told}"


CASES_OF = {"memory": memory, "rate": rate}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="ultraface-rfb-320", choices=sorted(CASES))
    parser.add_argument("--cases", default="memory,rate")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--effort", type=float, default=0.3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    end_once()
    rows: list[dict[str, Any]] = []
    file = study.written_cluster(CACHE / "cluster-needed")
    with Emulation(file) as made:
        start_devices(made)
        work = study.prepare(made, file, options.network, options.effort)
        links = study.probed(made, file, "lan")
        for what in options.cases.split(","):
            used, asked, told = CASES_OF[what](work, links)
            print(f"{what}: {told}", flush=True)
            for name, found in strategies(work, used, what, **asked).items():
                row = {"case": what, "told": told, "plan": name, "predicted_s": None, "measured_s": None}
                if found is not None:
                    folder, plan = found
                    stages.build(folder)
                    stream = what == "rate"
                    run = study.measured(made, used, options.runs, stream, [folder]).get(str(folder), {}).get("run")
                    row["devices"] = sorted({each.device for each in plan.placements})
                    row["predicted_s"] = plan.predicted_latency_s.value
                    row["measured_s"] = run["latency"]["steady_s"] if run else None
                    row["predicted_per_s"] = plan.predicted_rate_per_s.value if plan.predicted_rate_per_s else None
                    row["measured_per_s"] = run["rate_per_s"] if run else None
                    row["peak_mb"] = {each.device: each.peak_bytes / 1e6 for each in plan.usage}
                rows.append(row)
                print(row, flush=True)
    table = markdown(["case", "plan", "devices", "predicted", "measured", "ratio"], [_cells(row) for row in rows])
    path = write("cluster_needed", {"options": vars(options), "rows": rows}, table)
    print(json.dumps(rows) if options.json else f"{table}\nwrote {path}")
    return 0


def _cells(row: dict[str, Any]) -> list[str]:
    if row["predicted_s"] is None:
        return [row["case"], row["plan"], "", "no plan keeps the limits", "", ""]
    keys, unit, factor = ("predicted_s", "measured_s"), "ms", 1e3
    if row["case"] == "rate":
        keys, unit, factor = ("predicted_per_s", "measured_per_s"), "/s", 1.0
    wanted, got = (row[key] for key in keys)
    told = f"{got * factor:.2f} {unit}" if got else "no answer"
    ratio = f"{got / wanted:.3f}" if got and wanted else ""
    return [row["case"], row["plan"], " ".join(row["devices"]), f"{wanted * factor:.2f} {unit}", told, ratio]


if __name__ == "__main__":
    sys.exit(main())
