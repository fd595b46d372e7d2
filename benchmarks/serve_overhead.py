"""What does serving a request cost? `taglio serve` on loopback beside `session.run` and Triton.

A request of 602 kB by tritonclient over HTTP and gRPC, with binary tensors, minus `session.run` of the same model in
the client, before and after the client tells its C library to keep memory. All take turns; with --triton PYTHON (an
environment with nvidia-pytriton and onnxruntime) so does Triton. Then the server's processor time per request, for
requests of 4 kB and 602 kB one after another, minus that of `session.run` in the client.

    python benchmarks/serve_overhead.py [--triton PYTHON]      (.[dev,serve])
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from cases import markdown, write
from served import IMAGE, free_port, probe, served, workspace
from taglio.cores import available_cores
from taglio.flow.workspace import COMPONENTS
from taglio.memory import keep_memory
from taglio.runtimes.onnxruntime import SessionOptions, open_session

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


def client(door: str, port: int, model: str = "probe") -> Callable[[np.ndarray], np.ndarray]:
    """One request by tritonclient with binary tensors, made anew each time as a user would."""
    library: Any = {"http": tritonclient.http, "grpc": tritonclient.grpc}[door]
    client = library.InferenceServerClient(f"127.0.0.1:{port}")
    wanted = [library.InferRequestedOutput("mean")]

    def ask(image: np.ndarray) -> np.ndarray:
        given = library.InferInput("image", list(image.shape), "FP32")
        given.set_data_from_numpy(image)
        return np.asarray(client.infer(model, [given], outputs=wanted).as_numpy("mean"))

    return ask


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
    rows = []
    for way, (middle, late) in figures.items():
        alone = figures[f"session.run{', memory kept' if 'kept' in way else ''}"][0]
        rows.append([way, f"{middle * 1e3:.2f}", f"{late * 1e3:.2f}", f"{(middle - alone) * 1e3:.2f}"])
    return figures, markdown(["602 kB by", "median ms", "99 % ms", "over session.run ms"], rows)


def processor_time(requests: int) -> tuple[dict[str, float], str]:
    """Processor milliseconds of the server per request, without the model's own."""
    figures: dict[str, float] = {}
    for shape in ((1, 3, 18, 18), IMAGE):
        image = np.ones(shape, np.float32)
        folder = workspace(f"probe-{image.nbytes}", probe(echo=False, image=shape), available_cores())
        session = open_session(next((folder / COMPONENTS).glob("*.onnx")), SessionOptions(available_cores()))
        began = time.process_time()
        for _ in range(requests):
            session.run(["mean"], {"image": image})
        own_s = time.process_time() - began
        with served(folder) as server:
            for door, port in (("http", server.http), ("grpc", server.grpc)):
                ask = client(door, port, folder.name)
                for _ in range(100):
                    ask(image)
                before_s = server.processor_s()
                for _ in range(requests):
                    ask(image)
                took_s = server.processor_s() - before_s - own_s
                figures[f"{image.nbytes / 1e3:.0f} kB, {door}"] = took_s / requests * 1e3
    rows = [[request, f"{processor_ms:.2f}"] for request, processor_ms in figures.items()]
    return figures, markdown(["request", "server's processor ms"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000, help="each way (default 1000)")
    parser.add_argument("--triton", help="the Python of an environment with nvidia-pytriton and onnxruntime")
    options = parser.parse_args()
    figures, table = overhead(options)
    processor_ms, second = processor_time(options.requests)
    text = f"{table}\n\n{second}"
    print(text, flush=True)
    figures = {"overhead": figures, "processor_ms": processor_ms}
    print(f"wrote {write('serve', {'options': vars(options), **figures}, text)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
