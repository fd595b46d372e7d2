"""How near the best is the plan of shortest critical path, in what time, and what does the true path gain over the sum?

Four devices: a camera (the measured times three times over), a phone (twice), this machine as gateway, and a server (a
fifth); requests start on the camera; an error of 5 %. Links of 20 to 200 Mbit/s and 2 to 20 ms in the field, of 1
Gbit/s and 0.3 ms in the rack. Times other than this machine's are scaled, that is assumed. Each network's profile and
error model are measured once and kept under out/. `chain` is 24 convolutions one after another, random weights.

    python benchmarks/plan_critical.py [--cases chain,ultraface-rfb-320,yolo11n-seg,yolo11x-seg] [--time-limit-s 20]

The gap is that of the returned plan (its simulated latency, component overheads in it) against the proven bound. Beside
it stands the plan of the least sum of seconds, simulated: what a planner loses that adds up instead.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cases import CACHE, CASES, markdown, paths, write
from taglio.cluster.devices import Cluster
from taglio.cluster.file import load
from taglio.cluster.planning.place import place
from taglio.cluster.planning.workload import Workload, parse_objective
from taglio.flow.place import candidate
from taglio.flow.workspace import read_error, reopen_profiled

CLUSTER = """start = "camera"
[device.camera]
memory_mb = 200
scale = { of = "gateway", factor = 3.0 }
[device.phone]
memory_mb = 400
scale = { of = "gateway", factor = 2.0 }
[device.gateway]
profile = "profile.json"
[device.server]
scale = { of = "gateway", factor = 0.2 }
"""
PAIRS = (
    ("camera", "phone"),
    ("camera", "gateway"),
    ("camera", "server"),
    ("phone", "gateway"),
    ("phone", "server"),
    ("gateway", "server"),
)
# Mbit/s and milliseconds of each pair.
LINKS = {
    "field": ((100, 3), (200, 2), (20, 20), (100, 3), (50, 15), (100, 10)),
    "rack": ((1000, 0.3),) * 6,
}


def cluster(name: str) -> Cluster:
    """Written to a file first, as a user's is."""
    text = CLUSTER
    for (one, other), (speed, latency) in zip(PAIRS, LINKS[name], strict=True):
        text += f'[[link]]\nfrom = "{one}"\nto = "{other}"\nboth = true\n'
        text += f"bandwidth_mbit_s = {speed}\nlatency_ms = {latency}\n"
    path = CACHE / f"critical-{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return load(path)


def chain() -> tuple[Path, Path]:
    """A model that is a chain, and data for it."""
    folder = CACHE / "chain"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    nodes, weights, here, channels = [], [], "x", 3
    for layer in range(24):
        out, step = min(512, 48 * 2 ** (layer // 5)), 2 if layer % 5 == 4 else 1
        kernel = rng.standard_normal((out, channels, 3, 3)).astype(np.float32) * np.float32(
            (2.0 / (9 * channels)) ** 0.5
        )
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [here, f"w{layer}"], [f"c{layer}"], pads=[1] * 4, strides=[step] * 2))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        here, channels = f"r{layer}", out
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 160, 160])]
    wanted = [helper.make_tensor_value_info(here, TensorProto.FLOAT, None)]
    model = helper.make_model(helper.make_graph(nodes, "chain", given, wanted, weights))
    model.opset_import[0].version = 17
    model.ir_version = 9
    onnx.save(model, folder / "chain.onnx")
    np.save(folder / "data.npy", rng.standard_normal((8, 3, 160, 160)).astype(np.float32))
    return folder / "chain.onnx", folder / "data.npy"


def measured(name: str) -> Path:
    """The workspace of a network with profile and error model, made by the command line where it is missing."""
    model, data = chain() if name == "chain" else paths(CASES[name])
    folder = CACHE / name / "critical"
    given = ["--preprocess", CASES[name].preprocess] if name in CASES and CASES[name].preprocess else []
    words: list[list[object]] = []
    if not (folder / "profile.json").exists():
        words.append(["profile", model, "--data", data, *given, "--effort", 0.5, "-o", folder])
    if not (folder / "error.json").exists():
        words.append(["error", folder, "--effort", 0.3])
    for each in words:
        # Standard output is the benchmark's.
        subprocess.run([sys.executable, "-m", "taglio", *map(str, each)], check=True, stdout=sys.stderr)
    return folder


def measured_workload(name: str, where: Cluster) -> Workload:
    """A network with the measured times and errors of this machine, 5 % of error allowed."""
    work, profile = reopen_profiled(measured(name))
    return candidate(work, profile, read_error(measured(name), work, profile), max_error=0.05).workload(where)


def solved(work: list[Workload], where: Cluster, objective: str, time_limit_s: float) -> dict[str, Any]:
    """The best plan found, how long that took, and what is proven of it."""
    begun = time.perf_counter()
    answer = place(work, where, parse_objective(objective), time_limit_s=time_limit_s)
    plan = answer.plans[0]
    return {
        "seconds": time.perf_counter() - begun,
        "value": answer.value,
        "bound": answer.bound,
        "gap": answer.gap,
        "latency_s": plan.predicted_latency_s.value,
        "devices": sorted({each.device for each in plan.placements}),
        "crossings": len(plan.crossings),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="chain,ultraface-rfb-320,yunet-n-640,yolo11n-seg,yolo11x-seg")
    parser.add_argument("--time-limit-s", type=float, default=20.0)
    options = parser.parse_args()
    figures, rows = [], []
    for name in options.cases.split(","):
        for links in LINKS:
            where = cluster(links)
            work = [measured_workload(name, where)]
            found = {each: solved(work, where, each, options.time_limit_s) for each in ("latency", "sum")}
            path, total = found["latency"], found["sum"]
            figures.append({"network": name, "links": links, "blocks": len(work[0].graph.blocks), **found})
            rows.append(
                [
                    name,
                    str(len(work[0].graph.blocks)),
                    links,
                    f"{path['latency_s'] * 1e3:.1f}",
                    f"{path['gap']:.2%}",
                    f"{path['seconds']:.1f}",
                    f"{len(path['devices'])}, {path['crossings']}",
                    f"{total['latency_s'] * 1e3:.1f}",
                    f"{total['latency_s'] / path['latency_s'] - 1.0:.1%}",
                ]
            )
            print(rows[-1], flush=True)
    header = [
        "network",
        "blocks",
        "links",
        "latency ms",
        "gap",
        "s",
        "devices, crossings",
        "least sum's ms",
        "longer by",
    ]
    texts = {name: (CACHE / f"critical-{name}.toml").read_text() for name in LINKS}
    print(f"wrote {write('plan_critical', {'rows': figures, 'clusters': texts}, markdown(header, rows))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
