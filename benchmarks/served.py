"""A `taglio serve` process over a made-up workspace, and what its benchmarks ask it with. Measures nothing itself."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cases import CACHE
from taglio import artifact
from taglio.components.build import Manifest
from taglio.components.build import write as write_components
from taglio.components.cut import Component
from taglio.flow.workspace import COMPONENTS, SETUP
from taglio.lab.setup import Setup

IMAGE = (1, 3, 224, 224)  # 602 kB
HEADER = "Inference-Header-Content-Length"


def probe(*, echo: bool, image: tuple[int, ...] = IMAGE) -> onnx.ModelProto:
    """A convolution of an image, which takes little time; with `echo` the negative image is a large output as well."""
    weights = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["image", "weights"], ["found"], strides=[8, 8]),
        helper.make_node("GlobalAveragePool", ["found"], ["mean"]),
    ]
    given = [helper.make_tensor_value_info("image", TensorProto.FLOAT, image)]
    wanted = [helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, 8, 1, 1])]
    if echo:
        nodes.append(helper.make_node("Neg", ["image"], ["negative"]))
        wanted.append(helper.make_tensor_value_info("negative", TensorProto.FLOAT, image))
    graph = helper.make_graph(nodes, "probe", given, wanted, [numpy_helper.from_array(weights, "weights")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def workspace(name: str, proto: onnx.ModelProto, threads: int) -> Path:
    """`proto` as the built component of a workspace: what is served needs no plan."""
    folder = CACHE / "serve" / name
    inputs, outputs = (tuple(value.name for value in values) for values in (proto.graph.input, proto.graph.output))
    part = Component("0-local", "local", ("all",), proto, inputs, outputs)
    write_components(folder / COMPONENTS, Manifest("0" * 64, inputs, outputs, ()), [part])
    artifact.save(folder / f"{SETUP}.json", SETUP, "0" * 64, Setup("m.onnx", {}, "d", "", 0, threads, "all"))
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

    def processor_s(self) -> float:
        """Processor time of the server so far, in steps of 10 ms (utime and stime of proc_pid_stat(5))."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

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


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


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
