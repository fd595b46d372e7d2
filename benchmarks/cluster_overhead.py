"""What does the engine cost? The same components over the same emulated links, by taglio and by plain gRPC.

A plan on camera and server is run by taglio; then by a gRPC server on the server (unary calls, tensors as bytes, no
encryption, its components in ONNX Runtime with the plan's threads) and a client on the camera that runs the camera's
components and calls it. Both beside compute + bytes / bandwidth + latency along the longest way, where every device and
every link does one thing at a time: from the components' own medians in that run and the cluster file's links.

    python benchmarks/cluster_overhead.py [--case ultraface-rfb-320] [--runs 40]      (root, Linux, .[bench])
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import cluster as study
from cases import CACHE, end_once, markdown, write
from taglio.cluster.devices import Cluster
from taglio.cluster.emulate.emulation import Emulation, start_devices
from taglio.cluster.engine.wiring import CALLER, wire
from taglio.cluster.planning.simulate import Pipeline, Task, Transfer, simulate
from taglio.components.build import Manifest, Piece, read
from taglio.flow.workspace import COMPONENTS, reopen
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session

PORT = 5100
LARGEST = 64_000_000
VARIANTS = (
    study.Variant("server-float", "lan", (("server", 1.0),), 0.0),
    study.Variant("camera|server", "lan", (("camera", 0.3), ("server", 1.0)), 0.05),
    study.Variant("camera|server-late", "lan", (("camera", 0.7), ("server", 1.0)), 0.05),
    study.Variant("camera|server", "wifi", (("camera", 0.3), ("server", 1.0)), 0.05),
)


class Tensor(msgspec.Struct, array_like=True):
    """An array on the wire."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def pack(values: dict[str, np.ndarray]) -> bytes:
    return msgspec.msgpack.encode([Tensor(k, v.dtype.name, v.shape, v.tobytes()) for k, v in values.items()])


def unpack(data: bytes) -> dict[str, np.ndarray]:
    found = msgspec.msgpack.decode(data, type=list[Tensor])
    return {each.name: np.frombuffer(each.data, each.dtype).reshape(each.shape) for each in found}


def sessions(folder: Path, manifest: Manifest, device: str, threads: int) -> list[tuple[Piece, Any]]:
    return [
        (piece, open_session(folder / piece.file, SessionOptions(threads)))
        for piece in manifest.pieces
        if piece.device == device
    ]


def carry_out(pieces: list[tuple[Piece, Any]], known: dict[str, np.ndarray], took: list[float]) -> None:
    """Run components in order, adding what they write to `known` and their seconds to `took`."""
    for piece, session in pieces:
        start = time.perf_counter()
        names = [port.name for port in piece.outputs]
        values = run_session(session, names, {port.name: known[port.name] for port in piece.inputs}, piece.name)
        took.append(time.perf_counter() - start)
        known.update(zip(names, values, strict=True))


def serve(folder: Path, threads: int) -> None:
    """The gRPC server: all of the server's components at once, back what the client asked for, and their seconds."""
    grpc = importlib.import_module("grpc")
    pieces = sessions(folder, read(folder), "server", threads)

    def call(request: bytes, _: Any) -> bytes:
        known = dict(unpack(request))
        wanted = bytes(known.pop("wanted")).decode().split("\n")
        took: list[float] = []
        carry_out(pieces, known, took)
        return pack({"seconds": np.array(took), **{name: known[name] for name in wanted}})

    limits = [("grpc.max_receive_message_length", LARGEST), ("grpc.max_send_message_length", LARGEST)]
    server = grpc.server(ThreadPoolExecutor(1), options=limits)
    method = grpc.unary_unary_rpc_method_handler(call)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("taglio", {"run": method}),))
    server.add_insecure_port(f"0.0.0.0:{PORT}")
    server.start()
    print("up", flush=True)
    server.wait_for_termination()


def client(work: Path, address: str, runs: int) -> None:
    """Requests one at a time: camera's components, one call, back; medians as JSON."""
    grpc = importlib.import_module("grpc")
    folder = work / COMPONENTS
    manifest = read(folder)
    own = sessions(folder, manifest, "camera", 1)
    theirs = [piece for piece in manifest.pieces if piece.device == "server"]
    written = {port.name for piece in theirs for port in piece.outputs}
    needs = {port.name for piece in theirs for port in piece.inputs} - written
    before = [each for each in own if not {port.name for port in each[0].inputs} & written]
    after = [each for each in own if each not in before]
    reads = {port.name for piece, _ in after for port in piece.inputs} | set(manifest.outputs)
    wanted = np.frombuffer("\n".join(sorted(reads & written)).encode(), np.uint8)
    limits = [("grpc.max_receive_message_length", LARGEST), ("grpc.max_send_message_length", LARGEST)]
    call = grpc.insecure_channel(f"{address}:{PORT}", options=limits).unary_unary("/taglio/run")
    feed = reopen(work).data.held_out.samples[0]
    whole, compute = [], []
    for _ in range(runs + 3):
        start = time.perf_counter()
        known = dict(feed)
        took: list[float] = []
        carry_out(before, known, took)
        answer = unpack(call(pack({"wanted": wanted, **{name: known[name] for name in needs}})))
        known.update(answer)
        carry_out(after, known, took)
        whole.append(time.perf_counter() - start)
        compute.append(sum(took) + float(answer["seconds"].sum()))
    print(json.dumps({"median_s": float(np.median(whole[3:])), "compute_s": float(np.median(compute[3:]))}))


