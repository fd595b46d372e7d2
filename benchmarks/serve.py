"""What does serving cost, and what does it withstand? `taglio serve` on loopback beside `session.run` and Triton.

Overhead: a request of 600 kB by tritonclient over HTTP and gRPC, with binary tensors, minus `session.run` of the same
model in the client, before and after the client tells its C library to keep memory. All take turns; with --triton
PYTHON (an environment with nvidia-pytriton and onnxruntime) so does Triton. Then the same requests by perf_analyzer,
the load generator that comes with tritonclient, whose own share is small (where it runs: it needs libb64 and
libcudart). Throughput: 16 clients at once, threads of Python and perf_analyzer's, beside the rate of `session.run`
alone. Restart: requests of clients that retry while the server is ended and started again.
Faults: what clients do wrong, with the server's answer and its memory.

    python benchmarks/serve.py [--parts overhead,throughput,restart,faults] [--triton PYTHON]      (.[dev,serve])
"""

import argparse
import csv
import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper

from cases import CACHE, CASES, markdown, open_case, write
from taglio import artifact
from taglio.components.build import write as write_components
from taglio.components.cut import Component
from taglio.cores import available_cores
from taglio.flow.workspace import COMPONENTS, SETUP
from taglio.lab.setup import Setup
from taglio.memory import keep_memory
from taglio.runtimes.onnxruntime import SessionOptions, open_session

IMAGE = (1, 3, 224, 224)  # 602 kB
HEADER = "Inference-Header-Content-Length"


