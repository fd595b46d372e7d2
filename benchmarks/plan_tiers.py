"""Up to how many devices is planning practical? A camera, gateways and servers, 5, 20 and 100 devices in all.

A gateway takes a tenth of the camera's time and a server a fiftieth; gateways are alike and so are servers. Camera and
gateways have links of 100 Mbit/s and 2 ms, gateways and servers of 1 Gbit/s and 1 ms, camera and servers of 20 Mbit/s
and 20 ms. Networks are those of plan_networks.py: made-up costs, so that nothing is measured. A plan for a stream,

* grouped: devices that are alike take turns (taglio's way);
* apart: a device for each component, as if none were alike; only up to forty, where nothing is proven any more.

For each: seconds of the solve, those of processors meanwhile, gap, devices used and predicted requests a second.

    python benchmarks/plan_tiers.py [--cases ultraface-rfb-320] [--devices 5,20,100] [--time-limit-s 20] [--json]
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from typing import Any

from cases import markdown, write
from plan_networks import workload
from taglio.cluster.devices import Cluster
from taglio.cluster.file import parse
from taglio.cluster.planning.place import Planner, place
from taglio.cluster.planning.workload import parse_objective
from taglio.plan.result import GAP

MOST_APART = 40
# Speed beside the camera's, and links: Mbit/s, ms.
GATEWAY, SERVER = 0.1, 0.02
LINKS = {("camera", "gateway"): (100, 2), ("gateway", "server"): (1000, 1), ("camera", "server"): (20, 20)}
LINK = '[[link]]\nfrom = "{}"\nto = "{}"\nboth = true\nbandwidth_mbit_s = {}\nlatency_ms = {}\n'


def tiers(devices: int) -> Cluster:
    """A camera, two fifths gateways, the rest servers."""
    gateways = max(2, 2 * devices // 5)
    counts = {"gateway": gateways, "server": devices - 1 - gateways}
    names = {tier: [tier, *(f"{tier}{number}" for number in range(2, count + 1))] for tier, count in counts.items()}
    text = 'start = "camera"\n[device.camera]\n'
    for tier, factor in (("gateway", GATEWAY), ("server", SERVER)):
        text += f'[device.{tier}]\nscale = {{ of = "camera", factor = {factor} }}\n'
        text += "".join(f'[device.{name}]\nlike = "{tier}"\n' for name in names[tier][1:])
    return parse(text + "".join(LINK.format(*ends, *link) for ends, link in LINKS.items()))


def row(name: str, devices: int, way: str, time_limit_s: float) -> dict[str, Any]:
    """One plan."""
    cluster = tiers(devices)
    work = workload(name, cluster, 0)
    profiles = {device.name: work.profiles[device.like or device.name] for device in cluster.devices}
    works, aim = [replace(work, profiles=profiles)], parse_objective("throughput")
    begun, busy_s = time.perf_counter(), time.process_time()
    if way == "grouped":
        answer = place(works, cluster, aim, time_limit_s=time_limit_s)
    else:
        answer = Planner(works, cluster, aim, (), GAP, time_limit_s).answer(why=True)
    took_s, busy_s, (plan,) = time.perf_counter() - begun, time.process_time() - busy_s, answer.plans
    return {
        "network": name,
        "devices": devices,
        "way": way,
        "solve_s": took_s,
        "processor_s": busy_s,
        "gap": answer.gap,
        "used": sum(map(len, plan.machines().values())),
        "predicted_per_s": 1.0 / answer.value,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="ultraface-rfb-320")
    parser.add_argument("--devices", default="5,20,100")
    parser.add_argument("--time-limit-s", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.cases.split(","):
        for devices in map(int, options.devices.split(",")):
            for way in ("grouped", "apart") if devices <= MOST_APART else ("grouped",):
                rows.append(row(name, devices, way, options.time_limit_s))
                print(rows[-1], file=sys.stderr, flush=True)
    lines = [
        [
            plan["network"], str(plan["devices"]), plan["way"], f"{plan['solve_s']:.1f}", f"{plan['processor_s']:.1f}",
            f"{plan['gap']:.2%}", str(plan["used"]), f"{plan['predicted_per_s']:.1f}",
        ]
        for plan in rows
    ]  # fmt: skip
    head = ["network", "devices", "way", "solve s", "processor s", "gap", "used", "predicted /s"]
    table = markdown(head, lines)
    print(json.dumps(rows) if options.json else table)
    path = write("plan_tiers", {"options": vars(options), "rows": rows}, table)
    print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
