"""Does an emulated cluster do what its file says? Links and quotas against the figures in the file.

Two devices with one link between them, set to each pair of bandwidth and latency in turn. Over one TCP connection:
round trips of one byte, and a megabyte with one byte back, against latency and bytes / bandwidth of the file. Then a
fixed piece of work on a device with and without a quota, without a pause and after idling (which a quota lets by at
full speed as far as it reaches).

    python benchmarks/emulation.py [--runs 40]        (root, Linux)
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from cases import markdown, write
from taglio.cluster.devices import Cluster, Link
from taglio.cluster.emulate import quota
from taglio.cluster.emulate.emulation import Emulation
from taglio.cluster.file import load

LINKS = [(5, 50), (20, 20), (50, 10), (100, 5), (1000, 0)]  # Mbit/s, ms
SIZE = 1_000_000
SINK, SENDER = (Path(__file__).with_name(name) for name in ("link_sink.py", "link_sender.py"))
CLUSTER = """start = "a"
[device.a]
[device.b]
[[link]]
from = "a"
to = "b"
both = true
bandwidth_mbit_s = 100
latency_ms = 5
"""
WORK = """
import json, sys, time
def work():
    start = time.perf_counter()
    x = 0
    for i in range(int(sys.argv[1])):
        x += i * i
    return time.perf_counter() - start
pause = float(sys.argv[2])
took = []
for _ in range(int(sys.argv[3])):
    time.sleep(pause)
    took.append(work())
print(json.dumps(took))
"""


def links(made: Emulation, runs: int) -> list[dict[str, Any]]:
    """Round trips and megabytes over each kind of link."""
    rows = []
    for megabits, milliseconds in LINKS:
        both = [Link(*ends, megabits / 8e-6, milliseconds / 1e3) for ends in (("a", "b"), ("b", "a"))]
        made.become(Cluster("a", made.cluster.devices, tuple(both)))
        before, begun = made.counts(), time.monotonic()
        words = [sys.executable, str(SENDER), made.addresses["b"], str(runs), "1", str(SIZE)]
        with made.start("a", words, stdout=subprocess.PIPE) as process:
            short, long = (np.array(each) for each in json.loads(process.communicate()[0]))
        after, took = made.counts(), time.monotonic() - begun
        passed = sum(x.passed_bytes - y.passed_bytes for x, y in zip(after.links, before.links, strict=True))
        wanted_short, wanted_long = milliseconds / 500, milliseconds / 500 + SIZE / (megabits / 8e-6)
        rows.append(
            {
                "megabits": megabits, "latency_ms": milliseconds,
                "round_trip_s": float(np.median(short)), "round_trip_wanted_s": wanted_short,
                "round_trip_p95_s": float(np.percentile(short, 95)),
                "megabyte_s": float(np.median(long)), "megabyte_wanted_s": wanted_long,
                "megabyte_p95_s": float(np.percentile(long, 95)),
                "line_cpu_share": (after.cpu_s - before.cpu_s) / took,
                "line_cpu_s_per_100_megabytes": (after.cpu_s - before.cpu_s) / passed * 1e8,
            }
        )  # fmt: skip
    return rows


def quotas(made: Emulation, runs: int) -> list[dict[str, Any]]:
    """A fixed piece of work under quotas, as multiples of its time without one measured just before and after."""
    group = made.record.place("a").group
    rows = []
    for count in (200_000, 1_000_000, 4_000_000):
        for cpus in (0.5, 0.05) if count <= 1_000_000 else (0.5,):
            for pause_s in (0.0, 0.05):
                free = _work(made, count, 0.0, 5)
                quota.limit(group, cpus)
                slowed = _work(made, count, pause_s, max(5, int(runs * cpus)))
                quota.limit(group, float("inf"))
                free = np.concatenate([free, _work(made, count, 0.0, 5)])
                base = float(np.median(free))
                rows.append(
                    {
                        "work_s": base, "cpus": cpus, "pause_s": pause_s, "wanted": 1.0 / cpus,
                        "found": float(np.median(slowed)) / base, "p95": float(np.percentile(slowed, 95)) / base,
                        "free_spread": float(free.std() / free.mean()),
                    }
                )  # fmt: skip
    return rows


def _work(made: Emulation, count: int, pause_s: float, runs: int) -> np.ndarray:
    words = [sys.executable, "-c", WORK, str(count), str(pause_s), str(runs)]
    with made.start("a", words, stdout=subprocess.PIPE) as process:
        return np.array(json.loads(process.communicate()[0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.toml"
        file.write_text(CLUSTER)
        load(file)
        with Emulation(file) as made, made.start("b", [sys.executable, str(SINK)]) as sink:
            found = links(made, options.runs)
            held = quotas(made, options.runs)
            sink.kill()
    table = markdown(
        ["Mbit/s", "ms", "round trip (95 %)", "file says", "1 MB and back (95 %)", "file says", "ratio", "line's CPU"],
        [
            [
                str(r["megabits"]), str(r["latency_ms"]),
                f"{r['round_trip_s'] * 1e3:.2f} ({r['round_trip_p95_s'] * 1e3:.2f}) ms",
                f"{r['round_trip_wanted_s'] * 1e3:.0f} ms",
                f"{r['megabyte_s'] * 1e3:.1f} ({r['megabyte_p95_s'] * 1e3:.1f}) ms",
                f"{r['megabyte_wanted_s'] * 1e3:.1f} ms", f"{r['megabyte_s'] / r['megabyte_wanted_s']:.3f}",
                f"{r['line_cpu_share']:.1%}",
            ]
            for r in found
        ],
    )  # fmt: skip
    second = markdown(
        ["cores", "work alone", "pause before it", "times slower (95 %)", "file says"],
        [
            [
                str(r["cpus"]), f"{r['work_s'] * 1e3:.1f} ms", f"{r['pause_s'] * 1e3:.0f} ms",
                f"{r['found']:.2f} ({r['p95']:.2f})", f"{r['wanted']:.0f}",
            ]
            for r in held
        ],
    )  # fmt: skip
    path = write("emulation", {"options": vars(options), "links": found, "quotas": held}, f"{table}\n\n{second}")
    print(f"{table}\n\n{second}\nwrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
