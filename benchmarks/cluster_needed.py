"""Where one machine does not do: four cases, and in each what simpler ways reach beside taglio's plan, measured.

* camera: a camera of a tenth of a core and a server of half a core: the least latency;
* energy: the same within a limit on joules per request, between those of the fastest plan and of the most sparing one;
* rate: a camera and three equal servers, each of a fifth of a core: requests a second, of which more are asked for than
  two devices have room for;
* memory: four devices, each with less than half of what the whole network needs in int8 (weights and live activations,
  as the planner counts them).

The network is yolo11n-seg in the first two cases, then transformers with random weights, of 50 and 340 MB. The
camera's times are assumed: the server's by the ratio of their shares of a core.

The ways: the best single device; Neurosurgeon's (float, one cut in the order of blocks between the start and another
device, the best of ten); the best float placement; taglio's plan within 5 % of error. Devices are emulated. Of the
memory case, the most memory that opening its components took a device is beside the size of their files.

    python benchmarks/cluster_needed.py [--cases camera,energy,rate,memory] [--runs 15] [--effort 0.2] [--json]

It takes root, Linux, and taglio[cluster].
"""

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from glob import escape
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import cluster as study
from cases import CACHE, CASES, end_once, markdown, paths, write
from decoder import encoder
from taglio import artifact
from taglio.cluster import file as cluster_file
from taglio.cluster.emulate.devices import start_devices
from taglio.cluster.emulate.emulation import Emulation
from taglio.cluster.engine.probe import written
from taglio.components.build import read
from taglio.errors import Infeasible
from taglio.flow import stages
from taglio.flow.placing import place
from taglio.flow.workspace import COMPONENTS, GRAPH
from taglio.model.graph import Graph
from taglio.plan.result import Plan

BOUND, CUTS, LIMIT_S = 0.05, 10, 4.0
# Of what the whole model needs, what each device has.
SHARE = 0.45
YOLO, TOKENS, STREAM = "yolo11n-seg", 16, "throughput"
# Layers and width of the transformers.
SMALLER, LARGER = (4, 512), (12, 768)
TWO = """start = "camera"
[device.camera]
cpus = 0.1
threads = 1
active_watts = 1
scale = { of = "server", factor = 5 }
[device.server]
cpus = 0.5
threads = 1
active_watts = 60
"""
FOUR = """start = "camera"
[device.camera]
cpus = 0.2
threads = 1
scale = { of = "server", factor = 1 }
[device.server]
cpus = 0.2
threads = 1
[device.second]
like = "server"
[device.third]
like = "server"
"""
# Profiled beside the devices, none of which has memory for the model.
SMALL = 'start = "camera"\n' + "".join(
    f'[device.{name}]\nthreads = 1\nprofile = "profile.json"\nmemory_mb = 100000\n'
    for name in ("camera", "server", "second", "third")
)
# A plan and the workspace that it lies in; None where none keeps the limits.
Found = tuple[Path, Plan] | None


@dataclass(frozen=True, slots=True)
class Setting:
    """A network on emulated devices: its workspace, and the cluster as it was measured."""

    made: Emulation
    work: Path
    file: Path

    def plan(self, name: str, **asked: Any) -> Found:
        """A plan in a workspace of its own."""
        folder = self.work.parent / "plans" / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.work, folder, symlinks=True)
        try:
            return folder, place(folder, self.file, time_limit_s=LIMIT_S, **asked).answer.plans[0]
        except Infeasible:
            return None

    def ways(self, asked: dict[str, Any]) -> dict[str, Found]:
        """What each way makes of what is asked."""
        stream = "objective" in asked
        names = [each.name for each in self.made.cluster.devices if not each.like]
        alone = [self.plan(f"{name}-alone", max_error=BOUND, keep_off=self.all_but(name), **asked) for name in names]
        cut = [self.plan(f"cut{index}", max_error=0.0, pins=pins, **asked) for index, pins in enumerate(self.cuts())]
        best = [
            min((each for each in found if each is not None), key=lambda each: cost(each[1], stream), default=None)
            for found in (alone, cut)
        ]
        return {
            "best single device": best[0],
            "Neurosurgeon": best[1],
            "float anywhere": self.plan("float", max_error=0.0, **asked),
            "taglio": self.plan("ours", max_error=BOUND, **asked),
        }

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


# What is asked of the planner, and the case in words.
Asked = tuple[dict[str, Any], str]


def camera(_: Setting) -> Asked:
    return {}, "a camera of a tenth of a core"


def energy(setting: Setting) -> Asked:
    plans = [setting.plan(aim, max_error=BOUND, objective=aim) for aim in ("energy", "latency")]
    joules = [each[1].predicted_joules.value for each in plans if each and each[1].predicted_joules]
    limit = sqrt(joules[0] * joules[1])
    return {"max_energy_j": limit}, f"{limit:.3g} J a request; the fastest takes {joules[1]:.3g} J"


