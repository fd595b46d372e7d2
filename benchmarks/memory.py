"""What memory do the commands take? Two models that are large in different ways, generated here.

`convolutions`: two of 32 channels on 1,024 x 1,024, 16 inputs: small weights, 134 MB each for what is between and for
the output. `products`: 40 MatMul of 4,096 x 4,096: 2.7 GB of weights in a file of their own, more than protobuf takes.
Each command runs in a process of its own, and the most that it had resident is read from the kernel when it ends: pages
of weights that it has mapped count too, though the kernel may take them back.

python benchmarks/memory.py [--models convolutions,products] [--small] [--limit 4GB,7GB] [--json]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taglio.cli.options import memory_size

SCHEME = "qdq-u8s8-asym-pc"
RNG_SEED = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One command: what the most resident was, beside the limit (None: the default) and the bytes of the model."""

    model: str
    command: str
    code: int
    peak_bytes: int
    limit_bytes: int
    model_bytes: int
    seconds: float
    said: str = ""


def convolutions(folder: Path, small: bool) -> None:
    """Few weights, large tensors."""
    rng, side, channels = np.random.default_rng(RNG_SEED), 128 if small else 1024, 32
    weights = [
        numpy_helper.from_array((rng.standard_normal((channels, fan, 3, 3)) * 0.15).astype(np.float32), f"w{fan}")
        for fan in (3, channels)
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w3"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", f"w{channels}"], ["y"], pads=[1] * 4),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, count, side, side])
        for name, count in (("x", 3), ("y", channels))
    ]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "model.onnx")
    np.save(folder / "data.npy", rng.standard_normal((16, 1, 3, side, side), np.float32))


def products(folder: Path, small: bool) -> None:
    """Many weights, written one by one: they never are in memory together."""
    rng, size, count = np.random.default_rng(RNG_SEED), 512 if small else 4096, 40
    nodes, weights = [], []
    with (folder / "model.onnx.data").open("wb") as file:
        for index in range(count):
            values = rng.standard_normal((size, size), np.float32) * np.float32(1.4 / size**0.5)
            where = {"location": "model.onnx.data", "offset": str(file.tell()), "length": str(values.nbytes)}
            weight = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[size, size])
            weight.data_location = TensorProto.EXTERNAL
            for key, value in where.items():
                weight.external_data.add(key=key, value=value)
            file.write(values.tobytes())
            weights.append(weight)
            nodes.append(helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"m{index}"]))
            nodes.append(helper.make_node("Relu", [f"m{index}"], [f"x{index + 1}"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "model.onnx")
    np.save(folder / "data.npy", rng.standard_normal((32, 1, size), np.float32))


MODELS = {"convolutions": convolutions, "products": products}


def commands(folder: Path, effort: str, limit: str) -> Iterator[tuple[str, list[str]]]:
    """Every command of the flow, stage by stage and in one go, in the order in which they need each other."""
    model, given, out = str(folder / "model.onnx"), ["--data", str(folder / "data.npy")], str(folder / "out")
    measuring = ["--scheme", SCHEME, "--effort", effort, *(["--memory-limit", limit] if limit else [])]
    yield "inspect", [model]
    yield "profile", [model, *given, *measuring, "-o", out]
    yield "error", [out, "--effort", effort]
    yield "plan", [out, "--max-error", "0.5"]
    yield "build", [out]
    yield "run", [out, "--runs", "3"]
    yield "optimize", [model, *given, *measuring, "--max-error", "0.5", "-o", str(folder / "whole")]


def measured(model: str, command: str, arguments: list[str], limit_bytes: int, model_bytes: int) -> Row:
    """Run one command in a child and ask the kernel what it took."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "taglio", command, *arguments], stdout=subprocess.DEVNULL, stderr=said
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = code = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().splitlines()
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    seconds = time.perf_counter() - start
    return Row(model, command, code, peak, limit_bytes, model_bytes, seconds, lines[-1] if lines else "")


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| model | command | exit | peak | limit | peak / model | seconds |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        limit = f"{row.limit_bytes / 1e9:.1f} GB" if row.limit_bytes else "default"
        lines.append(
            f"| {row.model} | {row.command} | {row.code} | {row.peak_bytes / 1e9:.2f} GB | {limit} | "
            f"{row.peak_bytes / row.model_bytes:.2f} | {row.seconds:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Print a row for each command; 1 where one failed or took more than its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--commands", default="", help="only these, comma separated")
    parser.add_argument("--limit", default="", help="--memory-limit of every run (default: taglio's own)")
    parser.add_argument("--effort", default="0.3")
    parser.add_argument("--small", action="store_true", help="the same models, small: whether it works at all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    limit_bytes = memory_size(options.limit) if options.limit else 0
    rows = []
    for name in options.models.split(","):
        folder = Path(tempfile.mkdtemp(prefix="taglio-memory-"))
        try:
            MODELS[name](folder, options.small)
            size = sum(each.stat().st_size for each in folder.glob("model.onnx*"))
            for command, arguments in commands(folder, options.effort, options.limit):
                if options.commands and command not in options.commands.split(","):
                    continue
                rows.append(measured(name, command, arguments, limit_bytes, size))
                sys.stderr.write(f"{table(rows[-1:]).splitlines()[-1]} {rows[-1].said}\n")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write((json.dumps([asdict(row) for row in rows]) if options.json else table(rows)) + "\n")
    return int(any(row.code or (limit_bytes and row.peak_bytes > limit_bytes) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