def probe(*, echo: bool) -> onnx.ModelProto:
    """A convolution of an image, which takes little time; with `echo` the negative image is a large output as well."""
    weights = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["image", "weights"], ["found"], strides=[8, 8]),
        helper.make_node("GlobalAveragePool", ["found"], ["mean"]),
    ]
    given = [helper.make_tensor_value_info("image", TensorProto.FLOAT, IMAGE)]
    wanted = [helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, 8, 1, 1])]
    if echo:
        nodes.append(helper.make_node("Neg", ["image"], ["negative"]))
        wanted.append(helper.make_tensor_value_info("negative", TensorProto.FLOAT, IMAGE))
    graph = helper.make_graph(nodes, "probe", given, wanted, [numpy_helper.from_array(weights, "weights")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def workspace(name: str, proto: onnx.ModelProto, threads: int) -> Path:
    """`proto` as the built component of a workspace: what is served needs no plan."""
    folder = CACHE / "serve" / name
    inputs, outputs = (tuple(value.name for value in values) for values in (proto.graph.input, proto.graph.output))
    part = Component("0-local", "local", ("all",), proto, inputs, outputs)
    write_components(folder / COMPONENTS, "0" * 64, inputs, outputs, [part])
    artifact.save(folder / f"{SETUP}.json", SETUP, "0" * 64, Setup("m.onnx", {}, "d", "", 0, threads, False, "all"))
    return folder


@dataclass(frozen=True, slots=True)
class Server:
    """Host and ports of a running server."""

    process: subprocess.Popen[str]
    http: int
    grpc: int

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def start(folder: Path, http_port: int = 0, grpc_port: int = 0) -> Server:
    command = [sys.executable, "-m", "taglio", "serve", f"{folder.name}={folder}", "--json"]
    command += ["--http-port", str(http_port), "--grpc-port", str(grpc_port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    doors = json.loads(process.stdout.readline())
    return Server(process, *(int(doors[door].rpartition(":")[2]) for door in ("http", "grpc")))


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    server = start(folder)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


TRITON = """
import sys, numpy as np, onnxruntime as ort
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[4])
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
def infer(requests):
    return [{"mean": session.run(["mean"], {"image": r["image"]})[0]} for r in requests]
config = TritonConfig(http_port=int(sys.argv[2]), grpc_port=int(sys.argv[3]), allow_metrics=False,
    http_address="127.0.0.1", grpc_address="127.0.0.1")
with Triton(config=config) as triton:
    triton.bind(model_name="probe", infer_func=infer, config=ModelConfig(batching=False),
        inputs=[Tensor(name="image", dtype=np.float32, shape=(1, 3, 224, 224))],
        outputs=[Tensor(name="mean", dtype=np.float32, shape=(1, 8, 1, 1))])
    triton.run()
    print("up", flush=True)
    sys.stdin.read()
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def triton(python: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Triton's ports, with the same model in its Python back end."""
    ports = free_port(), free_port()
    model = str(next((folder / COMPONENTS).glob("*.onnx")))
    command = [python, "-c", TRITON, model, *map(str, ports), str(available_cores())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
    try:
        while process.stdout.readline().strip() != "up":
            if process.poll() is not None:
                raise RuntimeError("Triton did not start")
        yield ports
    finally:
        process.stdin.close()
        process.wait(60)


def client(door: str, port: int) -> Callable[[np.ndarray], np.ndarray]:
    """One request by tritonclient with binary tensors, made anew each time as a user would."""
    library: Any = {"http": tritonclient.http, "grpc": tritonclient.grpc}[door]
    client = library.InferenceServerClient(f"127.0.0.1:{port}")
    wanted = [library.InferRequestedOutput("mean")]

    def ask(image: np.ndarray) -> np.ndarray:
        given = library.InferInput("image", IMAGE, "FP32")
        given.set_data_from_numpy(image)
        return np.asarray(client.infer("probe", [given], outputs=wanted).as_numpy("mean"))

    return ask


def analyzer() -> Path | None:
    """perf_analyzer, if it runs here."""
    analyzer = Path(sys.executable).with_name("perf_analyzer")
    with suppress(OSError):
        if subprocess.run([analyzer, "--version"], check=False, capture_output=True).returncode == 0:
            return analyzer
    print("without perf_analyzer: it is not installed, or lacks a library", flush=True)
    return None


def analyzed(tool: Path, name: str, door: str, port: int, clients: int, seconds: float) -> tuple[float, float, float]:
    """Median and 99 % quantile of a request's seconds, and requests per second, of so many clients of perf_analyzer."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.csv"
        command = [str(tool), "-m", name, "-i", door, "-u", f"127.0.0.1:{port}", "-f", str(out), "--percentile", "50"]
        command += ["--concurrency-range", str(clients), "-p", str(int(seconds * 1e3)), "-r", "3", "-s", "1000000"]
        subprocess.run(command, check=True, capture_output=True)
        (row,) = csv.DictReader(out.read_text().strip().splitlines())
    return float(row["p50 latency"]) / 1e6, float(row["p99 latency"]) / 1e6, float(row["Inferences/Second"])


def overhead(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    folder = workspace("probe", probe(echo=False), available_cores())
    model = next((folder / COMPONENTS).glob("*.onnx"))
    session = open_session(model, SessionOptions(available_cores()))
    rng = np.random.default_rng(0)
    images = [rng.standard_normal(IMAGE).astype(np.float32) for _ in range(8)]
    ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "session.run": lambda image: np.asarray(session.run(["mean"], {"image": image})[0])
    }

    def measured() -> dict[str, Any]:
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(options.requests + 20):
            image = images[turn % len(images)]
            answers = []
            for way in rng.permutation(list(ways)):
                began = time.perf_counter()
                answers.append(ways[way](image))
                if turn >= 20:
                    seconds[way].append(time.perf_counter() - began)
            if any(not np.allclose(answers[0], answer, atol=1e-5) for answer in answers):
                raise RuntimeError("two ways answer differently")
        return {way: [median(times), float(np.quantile(times, 0.99))] for way, times in seconds.items()}

    with ExitStack() as stack:
        server = stack.enter_context(served(folder))
        doors = {"taglio http": server.http, "taglio grpc": server.grpc}
        if options.triton:
            ports = stack.enter_context(triton(options.triton, folder))
            doors |= zip(("triton http", "triton grpc"), ports, strict=True)
        ways |= {way: client(way.split()[1], port) for way, port in doors.items()}
        figures = measured()
        keep_memory()  # the client's: without it glibc maps new pages for every copy of 600 kB
        figures |= {f"{way}, memory kept": times for way, times in measured().items()}
        if tool := analyzer():
            for way, port in doors.items():
                figures[f"{way} by perf_analyzer, memory kept"] = [
                    *analyzed(tool, "probe", way.split()[1], port, 1, options.seconds)[:2]
                ]
    rows = []
    for way, (middle, late) in figures.items():
        alone = figures[f"session.run{', memory kept' if 'kept' in way else ''}"][0]
        rows.append([way, f"{middle * 1e3:.2f}", f"{late * 1e3:.2f}", f"{(middle - alone) * 1e3:.2f}"])
    return figures, markdown(["602 kB by", "median ms", "99 % ms", "over session.run ms"], rows)


def raw(feed: dict[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
    """A request with binary tensors, once for all: the load generator should cost little."""
    inputs = [
        {
            "name": key, "datatype": {"float32": "FP32", "int64": "INT64"}[value.dtype.name],
            "shape": list(value.shape), "parameters": {"binary_data_size": value.nbytes},
        }
        for key, value in feed.items()
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(value.tobytes() for value in feed.values()), {HEADER: str(len(head))}


def post(connection: http.client.HTTPConnection, name: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection.request("POST", f"/v2/models/{name}/infer", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def throughput(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    figures, rows = {}, []
    tool = analyzer()
    for name in options.cases.split(","):
        work = open_case(name)
        feed = dict(work.data.held_out.samples[0])
        folder = workspace(name, work.model.proto, available_cores())
        session = open_session(next((folder / COMPONENTS).glob("*.onnx")), SessionOptions(available_cores()))
        alone = partial(session.run, None, feed)
        body, headers = raw(feed)
        rates: dict[str, list[float]] = {way: [] for way in ("alone", "Python", *(["perf_analyzer"] if tool else []))}
        with served(folder) as server:
            for _ in range(options.rounds):
                rates["alone"].append(rate(alone, 1, options.seconds))
                rates["Python"].append(rate(sender(server, name, body, headers), options.clients, options.seconds))
                if tool:
                    ways = tool, name, "http", server.http, options.clients, options.seconds
                    rates["perf_analyzer"].append(analyzed(*ways)[2])
        medians = {key: median(per_s) for key, per_s in rates.items()}
        figures[name] = rates
        size = sum(value.nbytes for value in feed.values())
        for key in list(rates)[1:]:
            cells = [f"{medians['alone']:.1f}", key, f"{medians[key]:.1f}", f"{medians[key] / medians['alone']:.3f}"]
            rows.append([name, f"{size / 1e3:.0f}", *cells])
            print(rows[-1], flush=True)
    header = ["network", "request kB", "session.run per s", f"{options.clients} clients in", "per s", "ratio"]
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


def restart(_: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """10,000 requests by four clients that retry, with three restarts on the way."""
    folder = workspace("probe", probe(echo=True), available_cores())
    ports = free_port(), free_port()
    servers = [start(folder, *ports)]
    total, clients = 10_000, 4
    answered, retried, wrong = [0] * clients, [0] * clients, [0] * clients
    memory: list[tuple[int, int]] = []

    def work(index: int) -> None:
        rng = np.random.default_rng(index)
        connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=60)
        for _ in range(total // clients):
            image = rng.standard_normal(IMAGE).astype(np.float32)
            body, headers = raw({"image": image})
            while True:
                try:
                    status, answer = post(connection, "probe", body, headers)
                except (OSError, http.client.HTTPException):
                    connection.close()
                    status = 0
                if status == 200:
                    break
                retried[index] += 1
                time.sleep(0.05)
            answered[index] += 1
            wrong[index] += not answer.endswith((-image).tobytes())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    codes = []
    for part in range(1, 5):
        first = True
        while sum(answered) < part * total // 4 and any(thread.is_alive() for thread in threads):
            if first and sum(answered) > (part - 1) * total // 4 + 500:  # warm
                early, first = servers[-1].resident_bytes(), False
            time.sleep(0.01)
        memory.append((early, servers[-1].resident_bytes()))
        if part < 4:
            codes.append(servers[-1].stop())
            servers.append(start(folder, *ports))
    for thread in threads:
        thread.join()
    codes.append(servers[-1].stop())
    figures = {
        "answered": sum(answered), "retried": sum(retried), "wrong": sum(wrong), "codes": codes, "memory": memory,
    }  # fmt: skip
    print(figures, flush=True)
    grown = ", ".join(f"{early / 1e6:.0f} → {late / 1e6:.0f}" for early, late in memory)
    row = [str(total), str(sum(answered)), str(sum(wrong)), str(sum(retried)), str(codes), grown]
    return figures, markdown(
        ["requests", "answered", "wrong", "retries", "exit codes", "MB after 500 → at the end"], [row]
    )


def faults(_: argparse.Namespace) -> tuple[dict[str, Any], str]:  # noqa: PLR0915 (a list of faults)
    folder = workspace("probe", probe(echo=True), available_cores())
    image = np.random.default_rng(0).standard_normal(IMAGE).astype(np.float32)
    body, headers = raw({"image": image})
    start_line = b"POST /v2/models/probe/infer HTTP/1.1\r\nHost: x\r\n"
    plain = start_line + f"{HEADER}: {headers[HEADER]}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    with served(folder) as server:

        def connect() -> socket.socket:
            return socket.create_connection(("127.0.0.1", server.http), timeout=60)

        def changed(**changes: Any) -> str:
            head = json.loads(body[: int(headers[HEADER])])
            head["inputs"][0] |= changes
            text = json.dumps(head).encode()
            connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
            status, answer = post(connection, "probe", text + image.tobytes(), {HEADER: str(len(text))})
            return f"{status} {json.loads(answer)['error']}"

        def grpc(given: np.ndarray, name: str = "image", dtype: str = "FP32") -> str:
            tensor = tritonclient.grpc.InferInput(name, given.shape, dtype)
            tensor.set_data_from_numpy(given)
            try:
                tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}").infer("probe", [tensor])
            except tritonclient.grpc.InferenceServerException as error:
                return f"{error.status()} {error.message()}"
            return "200"

        def announced(size: int) -> str:
            with connect() as connection:
                connection.sendall(start_line + f"Content-Length: {size}\r\n\r\n".encode())
                return connection.recv(4096).decode().split("\r\n")[0]

        def unread() -> str:
            """200 clients, each of which asks ten times for 602 kB and reads nothing."""
            connections = [connect() for _ in range(200)]
            for connection in connections:
                connection.settimeout(0.1)
                with suppress(TimeoutError):
                    for _ in range(10):
                        connection.sendall(plain)
            time.sleep(2.0)
            within = server.resident_bytes()
            for connection in connections:
                connection.close()
            time.sleep(6.0)  # the server returns memory every five seconds
            return f"{within / 1e6:.0f} MB while they wait"

        def half() -> str:
            connections = [connect() for _ in range(200)]
            for connection in connections:
                connection.sendall(plain[: len(plain) // 2])
            within = server.resident_bytes()
            for connection in connections[1:]:
                connection.close()
            with connections[0]:  # waits: it is told after the server's patience
                said = connections[0].recv(4096).decode()
            return f"{said.splitlines()[0]} … {said.splitlines()[-1]}; {within / 1e6:.0f} MB while they wait"

        def nan() -> str:
            wrong = image.copy()
            wrong[0, 0, 0, 0] = np.nan
            text, head = raw({"image": wrong})
            connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
            status, answer = post(connection, "probe", text, head)
            negative = np.frombuffer(answer[-image.nbytes :], np.float32)
            return f"{status}, NaNs in the answer: {np.isnan(negative).sum()}"

        does: dict[str, Callable[[], str]] = {
            "wrong datatype": lambda: changed(datatype="INT8"),
            "wrong shape": lambda: changed(shape=[1, 3, 224, 225]),
            "wrong name": lambda: changed(name="picture"),
            "wrong name, gRPC": lambda: grpc(image, "picture"),
            "wrong shape, gRPC": lambda: grpc(image[:, :2]),
            "80 MB, gRPC": lambda: grpc(np.zeros((20, 1000, 1000), np.float32)),
            "a NaN, binary": nan,
            "2 GB announced": lambda: announced(2 * 10**9),
            "200 clients stop reading": unread,
            "200 halves of a request": half,
        }
        ask = client("grpc", server.grpc)
        ask(image)
        for name, do in does.items():
            before, began = server.resident_bytes(), time.perf_counter()
            said = do()
            took = time.perf_counter() - began
            for _turn in range(20):
                ask(image)
            after = server.resident_bytes()
            figures[name] = [said, took, before, after]
            rows.append([name, said.replace("|", "/"), f"{took:.2f}", f"{before / 1e6:.0f} → {after / 1e6:.0f}"])
            print(rows[-1], flush=True)
        figures["exit code"] = code = server.stop()
        rows.append(["SIGTERM", f"exit code {code}", "", ""])
    return figures, markdown(["fault", "answer", "s", "server MB"], rows)


PARTS = {"overhead": overhead, "throughput": throughput, "restart": restart, "faults": faults}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--cases", default="digits,ultraface-rfb-320,yolo11n-seg", help=", ".join(CASES))
    parser.add_argument("--requests", type=int, default=1000, help="of the overhead, each way (default 1000)")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round of the throughput (default 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--triton", help="the Python of an environment with nvidia-pytriton and onnxruntime")
    options = parser.parse_args()
    measured: dict[str, Any] = {"options": vars(options)}
    tables = []
    for part in options.parts.split(","):
        measured[part], table = PARTS[part](options)
        tables.append(table)
        print(table, flush=True)
    print(f"wrote {write('serve', measured, chr(10).join(f'{table}{chr(10)}' for table in tables))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