def one(made: Emulation, name: str, variant: study.Variant, options: argparse.Namespace) -> dict[str, Any]:
    file = CACHE / "cluster" / "cluster.toml"
    work = study.prepare(made, file, name, options.effort)
    links = study.probed(made, file, variant.scenario)
    folder = study.make(made, work, links, variant)
    given = study.scenario(file, variant.scenario)
    made.become(given)
    ours = study.measured(made, links, options.runs, False, [folder])[str(folder)]
    if "run" not in ours:
        raise RuntimeError(ours["error"])
    words = [sys.executable, __file__, "--serve", str(folder / COMPONENTS), str(given.device("server").threads)]
    with made.start("server", words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        server.stdout.readline()
        words = [sys.executable, __file__, "--client", str(folder), made.addresses["server"], str(options.runs)]
        with made.start("camera", words, stdout=subprocess.PIPE, text=True) as process:
            theirs = json.loads(process.communicate()[0])
        server.kill()
    manifest = read(folder / COMPONENTS)
    seconds = {each["component"]: each["measured"]["median_s"] for each in ours["run"]["components"]}
    compute = sum(seconds.values())
    crossing = [m.bytes for m in wire(manifest).messages if (m.source_device or "camera") != (m.device or "camera")]
    return {
        "case": name, "variant": variant.name, "scenario": variant.scenario, "bytes": crossing,
        "taglio_s": ours["run"]["latency"]["median_s"], "taglio_compute_s": compute,
        "grpc_s": theirs["median_s"], "grpc_compute_s": theirs["compute_s"],
        "links_s": longest_s(manifest, seconds, given) - compute,
    }  # fmt: skip


def longest_s(manifest: Manifest, seconds: dict[str, float], cluster: Cluster) -> float:
    """Seconds of a request with an engine that takes no time."""
    wiring = wire(manifest)
    places = {piece.name: place for place, piece in enumerate(manifest.pieces)}
    transfers = []
    for index, message in enumerate(wiring.messages):
        ends = message.source_device or cluster.start, message.device or cluster.start
        link = cluster.link(*ends) if ends[0] != ends[1] else None
        transfers.append(
            Transfer(
                " ".join(message.names), places.get(message.source),
                tuple(place for name, place in places.items() if index in wiring.reads[name]), ends,
                0.0 if link is None else message.bytes / link.bandwidth_bytes_per_s,
                0.0 if link is None else link.latency_s, answers=message.device == CALLER,
            )
        )  # fmt: skip
    tasks = tuple(Task(piece.name, piece.device, seconds[piece.name]) for piece in manifest.pieces)
    return simulate(Pipeline(tasks, tuple(transfers))).end_s


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), int(sys.argv[3]))
    if sys.argv[1:2] == ["--client"]:
        client(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="ultraface-rfb-320")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--effort", type=float, default=0.3)
    options = parser.parse_args()
    if importlib.util.find_spec("grpc") is None:
        parser.error("the rival is missing: pip install -e '.[bench]'")
    end_once()
    rows: list[dict[str, Any]] = []
    try:
        with Emulation(study.written_cluster(CACHE / "cluster")) as made:
            start_devices(made)
            for variant in VARIANTS:
                rows.append(one(made, options.case, variant, options))
                print(rows[-1], flush=True)
    finally:
        table = markdown(
            ["network", "plan", "scenario", "bytes", "compute + links", "taglio", "over", "gRPC", "over"],
            [cells(row) for row in rows],
        )
        print(f"{table}\nwrote {write('cluster_overhead', {'options': vars(options), 'rows': rows}, table)}")
    return 0


def cells(row: dict[str, Any]) -> list[str]:
    ours = row["taglio_s"] - row["taglio_compute_s"] - row["links_s"]
    theirs = row["grpc_s"] - row["grpc_compute_s"] - row["links_s"]
    return [
        row["case"], row["variant"], row["scenario"], " + ".join(f"{each:,}" for each in row["bytes"]),
        f"{(row['taglio_compute_s'] + row['links_s']) * 1e3:.1f} ms",
        f"{row['taglio_s'] * 1e3:.1f} ms", f"{ours * 1e3:+.1f} ms, x {row['taglio_s'] / (row['taglio_s'] - ours):.3f}",
        f"{row['grpc_s'] * 1e3:.1f} ms", f"{theirs * 1e3:+.1f} ms, x {row['grpc_s'] / (row['grpc_s'] - theirs):.3f}",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
