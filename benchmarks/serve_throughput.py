"""How many requests a second does `taglio serve` answer? 16 clients at once beside `session.run` alone.

python benchmarks/serve_throughput.py [--cases NAMES]      (.[dev,serve])
"""

import argparse
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from cases import CASES, markdown, open_case, write
from served import Server, raw, served, workspace
from taglio.cores import available_cores
from taglio.flow.workspace import COMPONENTS
from taglio.runtimes.onnxruntime import SessionOptions, open_session


def throughput(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    figures, rows = {}, []
    for name in options.cases.split(","):
        work = open_case(name)
        feed = dict(work.data.held_out.samples[0])
        folder = workspace(name, work.model.proto, available_cores())
        session = open_session(next((folder / COMPONENTS).glob("*.onnx")), SessionOptions(available_cores()))
        alone = partial(session.run, None, feed)
        body, headers = raw(feed)
        rates: dict[str, list[float]] = {"alone": [], "served": []}
        with served(folder) as server:
            for _ in range(options.rounds):
                rates["alone"].append(rate(alone, 1, options.seconds))
                rates["served"].append(rate(sender(server, name, body, headers), options.clients, options.seconds))
        figures[name] = rates
        alone_per_s, served_per_s = map(median, rates.values())
        size = sum(value.nbytes for value in feed.values())
        cells = [f"{alone_per_s:.1f}", f"{served_per_s:.1f}", f"{served_per_s / alone_per_s:.3f}"]
        rows.append([name, f"{size / 1e3:.0f}", *cells])
        print(rows[-1], flush=True)
    header = ["network", "request kB", "session.run per s", f"{options.clients} clients per s", "ratio"]
    return figures, markdown(header, rows)


def sender(server: Server, name: str, body: bytes, headers: dict[str, str]) -> Callable[[], object]:
    """Sends one request, over a connection per thread: with as few copies and calls as a client can do with, because
    the clients' share of the processor is not the server's."""
    own = threading.local()
    fields = {**headers, "Host": "x", "Content-Length": str(len(body))}
    head = "".join(f"{key}: {value}\r\n" for key, value in fields.items())
    raw = f"POST /v2/models/{name}/infer HTTP/1.1\r\n{head}\r\n".encode() + body

    def send() -> None:
        if not hasattr(own, "connection"):
            own.connection = socket.create_connection(("127.0.0.1", server.http), timeout=60)
            own.memory = memoryview(bytearray(2**24))
        own.connection.sendall(raw)
        size, end = 0, len(own.memory)
        while size < end:
            size += (more := own.connection.recv_into(own.memory[size:]))
            before, separator, _ = bytes(own.memory[: min(size, 1000)]).partition(b"\r\n\r\n")
            if not more or not before.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(before)
            if separator:
                length = before.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]
                end = len(before) + len(separator) + int(length)

    return send


def rate(one: Callable[[], object], clients: int, seconds: float) -> float:
    """Calls per second of so many threads, after a tenth of the time as warm-up."""
    counts, ended = [0] * clients, threading.Event()

    def work(index: int) -> None:
        while not ended.is_set():
            one()
            counts[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 10)
    before, began = sum(counts), time.perf_counter()
    time.sleep(seconds)
    per_s = (sum(counts) - before) / (time.perf_counter() - began)
    ended.set()
    for thread in threads:
        thread.join()
    return per_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits,ultraface-rfb-320,yolo11n-seg", help=", ".join(CASES))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round (default 4)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures, table = throughput(options)
    print(table, flush=True)
    print(f"wrote {write('serve', {'options': vars(options), 'throughput': figures}, table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