def rate(setting: Setting) -> Asked:
    off = (setting.all_but("camera", "server"), setting.all_but("camera", "server", "second", "third"))
    plans = [setting.plan("room", max_error=BOUND, objective=STREAM, keep_off=each) for each in off]
    two, four = (1.0 / cost(each[1], stream=True) for each in plans if each)
    return {"objective": STREAM}, f"{sqrt(two * four):.1f} requests/s; two devices have room for {two:.1f}"


def memory(setting: Setting) -> Asked:
    whole = setting.plan("whole", max_error=BOUND, keep_off=setting.all_but("server"))
    assert whole is not None, "without limits there is a plan"
    needs = max(each.peak_bytes for each in whole[1].usage)
    known = cluster_file.load(setting.file)
    small = replace(known, devices=tuple(replace(each, memory_bytes=SHARE * needs) for each in known.devices))
    setting.file.write_text(written(small, ()))
    return {}, f"{SHARE * needs / 1e6:.1f} MB a device; the whole needs {needs / 1e6:.1f} MB in int8"


# Devices, links between all of them (Mbit/s, ms), network, and what is asked.
SETTINGS: dict[str, tuple[str, tuple[int, float], str | tuple[int, int], Callable[[Setting], Asked]]] = {
    "camera": (TWO, (100, 5.0), YOLO, camera),
    "energy": (TWO, (100, 5.0), YOLO, energy),
    "rate": (FOUR, (100, 1.0), SMALLER, rate),
    "memory": (SMALL, (100, 1.0), LARGER, memory),
}


def cluster_of(case: str) -> Path:
    """The cluster file of a case, in a folder that it shares with cases of the same cluster and network."""
    devices, link, network, _ = SETTINGS[case]
    names = [each.name for each in cluster_file.parse(devices).devices if not each.like]
    text = devices + "".join(study.LINK.format("", *pair, *link) for pair in combinations(names, 2))
    folder = CACHE / "cluster-needed" / hashlib.sha256(f"{network}{text}".encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cluster.toml").write_text(text)
    return folder / "cluster.toml"


def prepared(made: Emulation, folder: Path, network: str | tuple[int, int], effort: float) -> Path:
    """The workspace of a network: profiled on each device, or once beside them; errors studied beside them."""
    work = folder / "work"
    if (work / "error.json").exists():
        return work
    if not isinstance(network, str):
        model, data = folder / "encoder.onnx", folder / "x.npy"
        onnx.save(encoder(*network, TOKENS), model)
        np.save(data, np.random.default_rng(1).standard_normal((24, 1, TOKENS, network[1]), np.float32))
        given: list[object] = []
    else:
        (model, data), given = paths(CASES[network]), ["--preprocess", CASES[network].preprocess]
    given += ["--data", data, "--scheme", study.SCHEME, "--runtime", "onnxruntime", "--threads", 1]
    own = [each.name for each in made.cluster.devices if each.profile == f"profiles/{each.name}.json"]
    outs = {name: folder / (name or "work") for name in own or [""]}
    for name, out in outs.items():
        study.run(made if name else None, name, "profile", model, *given, "--effort", effort, "-o", out)
    if own:
        shutil.copytree(outs[own[-1]], work, dirs_exist_ok=True)
        (work / "profiles").mkdir()
        for name, out in outs.items():
            shutil.copy(out / "profile.json", work / "profiles" / f"{name}.json")
    study.run(None, "", "error", work, "--effort", effort)
    return work


def rows_of(case: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What each way does in a case, predicted and measured."""
    file = cluster_of(case)
    with Emulation(file) as made:
        start_devices(made)
        work = prepared(made, file.parent, SETTINGS[case][2], options.effort)
        setting = Setting(made, work, study.probed(made, file, "lan"))
        asked, told = SETTINGS[case][3](setting)
        stream = "objective" in asked
        for way, found in setting.ways(asked).items():
            row: dict[str, Any] = {"case": case, "asked": told, "way": way}
            if found is not None:
                stages.build(found[0])
                said = study.measured(made, setting.file, options.runs, stream, [found[0]])
                row |= result(*found, said.get(str(found[0]), {}), stream)
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
        "joules": sum(each["modelled_joules"] + each["sent_joules"] for each in run["energy"]),
        "files_mb": files,
        "opened_mb": {each["device"]: (each["peak_bytes"] - each["before_bytes"]) / 1e6 for each in run["loaded"]},
        "machine_busy": run["machine_busy"],
    }


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    start = [row["case"], row["asked"], row["way"]]
    if "predicted" not in row:
        return [*start, "", "none keeps the limits", "", "", ""]
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
