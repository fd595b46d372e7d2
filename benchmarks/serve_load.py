"""Does `taglio serve` keep the rate that `optimize --objective rate` confirmed? An open load over gRPC.

Each network is optimised within a limit on latency; then requests arrive at random, at a share of the confirmed rate,
from tritonclient in a process of its own. Every answer is compared with that of the request alone.

python benchmarks/serve_load.py --max-latency 50ms [--cases digits] [--share 0.85] [--seconds 20]      (.[dev,serve])
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from statistics import quantiles
from typing import Any

import numpy as np
import tritonclient.grpc
from tritonclient.utils import np_to_triton_dtype

import taglio
from cases import CACHE, markdown, open_case, optimized, write
from served import served

Feed = Mapping[str, np.ndarray]


def load(port: int, name: str, feed: Feed, wanted: Feed, per_s: float, count: int) -> tuple[list[float], float, int]:
    """Send `count` requests at random times; returns seconds from each arrival to its answer, those of all, and how
    many answers are not `wanted`."""
    client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}")
    inputs = [
        tritonclient.grpc.InferInput(key, value.shape, np_to_triton_dtype(value.dtype)) for key, value in feed.items()
    ]
    for given, value in zip(inputs, feed.values(), strict=True):
        given.set_data_from_numpy(value)
    seconds: list[float] = []
    wrong, answered, draw = [], threading.Semaphore(0), random.Random(0)

    def send(due_s: float) -> None:
        def ended(result: Any, error: Any) -> None:
            seconds.append(time.perf_counter() - due_s)
            if error or not all(np.allclose(result.as_numpy(key), value, 1e-5, 1e-5) for key, value in wanted.items()):
                wrong.append(error)
            answered.release()

        client.async_infer(name, inputs, ended)

    begun_s = due_s = time.perf_counter()
    for _ in range(count):
        due_s += draw.expovariate(per_s)
        time.sleep(max(0.0, due_s - time.perf_counter()))
        send(due_s)
    for _ in range(count):
        answered.acquire()
    return seconds, time.perf_counter() - begun_s, len(wrong)


def measure(name: str, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The figures and the cells of one network."""
    out = CACHE / "serve-load" / name
    optimized(name, out, "--objective", "rate", "--max-latency", options.max_latency, "--max-error", "1%")
    result, sample = taglio.load(out), dict(open_case(name).data.held_out.samples[0])
    rate = result.table.rate if result.table else None
    if rate is None or rate.rate_per_s is None or rate.max_latency_s is None:
        raise RuntimeError(f"{name}: no rate keeps {options.max_latency}")
    per_s = options.share * rate.rate_per_s.value
    count = max(1000, int(per_s * options.seconds))
    with served(out) as server, ProcessPoolExecutor(1) as generator:
        before_s = server.processor_s()
        wanted = result.session().run(sample)
        seconds, took_s, wrong = generator.submit(load, server.grpc, name, sample, wanted, per_s, count).result()
        core_s = (server.processor_s() - before_s) / count
    p95_s = quantiles(seconds, n=20)[-1]
    figures = {
        "rate_per_s": rate.rate_per_s.value, "asked_per_s": per_s, "answered_per_s": count / took_s, "p95_s": p95_s,
        "limit_s": rate.max_latency_s, "core_s": core_s, "wrong": wrong,
    }  # fmt: skip
    rates = [f"{rate.rate_per_s.value:.1f}", f"{per_s:.1f}", f"{count / took_s:.1f}"]
    times = [f"{p95_s * 1e3:.1f}", f"{p95_s / rate.max_latency_s:.2f}", f"{core_s * 1e3:.2f}"]
    return figures, [name, *rates, *times, str(wrong)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits,ultraface-rfb-320,paraphrase-MiniLM-L3-v2-6000")
    parser.add_argument("--max-latency", required=True)
    parser.add_argument("--share", type=float, default=0.85, help="of the confirmed rate (default 0.85)")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    figures, rows = {}, []
    for name in options.cases.split(","):
        try:
            figures[name], cells = measure(name, options)
        except (FileNotFoundError, RuntimeError) as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        rows.append(cells)
        print(" | ".join(cells), file=sys.stderr, flush=True)
    if not rows:
        return 1
    head = ["network", "confirmed per s", "asked", "answered", "p95 ms", "p95 ÷ limit", "core-ms a request", "wrong"]
    table = markdown(head, rows)
    print(f"{table}\nwrote {write('serve_load', {'options': vars(options), **figures}, table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
