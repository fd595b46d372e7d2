"""Does a cluster do what its plan said? An emulated camera, gateway and server, with taglio's devices running in them.

The devices are namespaces of this machine with processor quotas, the links hold packets back (taglio cluster emulate):
half a core, one core, all there is; 5 to 100 Mbit/s; 5 to 50 ms. Every device profiles each network itself, under its
quota, and every plan's precisions once more, after which it is planned again: as `taglio optimize --cluster` does it.
Then, for plans over one, two and three devices:

* prediction: predicted latency beside what requests, one at a time, take in the long run;
* throughput: requests a second with several on their way, beside the predicted rate of the busiest device or link.

    python benchmarks/cluster.py [--cases a,b] [--parts prediction,throughput] [--runs 20]

It takes root, Linux, and taglio[cluster].
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from glob import escape
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cases import CACHE, CASES, end_once, markdown, open_case, paths, write
from taglio import artifact
from taglio.cluster import file as cluster_file
from taglio.cluster.devices import Cluster
from taglio.cluster.emulate.emulation import Emulation, emulated, start_devices
from taglio.cluster.engine.connect import connect
from taglio.cluster.engine.optimize import Profiles, timed_plan
from taglio.cluster.engine.remote_profile import refine_devices
from taglio.cluster.engine.run import run_on_cluster
from taglio.cluster.planning.place import Answer
from taglio.error.model import ErrorModel
from taglio.errors import Infeasible, TaglioError
from taglio.flow import stages
from taglio.flow.place import candidate, place
from taglio.flow.placing import CLUSTER, opened
from taglio.flow.workspace import GRAPH, PLAN, PROFILE, keep_plan, read_error, reopen_profiled
from taglio.lab.work import Work
from taglio.model.graph import Graph
from taglio.plan.result import Plan
from taglio.profile.busy import STAT, ticks
from taglio.profile.result import Profile

SCHEME = "qdq-u8s8-asym-pc"
DEVICES = ("camera", "gateway", "server")
# (name, camera-gateway Mbit/s, ms; gateway-server and camera-server the same but for the last two)
SCENARIOS = {"lan": (100, 5), "wifi": (20, 10), "field": (5, 50)}
TOML = """start = "camera"
[device.camera]
cpus = 0.5
threads = 1
[device.gateway]
cpus = 1
threads = 1
[device.server]
threads = 2
"""
LINK = """[[link]]
from = "{0}"
to = "{1}"
both = true
bandwidth_mbit_s = {2}
latency_ms = {3}
"""
# Time limit of a plan: a prediction is to be right, whatever the plan.
PLAN_S = 1.0
# Requests of a plan fill as many seconds, in each of several rounds fewer, if they are not more than so many.
LEAST_S, ROUND_S, MOST_S = 10.0, 5.0, 30.0
FEWEST_RUNS, MOST_RUNS = 6, 5000
# Other tenants of the machine come and go within seconds: shorter requests than this have so many rounds, of which the
# median counts.
SHORT_S, ROUNDS = 0.15, 3
# On a machine that is busy for a larger share of the time, work rarely finds a free processor.
FULL = 0.9
# What the driver says after each command.
DONE = "done\n"
PAIRS = (("camera", "gateway"), ("gateway", "server"), ("camera", "server"))


@dataclass(frozen=True)
class Variant:
    """A plan to be made: the share of blocks, in order, that ends on each device; none: where the planner likes."""

    name: str
    scenario: str
    ends: tuple[tuple[str, float], ...]
    max_error: float


def written_cluster(folder: Path) -> Path:
    """The file of the first scenario, with those of the others beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figures in SCENARIOS.items():
        (folder / f"{name}.toml").write_text(TOML + "".join(LINK.format(*pair, *figures) for pair in PAIRS))
    return folder / "lan.toml"


@cache
def probed(emulation: Emulation, file: Path, name: str) -> Path:
    """The cluster in one scenario, its links and devices' messages measured as a user would, written to a file."""
    path = file.parent / f"probed-{name}.toml"
    emulation.become(scenario(file, name))
    run(emulation, "camera", "cluster", "probe", file.with_stem(name), "--write", path)
    return path


def scenario(file: Path, name: str) -> Cluster:
    return cluster_file.load(file.with_stem(name))


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "taglio", *(str(word) for word in words)]


