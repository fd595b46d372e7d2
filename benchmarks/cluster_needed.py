"""Where one machine does not do: four cases, and in each what simpler ways reach beside taglio's plan, measured.

* camera: a camera of a tenth of a core, servers of a fifth: the least latency;
* energy: the same within a limit on joules per request, between those of the fastest plan and of the most sparing one;
* rate: the same, three servers, and requests a second, of which more are asked for than two devices have room for;
* memory: three devices, each with less than half of what the whole network needs in int8 (weights and live activations,
  as the planner counts them).

The network is a transformer with random weights, of 150 MB. The camera's times are assumed: twice the server's. Devices
and links are measured once, and what was measured is kept below out/.

The ways: the best single device; Neurosurgeon's (float, one cut in the order of blocks between the start and another
device, the best of five); the best float placement; taglio's plan within 5 % of error. Devices are emulated. Of the
memory case, the most memory that opening its components took a device is beside the size of their files.

    python benchmarks/cluster_needed.py [--cases camera,energy,rate,memory] [--runs 15] [--effort 0.2]
        [--layers 12] [--json]

It takes root, Linux, and taglio[cluster].
"""

import argparse
import hashlib
import json
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from glob import escape
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import cluster as study
from cases import CACHE, end_once, markdown, write
from decoder import encoder
from taglio import artifact
from taglio.cluster import file as cluster_file
from taglio.cluster.emulate.emulation import Emulation, start_devices
from taglio.components.build import read
from taglio.errors import Infeasible
from taglio.flow import stages
from taglio.flow.placing import place
from taglio.flow.workspace import COMPONENTS, GRAPH
from taglio.model.graph import Graph
from taglio.plan.result import Plan

BOUND, CUTS, LIMIT_S = 0.05, 5, 10.0
# Between all devices: Mbit/s, ms.
LINK = (100, 1.0)
# Of what the whole model needs, what each device has.
SHARE = 0.45
TOKENS, WIDE, STREAM = 16, 512, "throughput"
# A file with the most memory that a command took which prepared a workspace, in megabytes.
PEAK = "peak_mb"
UNEQUAL = """start = "camera"
[device.camera]
cpus = 0.1
threads = 1
active_watts = 1
scale = { of = "server", factor = 2 }
[device.server]
cpus = 0.2
threads = 1
active_watts = 60
[device.second]
like = "server"
[device.third]
like = "server"
"""
# Profiled beside the devices, none of which has memory for the model.
SMALL = 'start = "camera"\n' + "".join(
    f'[device.{name}]\nthreads = 1\nprofile = "profile.json"\nmemory_mb = 100000\n'
    for name in ("camera", "server", "second")
)
# A plan and the workspace that it lies in; None where none keeps the limits.
Found = tuple[Path, Plan] | None


@dataclass(frozen=True, slots=True)
class Setting:
    """A network on emulated devices: its workspace, and the cluster as it was measured."""

    made: Emulation
    work: Path
    file: Path

    def plan(self, name: str, file: Path | None = None, **asked: Any) -> Found:
        """A plan in a workspace of its own."""
        folder = self.work.parent / "plans" / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.work, folder, symlinks=True)
        try:
            return folder, place(folder, file or self.file, time_limit_s=LIMIT_S, **asked).answer.plans[0]
        except Infeasible:
            return None

    def ways(self, case: "Case") -> Iterator[tuple[str, Found]]:
        """What each way makes of a case. Those after the first two know no limits: only what keeps them counts."""
        goal: dict[str, Any] = {"objective": STREAM if case.stream else "latency"}

        def best(found: Iterator[Found]) -> Found:
            kept = (each for each in found if each is not None and case.keeps(each[1]))
            return min(kept, key=lambda each: cost(each[1], case.stream), default=None)

        yield "taglio", self.plan("ours", max_error=BOUND, **goal, **case.limits)
        yield "float anywhere", self.plan("float", max_error=0.0, **goal, **case.limits)
        names = [each.name for each in self.made.cluster.devices if not each.like]
        asked: dict[str, Any] = {"max_error": BOUND, **goal}
        yield "best single device", best(self.plan(name, keep_off=self.all_but(name), **asked) for name in names)
        cuts = enumerate(self.cuts())
        yield "Neurosurgeon", best(self.plan(f"cut{index}", max_error=0.0, pins=pins, **goal) for index, pins in cuts)

    def all_but(self, *names: str) -> list[str]:
        """Keeps all blocks off every other device."""
        return [f"{each.name}=*" for each in self.made.cluster.devices if each.name not in names]

    def cuts(self) -> Iterator[list[str]]:
        """Pins of cuts in the order of blocks."""
        graph = artifact.load(self.work / f"{GRAPH}.json", GRAPH, Graph)
        for number in range(CUTS + 1):
            ends = (("camera", number / CUTS), ("server", 1.0))
            yield [f"{device}={escape(block)}" for block, device in study.pins(graph, ends)]


