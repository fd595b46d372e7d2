"""What is lost when a device or a link is? Faults in an emulated cluster under load.

The devices and links of cluster.py (100 Mbit/s, 5 ms), one plan over all three devices, one request after another,
every answer held against the same components in one process (a wrong one ends the run with an error). While they run:
each device but the start device is killed with signal 9, all its processes, and started again ten seconds later; a
link is cut for five seconds; a link carries a tenth for fifteen; a device has a tenth of its processor for fifteen.

    python benchmarks/cluster_faults.py [--case ultraface-rfb-320] [--runs 800] [--faults kill-server,cut]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cluster as study
from cases import CACHE, end_once, markdown, write
from taglio.cluster.devices import Cluster
from taglio.cluster.emulate import quota
from taglio.cluster.emulate.emulation import Emulation, emulated, start_device, start_devices

LINK = ("gateway", "server")
THREE = study.Variant("three", "lan", (("camera", 0.2), ("gateway", 0.6), ("server", 1.0)), 0.05)


def kill(emulation: Emulation, device: str) -> None:
    """All its processes at once; started again ten seconds later."""
    while pids := quota.processes(emulation.record.group / device):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    time.sleep(10.0)
    start_device(emulation, device).wait()


def cut(emulation: Emulation) -> None:
    links = tuple(link for link in emulation.cluster.links if {link.source, link.target} != {*LINK})
    changed(emulation, replace(emulation.cluster, links=links), 5.0)


def slow_link(emulation: Emulation) -> None:
    now = emulation.cluster
    for ends in (LINK, LINK[::-1]):
        link = now.link(*ends)
        assert link is not None
        now = now.with_link(replace(link, bandwidth_bytes_per_s=0.1 * link.bandwidth_bytes_per_s))
    changed(emulation, now, 15.0)


def slow_device(emulation: Emulation) -> None:
    cpus = emulation.cluster.device("gateway").cpus
    changed(emulation, emulation.cluster.with_device("gateway", cpus=0.1 * cpus), 15.0)


def changed(emulation: Emulation, now: Cluster, seconds: float) -> None:
    emulation.become(now)
    time.sleep(seconds)
    emulation.become(emulation.cluster)


FAULTS: dict[str, Callable[[Emulation], None]] = {
    "none": lambda _: None,
    "kill-gateway": lambda emulation: kill(emulation, "gateway"),
    "kill-server": lambda emulation: kill(emulation, "server"),
    "cut": cut,
    "slow-link": slow_link,
    "slow-device": slow_device,
}


def one(emulation: Emulation, links: Path, folder: Path, fault: str, runs: int, limit_s: float) -> dict[str, Any]:
    """Run the requests, let the fault happen after five seconds, and say what came of them."""
    words = [sys.executable, study.__file__, "--inside", str(links), str(runs), "once", str(folder)]
    begun = time.monotonic()
    with emulation.start("camera", words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(8.0)
        early = process.poll() is not None
        FAULTS[fault](emulation)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += f"not done after {limit_s:.0f} s"
    answer = json.loads(out.splitlines()[-1]) if out.strip() else {"error": err.strip()[-300:]}
    row: dict[str, Any] = {"fault": fault, "asked": runs, "took_s": time.monotonic() - begun, "too_late": early}
    if "run" not in answer:
        return {**row, "answered": None, "error": answer["error"]}
    result = answer["run"]
    return {**row, "answered": result["requests"], "error": None, "run": result}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="ultraface-rfb-320")
    parser.add_argument("--runs", type=int, default=800)
    parser.add_argument("--limit-s", type=float, default=120.0)
    parser.add_argument("--effort", type=float, default=0.3)
    parser.add_argument("--faults", default=",".join(FAULTS))
    options = parser.parse_args()
    end_once()
    file = study.written_cluster(CACHE / "cluster")
    rows: list[dict[str, Any]] = []
    try:
        for fault in options.faults.split(","):
            with emulated(file) as emulation:  # anew for each: one fault's remains are not another's
                start_devices(emulation)
                work = study.prepare(emulation, file, options.case, options.effort)
                links = study.probed(emulation, file, "lan")
                folder = study.make(emulation, work, links, THREE)
                emulation.become(emulation.cluster)
                row = one(emulation, links, folder, fault, options.runs, options.limit_s)
            rows.append(row)
            short = {key: value for key, value in row.items() if key != "run"}
            more = {key: row["run"][key] for key in ("interruptions", "returns", "distance")} if "run" in row else {}
            print(json.dumps({**short, **more}), flush=True)
    finally:
        table = markdown(
            [
                "fault",
                "asked",
                "answered",
                "same bits",
                "largest distance",
                "interruptions",
                "recovered in",
                "changes of plan",
                "error",
            ],
            [cells(row) for row in rows],
        )
        print(f"{table}\nwrote {write('cluster_faults', {'options': vars(options), 'rows': rows}, table)}")
    return 0


def cells(row: dict[str, Any]) -> list[str]:
    start = [row["fault"], str(row["asked"])]
    if "run" not in row:
        return [*start, "", "", "", "", "", "", str(row["error"])]
    result = row["run"]
    stops = result["interruptions"]
    recovered = ", ".join(f"{stop['recovery_s']:.1f} s" for stop in stops)
    returns = ", ".join(f"first plan again from request {request}" for request in result["returns"])
    return [
        *start,
        str(row["answered"]),
        str(result["identical"]),
        f"{result['distance']:.1e}",
        str(len(stops)),
        recovered,
        returns,
        "too late" if row["too_late"] else "",
    ]


if __name__ == "__main__":
    sys.exit(main())
