"""In which order a device runs its components."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from taglio.cluster.engine.deploy import ClockOffset, Deployment, send
from taglio.cluster.engine.host import Host
from taglio.cluster.engine.parcel import Parcel
from taglio.cluster.engine.pipeline import Broken, RequestPipeline
from taglio.cluster.engine.wiring import wire
from taglio.components.build import Manifest, write
from taglio.components.cut import Component
from taglio.weights import WeightFiles
from tests.models import parsed

HERE = "near"


def component(name: str, proto: ModelProto) -> Component:
    inputs, outputs = (tuple(value.name for value in values) for values in (proto.graph.input, proto.graph.output))
    return Component(name, HERE, (), proto, inputs, outputs)


def part(name: str, reads: str, writes: str) -> Component:
    """A component whose outputs are each the sum of its inputs."""
    inputs, outputs = (", ".join(f"float[1] {tensor}" for tensor in side.split()) for side in (reads, writes))
    nodes = " ".join(f"{written} = Sum ({', '.join(reads.split())})" for written in writes.split())
    return component(name, parsed(f"({inputs}) => ({outputs}) {{ {nodes} }}"))


def product() -> Component:
    """A component that multiplies by a matrix."""
    weight = np.full((256, 256), 1.0 + 2.0**-12)
    return component("0", parsed("(float[1, 256] x) => (float[1, 256] y) { y = MatMul (x, w) }", {"w": weight}))


def branches() -> Component:
    """A component that fails where its condition is false."""
    proto = parsed("""(bool c, float[1, 4] x) => (float[m, n] y) <int64[2] four = {1, 4}, int64[2] three = {1, 3}> {
        y = If (c) <
            then_branch = kept () => (float[m, n] a) { a = Reshape (x, four) },
            else_branch = broken () => (float[m, n] b) { b = Reshape (x, three) }
        >
    }""")
    return component("0", proto)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Four components: 1 and 3 read what 0 writes first, 2 what it writes last; 4 reads them all."""
    parts = [part("0", "x", "a b"), part("1", "a", "c"), part("2", "b", "d"), part("3", "a", "e")]
    parts.append(part("4", "c d e", "y"))
    return write(tmp_path, Manifest("0" * 64, ("x",), ("y",), ()), parts)


@pytest.fixture
def host(manifest: Manifest, tmp_path: Path) -> Host:
    found = Host(HERE, 1, tmp_path / "store")
    for piece in manifest.pieces:
        send(found, piece.files, tmp_path)
    found.load(manifest, HERE, 1, {})
    return found


def test_a_component_whose_weights_are_in_a_file_of_their_own_is_sent_and_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, store = product(), WeightFiles()
    monkeypatch.setattr("taglio.weights.ONE_FILE_BYTES", 0)
    manifest = write(tmp_path, Manifest("0" * 64, ("x",), ("y",), ()), [replace(part, proto=store.take(part.proto))])
    (piece,) = manifest.pieces
    assert len(piece.files) == 2
    there = Host(HERE, 1, tmp_path / "store")
    assert send(there, piece.files, tmp_path) > 4 * 256 * 256
    there.load(manifest, HERE, 1, {})
    there.take(Parcel(0, 0, "", {"x": np.ones((1, 256), np.float32)}))
    assert np.allclose(next(there.outbox()).tensors["y"], 256.0, rtol=1e-3)


def test_several_requests_at_once_are_all_answered_one_component_at_a_time(host: Host) -> None:
    with ThreadPoolExecutor(8) as pool:
        for request in range(40):
            pool.submit(host.take, Parcel(request, 0, "", {"x": np.full(1, request, np.float32)}))
        answers = list(islice(host.outbox(), 40))
    assert sorted(each.request for each in answers) == list(range(40))
    assert all(each.tensors["y"].tolist() == [3.0 * each.request] for each in answers)
    steps = sorted((step for answer in answers for step in answer.steps), key=lambda step: step.start_s)
    assert len(steps) == 40 * 5
    assert all(before.end_s <= after.start_s for before, after in pairwise(steps))


def test_a_pipeline_on_the_host_of_its_own_process_answers_until_it_gives_up(host: Host, manifest: Manifest) -> None:
    clocks = {HERE: ClockOffset(0.0, 0.0)}
    pipeline = RequestPipeline(Deployment(manifest, wire(manifest), {}, host, clocks, 0, {HERE: (HERE,)}), 2, HERE)
    flights = [pipeline.send({"x": np.full(1, value, np.float32)}) for value in range(8)]
    answers = [pipeline.wait(flight, 10.0) for flight in reversed(flights)]
    assert [answer.outputs[0].tolist() for answer in answers] == [[3.0 * value] for value in reversed(range(8))]
    assert {step.device for answer in answers for step in answer.steps} == {HERE}
    pipeline.give_up("its device is gone")
    assert pipeline.wait(flights[0], 0.0).request == 0  # which was answered before
    with pytest.raises(Broken, match="its device is gone"):
        pipeline.send({"x": np.zeros(1, np.float32)})


def test_a_component_that_cannot_run_on_zeros_is_opened_and_answers(tmp_path: Path) -> None:
    manifest = write(tmp_path, Manifest("0" * 64, ("c", "x"), ("y",), ()), [branches()])
    wiring, found = wire(manifest), Host(HERE, 1, tmp_path / "store")
    send(found, manifest.pieces[0].files, tmp_path)
    found.load(manifest, HERE, 1, {})
    x = np.ones((1, 4), np.float32)
    for index, message in enumerate(wiring.messages):
        if index in wiring.reads["0"]:
            tensors = {"c": np.array(True), "x": x}
            found.take(Parcel(0, index, HERE, {name: tensors[name] for name in message.names}))
    assert (next(found.outbox()).tensors["y"] == x).all()