def cost(plan: Plan, stream: bool) -> float:
    """What a way keeps small: seconds of a request, or between those of a stream."""
    rate = plan.predicted_rate_per_s
    return 1.0 / rate.value if stream and rate is not None else plan.predicted_latency_s.value


@dataclass(frozen=True, slots=True)
class Case:
    """A case in words, the limits that the planner is given, and whether a plan keeps them."""

    told: str
    limits: dict[str, Any] = field(default_factory=dict)
    keeps: Callable[[Plan], bool] = lambda _: True
    stream: bool = False


def camera(_: Setting) -> Case:
    return Case("the least latency")


def joules(plan: Plan) -> float:
    return 0.0 if plan.predicted_joules is None else plan.predicted_joules.value


def energy(setting: Setting) -> Case:
    plans = [setting.plan(aim, max_error=BOUND, objective=aim) for aim in ("energy", "latency")]
    least, quick = (joules(each[1]) for each in plans if each is not None)
    limit = sqrt(least * quick)
    told = f"{limit:.3g} J a request; the fastest takes {quick:.3g}, the most sparing {least:.3g}"
    return Case(told, {"max_energy_j": limit}, lambda plan: joules(plan) <= limit)


def rate(setting: Setting) -> Case:
    two = setting.plan("two", max_error=BOUND, objective=STREAM, keep_off=setting.all_but("camera", "server"))
    assert two is not None, "without limits there is a plan"
    return Case(f"more requests/s than the {1.0 / cost(two[1], stream=True):.1f} of two devices", stream=True)


def memory(setting: Setting) -> Case:
    whole = setting.plan("whole", force_int8=["*"], keep_off=setting.all_but("server"))
    assert whole is not None, "without limits there is a plan"
    needs = max(each.peak_bytes for each in whole[1].usage)
    known = cluster_file.load(setting.file)
    small = replace(known, devices=tuple(replace(each, memory_bytes=SHARE * needs) for each in known.devices))
    path = setting.file.with_name("small.toml")
    path.write_text(cluster_file.written(small))
    told = f"{SHARE * needs / 1e6:.1f} MB a device; the whole needs {needs / 1e6:.1f} in int8"
    told += f" (profiled and studied beside the devices, in a process of {(setting.file.parent / PEAK).read_text()} MB)"
    return Case(told, {"file": path}, lambda plan: all(each.peak_bytes <= SHARE * needs for each in plan.usage))


# Devices, and what is asked.
SETTINGS: dict[str, tuple[str, Callable[[Setting], Case]]] = {
    "camera": (UNEQUAL, camera),
    "energy": (UNEQUAL, energy),
    "rate": (UNEQUAL, rate),
    "memory": (SMALL, memory),
}


def cluster_of(case: str, layers: int) -> Path:
    """The cluster file of a case, in a folder that it shares with cases of the same cluster and network."""
    devices, _ = SETTINGS[case]
    names = [each.name for each in cluster_file.parse(devices).devices if not each.like]
    text = devices + "".join(study.LINK.format("", *pair, *LINK) for pair in combinations(names, 2))
    folder = CACHE / "cluster-needed" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}-{layers}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cluster.toml").write_text(text)
    return folder / "cluster.toml"


