"""Does anything grow or slow down? 20,000 requests over two devices on this machine's loopback, nothing else running.

The embedded model, cut so that every request goes to the second device and back; one request after another, every
answer held against the same components in one process. Memory is the resident set of all processes of both devices and
of the caller (shared pages counted in each), sampled every `--every` requests; latency is the median of as many.

    python benchmarks/cluster_soak.py [--requests 20000] [--every 500]      (.[cluster])
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from cases import CACHE, CASES, markdown, paths, write
from taglio.cluster.engine.connect import connect
from taglio.cluster.engine.recover import Recovery
from taglio.cluster.engine.run import planned, references
from taglio.cluster.engine.serve import Server
from taglio.cluster.file import load
from taglio.model.same import difference

CLUSTER = """start = "camera"
[device.camera]
threads = 1
profile = "profile.json"
[device.server]
threads = 1
profile = "profile.json"
[[link]]
from = "camera"
to = "server"
both = true
bandwidth_mbit_s = 1000
latency_ms = 0.5
"""
PINS = ("camera=/stem*", "server=/fine*", "server=/middle*", "camera=/coarse*", "camera=/classify*")
WARMUP = 200


def taglio(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "taglio", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def resident_bytes(mark: bytes) -> int:
    """Of this process and of every one whose environment has `mark`."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(path.name) == os.getpid() or mark in (path / "environ").read_bytes():
                total += int((path / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    return total


def prepare(cluster: Path) -> Path:
    """The embedded model, planned and built for both devices."""
    folder = CACHE / "soak"
    model, data = paths(CASES["digits"])
    if not (folder / "error.json").exists():
        asked = ("--data", data, "--runtime", "onnxruntime", "--effort", 0.3, "--threads", 1)
        taglio("profile", model, *asked, "-o", folder)
        taglio("error", folder, "--effort", 0.3)
    pins = [word for pin in PINS for word in ("--pin", pin)]
    taglio("plan", folder, "--cluster", cluster, "--max-error", "5%", "--time-limit", 1, *pins)
    taglio("build", folder)
    return folder


def soak(folder: Path, cluster: Path, options: argparse.Namespace, mark: bytes) -> list[dict[str, float]]:
    """Medians and memory, a row for every so many requests. Raises RuntimeError for a wrong answer."""
    where = load(cluster)
    work, ready = planned(folder, where)
    feeds = work.data.held_out.samples[:8]
    wanted = references(ready, feeds)
    rows: list[dict[str, float]] = []
    taken: list[float] = []
    with connect(where.start) as connection:
        recovery = Recovery(connection, folder, ready, lambda _: 1)
        server = Server(recovery, 15.0)
        try:
            for _ in server.answers([feeds[0]] * WARMUP):
                pass
            asked = (feeds[index % len(feeds)] for index in range(options.requests))
            for number, answer in enumerate(server.answers(asked), 1):
                if any(map(difference, wanted[(number - 1) % len(feeds)], answer.outputs)):
                    raise RuntimeError(f"request {number} was answered otherwise than in one process")
                taken.append(answer.latency_s)
                if number % options.every == 0:
                    row = {
                        "requests": number,
                        "median_s": float(np.median(taken)),
                        "resident_bytes": resident_bytes(mark),
                    }
                    rows.append(row | {"p99_s": float(np.quantile(taken, 0.99))})
                    taken.clear()
                    print(f"{number}: {row['median_s'] * 1e3:.2f} ms, {row['resident_bytes'] / 1e6:.0f} MB", flush=True)
        finally:
            recovery.close()
            server.pipeline.close()
    return rows


def slope(rows: list[dict[str, float]], key: str) -> float:
    """Least-squares change over the whole run, as a share of the mean."""
    x, y = np.array([row["requests"] for row in rows]), np.array([row[key] for row in rows])
    return float(np.polyfit(x, y, 1)[0] * (x[-1] - x[0]) / y.mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=500)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))  # short: sockets lie in it
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ["TAGLIO_DEVICES"], os.environ["RAY_AUTH_TOKEN_PATH"] = str(place / "d"), str(place / "token")
    cluster = place / "cluster.toml"
    cluster.write_text(CLUSTER)
    try:
        taglio("device", "start", "--name", "camera", "--threads", 1, "--head", "--port", port)
        taglio("device", "start", "--name", "server", "--threads", 1, "--address", f"127.0.0.1:{port}")
        rows = soak(prepare(cluster), cluster, options, f"TAGLIO_COMPONENTS={place / 'd'}".encode())
    finally:
        taglio("device", "stop")
        shutil.rmtree(place, ignore_errors=True)
    later = rows[len(rows) // 10 :]
    grown = {key: slope(later, key) for key in ("resident_bytes", "median_s")}
    table = markdown(
        [
            "requests",
            "first median ms",
            "last median ms",
            "largest p99 ms",
            "latency drift",
            "first MB",
            "last MB",
            "memory growth",
        ],
        [
            [
                str(options.requests),
                f"{rows[0]['median_s'] * 1e3:.2f}",
                f"{rows[-1]['median_s'] * 1e3:.2f}",
                f"{max(row['p99_s'] for row in rows) * 1e3:.2f}",
                f"{grown['median_s']:+.1%}",
                f"{rows[0]['resident_bytes'] / 1e6:.0f}",
                f"{rows[-1]['resident_bytes'] / 1e6:.0f}",
                f"{grown['resident_bytes']:+.2%}",
            ]
        ],
    )
    print(f"{table}\nwrote {write('cluster_soak', {'options': vars(options), 'rows': rows, 'grown': grown}, table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