def run(emulation: Emulation | None, device: str, *words: object) -> str:
    """Run one of taglio's commands, on an emulated device or (None) beside them. Raises where it fails."""
    if emulation is None:
        done = subprocess.run(command(*words), capture_output=True, text=True, check=False)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        process = emulation.start(device, command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate()
        code = process.returncode
    if code != 0:
        raise RuntimeError(f"{' '.join(str(word) for word in words)} on {device}: exit code {code}: {err[-800:]}")
    return out


def prepare(emulation: Emulation, file: Path, name: str, effort: float) -> Path:
    """The workspace of a network: profiled by every device itself, errors studied once beside them."""
    model, data = paths(CASES[name])
    home = CACHE / "cluster" / name
    # In bfloat16, which `auto` may choose, no plan is as exact as those that are to be float.
    runtime = ["--runtime", "onnxruntime"]
    given = ["--data", data, "--preprocess", CASES[name].preprocess, "--scheme", SCHEME, *runtime]
    done = home / "prepared.json"
    blocks = [block.name for block in open_case(name).graph.blocks]  # other code may group operators otherwise
    key = {"cluster": file.read_text(), "effort": effort, "tools": artifact.tools(), "blocks": blocks, "given": runtime}
    if done.exists() and json.loads(done.read_text()) == key:
        return home / "work"
    shutil.rmtree(home, ignore_errors=True)
    (home / "work").mkdir(parents=True)
    for device in emulation.cluster.devices:
        begun = time.monotonic()
        out = home / "work" if device.name == "server" else home / device.name
        run(
            emulation, device.name, "profile", model, *given, "--threads", device.threads, "--effort", effort, "-o", out
        )
        (home / "work" / "profiles").mkdir(exist_ok=True)
        shutil.copy(out / "profile.json", home / "work" / "profiles" / f"{device.name}.json")
        print(f"{name}: {device.name} profiled in {time.monotonic() - begun:.0f} s", flush=True)
    run(None, "", "error", home / "work", "--effort", 0.2)
    done.write_text(json.dumps(key))
    return home / "work"


def pins(graph: Graph, ends: tuple[tuple[str, float], ...]) -> tuple[tuple[str, str], ...]:
    """Blocks in order, the first share on the first device and so on."""
    names = [block.name for block in graph.blocks]
    pinned, begin = [], 0
    for device, share in ends:
        end = round(share * len(names))
        pinned += [(name, device) for name in names[begin:end]]
        begin = end
    return tuple(pinned)


def limits(folder: Path, variant: Variant) -> dict[str, Any]:
    """What a variant asks of the planner."""
    graph = artifact.load(folder / f"{GRAPH}.json", GRAPH, Graph)
    where = [f"{device}={escape(block)}" for block, device in pins(graph, variant.ends)]
    return {"max_error": variant.max_error, "pins": where}


def variants() -> Iterator[Variant]:
    """Thirteen plans: every device alone, pairs, all three, and where the planner likes."""
    for name in SCENARIOS:
        yield Variant("free", name, (), 0.05)
    yield Variant("camera", "lan", (("camera", 1.0),), 0.05)
    yield Variant("gateway", "lan", (("gateway", 1.0),), 0.05)
    yield Variant("server", "wifi", (("server", 1.0),), 0.05)
    yield Variant("server-float", "field", (("server", 1.0),), 0.0)
    yield Variant("camera|server", "wifi", (("camera", 0.3), ("server", 1.0)), 0.05)
    yield Variant("camera|gateway", "lan", (("camera", 0.2), ("gateway", 1.0)), 0.05)
    yield Variant("gateway|server", "wifi", (("gateway", 0.5), ("server", 1.0)), 0.05)
    yield Variant("three", "lan", (("camera", 0.2), ("gateway", 0.6), ("server", 1.0)), 0.05)
    yield Variant("three-float", "wifi", (("camera", 0.1), ("gateway", 0.4), ("server", 1.0)), 0.0)
    yield Variant("three-slow", "field", (("camera", 0.3), ("gateway", 0.7), ("server", 1.0)), 0.05)


@cache
def network(work: Path) -> tuple[Work, Profile, ErrorModel]:
    """A network, opened once for all of its plans: errors that were measured and sessions stay."""
    model, measured = reopen_profiled(work)
    return model, measured, read_error(work, model, measured)


def make(emulation: Emulation, work: Path, file: Path, variant: Variant, *, time_limit_s: float = 3.0) -> Path:
    """Plan and build a variant in a folder of its own, for the links as they were measured."""
    folder = work.parent / "plans" / f"{variant.name.replace('|', '-')}-{variant.scenario}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(work, folder, symlinks=True)
    cluster, used = opened(file)
    model, measured, error = network(work)

    def placed(profiles: Profiles, timed: Plan | None, _: float) -> Answer:
        there = candidate(model, measured, error, profiles=profiles, **limits(folder, variant))
        kept = () if timed is None else (timed,)
        return place(there, cluster, precisions_of=kept, time_limit_s=time_limit_s)

    # Other devices cannot be chosen, so that their times do not matter.
    devices = [device for device, _ in variant.ends] or DEVICES

    def refined(profiles: Profiles, plan: Plan) -> Profiles:
        keep(folder, profiles)
        keep_plan(folder, plan)
        if problems := driver(emulation).ask("again", file, folder, *devices):
            raise RuntimeError(f"{folder}: its plan was not timed: {problems}")
        return read_profiles(folder)

    plan, profiles = timed_plan(placed, refined, read_profiles(folder))
    keep(folder, profiles)
    keep_plan(folder, plan)
    artifact.save(folder / f"{CLUSTER}.json", CLUSTER, plan.model_sha256, used)
    stages.build(folder)
    return folder


class Driver:
    """A process on the start device that times plans and runs them, one after another: to start one takes half a core
    longer than to time a plan."""

    def __init__(self, emulation: Emulation) -> None:
        self.emulation = emulation
        self.process: subprocess.Popen[str] | None = None

    def ask(self, *words: object) -> list[dict[str, Any]]:
        """What one of COMMANDS tells; a process that has ended is started again for the next."""
        if self.process is None or self.process.poll() is not None:
            program = [sys.executable, __file__, "--drive"]
            self.process = self.emulation.start(
                "camera", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([str(word) for word in words]), file=self.process.stdin, flush=True)
        lines: list[dict[str, Any]] = []
        for line in self.process.stdout:
            if line == DONE:
                return lines
            if line.startswith("{"):
                lines.append(json.loads(line))
        return [*lines, {"error": f"its process ended with exit code {self.process.wait()}"}]


@cache
def driver(emulation: Emulation) -> Driver:
    """The driver of an emulation, which ends with it."""
    return Driver(emulation)


def drive() -> int:
    """On the start device: do what comes on standard input."""
    for line in sys.stdin:
        name, *words = json.loads(line)
        try:
            COMMANDS[name](words)
        except TaglioError as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        print(DONE, end="", flush=True)
    return 0


def again(words: list[str]) -> int:
    """On the start device: have a plan's precisions timed on some devices."""
    file, name, *devices = words
    folder, cluster = Path(name), cluster_file.load(Path(file))
    work, _ = reopen_profiled(folder)
    plan = artifact.load(folder / f"{PLAN}.json", PLAN, Plan)
    with connect(cluster.start) as connection:
        profiles = {name: profile for name, profile in read_profiles(folder).items() if name in devices}
        keep(folder, refine_devices(connection, work, cluster, profiles, plan))
    return 0


def read_profiles(folder: Path) -> Profiles:
    """The profiles in a workspace, by device."""
    return {device: artifact.load(folder / "profiles" / f"{device}.json", PROFILE, Profile) for device in DEVICES}


def keep(folder: Path, profiles: Profiles) -> None:
    for device, profile in profiles.items():
        artifact.save(folder / "profiles" / f"{device}.json", PROFILE, profile.model_sha256, profile)


def inside(words: list[str]) -> int:
    """On the start device: run the plan in a folder, a line of JSON for each run: `single` requests, a `stream`, or
    `once`, which is as many single ones as are asked for, in one round."""
    file, runs, stream, folder = words
    cluster = cluster_file.load(Path(file))
    plan = artifact.load(Path(folder) / f"{PLAN}.json", PLAN, Plan)
    each_s = max(plan.predicted_latency_s.value, 1e-4)
    least_s, most_s = ROUND_S if each_s <= SHORT_S else LEAST_S, MOST_S * (3 if stream == "stream" else 1)
    count = min(max(int(runs), int(least_s / each_s)), max(FEWEST_RUNS, int(most_s / each_s)), MOST_RUNS)
    for _ in range(1 if stream == "once" or each_s > SHORT_S else ROUNDS):
        before = ticks(STAT.read_text())
        count = int(runs) if stream == "once" else count
        result = run_on_cluster(Path(folder), cluster, count, stream=stream == "stream")
        busy, every = (now - then for now, then in zip(ticks(STAT.read_text()), before, strict=True))
        run = {**json.loads(msgspec.json.encode(result)), "machine_busy": busy / max(every, 1)}
        print(json.dumps({"run": run}), flush=True)
    return 0


def measured(emulation: Emulation, file: Path, runs: int, stream: bool, folder: Path) -> dict[str, Any]:
    """What `inside` said of a plan: of several runs that of median latency or rate, and the figures of all."""
    answers = driver(emulation).ask("inside", file, runs, "stream" if stream else "single", folder)
    good = sorted((answer["run"] for answer in answers if "run" in answer), key=partial(figure, stream=stream))
    if not good:
        return answers[0] if answers else {"error": "no answer"}
    return {"run": good[(len(good) - 1) // 2], "rounds": [figure(run, stream=stream) for run in good]}


COMMANDS = {"again": again, "inside": inside}


def figure(run: dict[str, Any], *, stream: bool) -> float:
    """What a run is about: requests a second, or seconds of one."""
    return float(run["rate_per_s"] if stream else run["latency"]["steady_s"])


def study(emulation: Emulation, file: Path, name: str, options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Add the rows of one network: prediction and throughput of its variants, each planned and then run at once, as a
    user would, because the machine is not equally fast for long."""
    work = prepare(emulation, file, name, options.effort)
    links = {name: probed(emulation, file, name) for name in SCENARIOS}
    for variant in variants():
        emulation.become(scenario(file, "lan"))  # models and inputs are sent
        try:
            folder = make(emulation, work, links[variant.scenario], variant, time_limit_s=PLAN_S)
        except Infeasible as error:
            print(f"{name} {variant.name}: {error}")
            continue
        plan = artifact.load(folder / f"{PLAN}.json", PLAN, Plan)
        emulation.become(scenario(file, variant.scenario))
        for stream in [part == "throughput" for part in options.parts.split(",")]:
            runs = options.runs * (3 if stream else 1)
            figures = measured(emulation, links[variant.scenario], runs, stream, folder)
            row = {"case": name, **asdict(variant), "stream": stream, **figures}
            row["devices"] = sorted({placement.device for placement in plan.placements})
            rows.append(row)
            print(*table_row(row), sep=", ", flush=True)


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        return inside(sys.argv[2:])
    if sys.argv[1:2] == ["--drive"]:
        return drive()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits,magika,ultraface-rfb-320")
    parser.add_argument("--parts", default="prediction,throughput")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--effort", type=float, default=0.3)
    options = parser.parse_args()
    file = written_cluster(CACHE / "cluster")
    rows: list[dict[str, Any]] = []
    names = options.cases.split(",")
    for name in names:
        if name not in CASES:
            parser.error(f"{name} is none of {', '.join(CASES)}")
    end_once()
    begun = time.monotonic()
    try:
        with emulated(file) as emulation:
            start_devices(emulation)
            print(f"devices up after {time.monotonic() - begun:.0f} s", flush=True)
            for name in names:
                try:
                    study(emulation, file, name, options, rows)
                except FileNotFoundError as error:
                    print(f"skipped {error}")
    finally:
        if rows:
            report(rows, options)
    return 0


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write what was measured, also of a run that was stopped."""
    figures = summary(rows)
    heads = ["network", "plan", "scenario", "devices", "predicted", "measured", "ratio"]
    table = markdown(heads, [table_row(row) for row in rows])
    path = write("cluster", {"options": vars(options), "summary": figures, "rows": rows}, table)
    print(f"{figures}\nwrote {path}")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and largest |predicted / measured - 1|, and the least share of the predicted rate. What crosses a link is
    told for itself: what stays on half a core is as fast as the machine's other tenants leave it. So are streams that
    left the machine no time."""
    single = [row["run"] for row in rows if not row["stream"] and "run" in row]
    off = [abs(result["ratio"] - 1.0) for result in single]
    linked = [one for one, result in zip(off, single, strict=True) if result["crossings"]]
    streams = [row["run"] for row in rows if row["stream"] and row.get("run", {}).get("predicted_rate_per_s")]
    share, crowded = (
        [stream["rate_per_s"] / stream["predicted_rate_per_s"] for stream in streams if full(stream) == wanted]
        for wanted in (False, True)
    )
    return {
        "plans": len(off),
        "mean_off": float(np.mean(off)) if off else None,
        "largest_off": max(off, default=None),
        "plans_over_links": len(linked),
        "mean_off_over_links": float(np.mean(linked)) if linked else None,
        "largest_off_over_links": max(linked, default=None),
        "streams": len(share),
        "least_share": min(share, default=None),
        "median_share": float(np.median(share)) if share else None,
        "streams_of_a_full_machine": len(crowded),
        "their_least_share": min(crowded, default=None),
        "failed": [f"{row['case']} {row['name']}: {row.get('error')}" for row in rows if "run" not in row],
    }


def full(run: dict[str, Any]) -> bool:
    """Whether the machine that emulates all devices had no time left: then they waited for each other."""
    return bool(run["machine_busy"] > FULL)


def table_row(row: dict[str, Any]) -> list[str]:
    start = [row["case"], row["name"] + (" (stream)" if row["stream"] else ""), row["scenario"]]
    start.append(" ".join(row["devices"]))
    if "run" not in row:
        return [*start, "", "", str(row.get("error"))]
    result = row["run"]
    if row["stream"]:
        wanted, got = result["predicted_rate_per_s"], result["rate_per_s"]
        share = f"{got / wanted:.3f}" + (" (machine full)" if full(result) else "")
        return [*start, f"{wanted:.2f} /s", f"{got:.2f} /s", share]
    wanted, got = result["predicted_s"] * 1e3, result["latency"]["steady_s"] * 1e3
    return [*start, f"{wanted:.1f} ms", f"{got:.1f} ms", f"{result['ratio']:.3f}"]


if __name__ == "__main__":
    sys.exit(main())