def prepared(made: Emulation, folder: Path, options: argparse.Namespace) -> Path:
    """The workspace of the network: profiled on each device, or once beside them; errors studied beside them."""
    work = folder / "work"
    if (work / "error.json").exists():
        return work
    model, data = folder / "encoder.onnx", folder / "x.npy"
    onnx.save(encoder(options.layers, WIDE, TOKENS), model)
    np.save(data, np.random.default_rng(1).standard_normal((24, 1, TOKENS, WIDE), np.float32))
    given = ["--data", data, "--scheme", study.SCHEME, "--runtime", "onnxruntime", "--threads", 1]
    own = [each.name for each in made.cluster.devices if each.profile == f"profiles/{each.name}.json"]
    outs = {name: folder / (name or "work") for name in own or [""]}
    for name, out in outs.items():
        study.run(made if name else None, name, "profile", model, *given, "--effort", options.effort, "-o", out)
    if own:
        shutil.copytree(outs[own[-1]], work, dirs_exist_ok=True)
        (work / "profiles").mkdir()
        for name, out in outs.items():
            shutil.copy(out / "profile.json", work / "profiles" / f"{name}.json")
    study.run(None, "", "error", work, "--effort", options.effort)
    (folder / PEAK).write_text(f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6:.0f}")
    return work


def rows_of(case: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What each way does in a case, predicted and measured."""
    file = cluster_of(case, options.layers)
    with Emulation(file) as made:
        start_devices(made)
        work = prepared(made, file.parent, options)
        links = file.with_name("probed-lan.toml")
        setting = Setting(made, work, links if links.exists() else study.probed(made, file, "lan"))
        asked = SETTINGS[case][1](setting)
        for way, found in setting.ways(asked):
            row: dict[str, Any] = {"case": case, "asked": asked.told, "way": way}
            if found is not None:
                stages.build(found[0])
                file = asked.limits.get("file", setting.file)
                said = study.measured(made, file, options.runs, asked.stream, [found[0]])
                row |= result(*found, said.get(str(found[0]), {}), asked.stream)
            print(row, flush=True)
            yield row


def result(folder: Path, plan: Plan, said: dict[str, Any], stream: bool) -> dict[str, Any]:
    """A plan, and what came of it."""
    found: dict[str, Any] = {
        "devices": {each.device: list(each.machines) for each in plan.usage},
        "predicted": 1.0 / cost(plan, stream) if stream else cost(plan, stream),
        "planned_mb": {each.device: each.peak_bytes / 1e6 for each in plan.usage},
        "predicted_joules": plan.predicted_joules and plan.predicted_joules.value,
    }
    if "run" not in said:
        return found | {"error": said.get("error", "no answer")}
    run, files = said["run"], dict[str, float]()
    for each in read(folder / COMPONENTS).pieces:
        files[each.device] = files.get(each.device, 0.0) + each.size_bytes / 1e6
    return found | {
        "measured": run["rate_per_s"] if stream else run["latency"]["steady_s"],
        "joules": sum((each["modelled_joules"] or 0.0) + (each["sent_joules"] or 0.0) for each in run["energy"]),
        "files_mb": files,
        "opened_mb": {each["device"]: (each["peak_bytes"] - each["before_bytes"]) / 1e6 for each in run["loaded"]},
        "machine_busy": run["machine_busy"],
    }


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    start = [row["case"], row["asked"], row["way"]]
    if "predicted" not in row:
        return [*start, "", "none found within the limits", "", "", ""]
    stream = row["case"] == "rate"
    wanted, got = row["predicted"], row.get("measured")
    unit, factor = ("/s", 1.0) if stream else ("ms", 1e3)
    devices = ", ".join(" + ".join(each) for each in row["devices"].values())
    ratio = "" if got is None else f"{got / wanted if stream else wanted / got:.3f}"
    more = ""
    if row["case"] == "energy" and got is not None:
        more = f"{row['predicted_joules']:.3g} J predicted, {row['joules']:.3g} J"
    if row["case"] == "memory" and got is not None:
        more = ", ".join(
            f"{name} {size:.0f} of {row['files_mb'][name]:.0f} MB" for name, size in row["opened_mb"].items()
        )
    said = row.get("error", "") if got is None else f"{got * factor:.2f} {unit}"
    return [*start, devices, f"{wanted * factor:.2f} {unit}", said, ratio, more]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(SETTINGS))
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--effort", type=float, default=0.2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    end_once()
    rows: list[dict[str, Any]] = []
    try:
        for case in options.cases.split(","):
            rows += rows_of(case, options)
    finally:
        head = [
            "case",
            "asked",
            "way",
            "devices",
            "predicted",
            "measured",
            "ratio",
            "joules; memory to open, and files",
        ]
        table = markdown(head, [cells(row) for row in rows])
        path = write("cluster_needed", {"options": vars(options), "rows": rows}, table)
        print(json.dumps(rows) if options.json else f"{table}\nwrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
