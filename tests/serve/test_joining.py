"""Requests that are joined, that must not be, and that are malformed, from many threads at once."""

import http.client
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.data.spec import InputSpec
from taglio.flow.joining import batched_inputs
from taglio.model.inputs import spec_of
from taglio.runtimes import openvino
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.serve.served import open_model
from tests.built import product, workspace
from tests.models import parsed
from tests.serve.conftest import Server, start, stop
from tests.serve.test_queue import Model, queue_of, rows
from tests.support import inference

# Of requests that the runtime refuses, the reason; of others the answer.
Answer = Mapping[str, np.ndarray] | str
ALONE = {
    "five": parsed("""(float[batch,8] x) => (float[M] y) <int64[1] k = {5}, int64[1] flat = {-1}> {
        v, i = TopK(x, k) y = Reshape(v, flat)
    }"""),
    "tokens": parsed("(float[batch,S,4] x) => (float[M,4] y) <int64[2] flat = {-1, 4}> { y = Reshape(x, flat) }"),
    "detections": parsed("""(float[batch,4] x) => (int64[M,2] y) <float t = {2.5}> {
        b = Greater(x, t) n = NonZero(b) y = Transpose(n)
    }"""),
    # Random feeds have no values above 4, and the greatest of all rows divides.
    "coupled": parsed("""(float[batch,4] x) => (float[batch,4] y) <float t = {4.0}> {
        m = ReduceMax<keepdims=0>(x) c = Max(m, t) y = Div(x, c)
    }"""),
}
JOINED = {
    "product": product(),
    "masked": parsed("""(int64[batch,S] ids, int64[batch,S] mask) => (float[batch,3] y) <
        float[7,3] table = {1,2,3, 0,1,0, 4,4,1, 2,2,2, 3,1,0, 5,0,5, 1,1,0}, int64[1] a = {2}, int64[1] one = {1}
    > {
        e = Gather(table, ids) u = Unsqueeze(mask, a) f = Cast<to=1>(u) m = Mul(e, f) y = ReduceSum<keepdims=0>(m, one)
    }"""),
}


def sent(rng: np.random.Generator, proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """One to three rows; of several inputs, one in five requests has a row more in the last."""
    count, length = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    feed = {}
    for value in proto.graph.input:
        spec = spec_of(value)
        shape = [count, *(size if isinstance(size, int) else length for size in (spec.shape or ())[1:])]
        floats = 2 * rng.standard_normal(shape)
        feed[spec.name] = (floats if spec.dtype == "float32" else rng.integers(0, 7, shape)).astype(spec.dtype)
    if len(feed) > 1 and rng.random() < 0.2:
        last = [*feed][-1]
        feed[last] = np.concatenate([feed[last], feed[last][:1]])
    return feed


def asked(connection: http.client.HTTPConnection, name: str, feed: Mapping[str, np.ndarray]) -> Answer:
    """The answer to a request with binary tensors, or why there is none."""
    connection.request("POST", f"/v2/models/{name}/infer", *inference.request(feed))
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        assert response.status == 400
        return str(json.loads(body)["error"])
    return inference.answer(body, response.headers)


@pytest.mark.whole
@pytest.mark.alone
@pytest.mark.parametrize("seconds", [3.0, pytest.param(20.0, marks=pytest.mark.slow)])
def test_every_answer_is_that_of_the_request_alone(tmp_path: Path, seconds: float) -> None:
    """Twelve clients send requests of one to three rows, some malformed, to models that must and must not join."""
    models = {**ALONE, **JOINED}
    sessions = {name: open_session(proto, SessionOptions(1)) for name, proto in models.items()}
    places = [f"{name}={workspace(tmp_path / name, proto)}" for name, proto in models.items()]
    counts = dict.fromkeys((*models, "refused"), 0)
    wrong: list[str] = []
    server = start(*places)
    until = time.monotonic() + seconds

    def client(seed: int) -> None:
        rng = np.random.default_rng(seed)
        connection = http.client.HTTPConnection(*server.address, timeout=30)
        while time.monotonic() < until and not wrong:
            name = str(rng.choice([*models]))
            feed = sent(rng, models[name])
            answer = asked(connection, name, feed)
            if len({len(value) for value in feed.values()}) > 1:
                counts["refused"] += 1
                if not isinstance(answer, str) or not all(key in answer for key in feed):
                    wrong.append(f"{name}: inputs of different rows: {answer}")
                continue
            counts[name] += 1
            outputs = [each.name for each in models[name].graph.output]
            expected = dict(zip(outputs, sessions[name].run(outputs, feed), strict=True))
            if isinstance(answer, str):
                wrong.append(f"{name}: {answer}")
            elif any(value.shape != expected[key].shape for key, value in answer.items()):
                wrong.append(f"{name}: shapes of another answer")
            elif not all(np.allclose(value, expected[key], rtol=1e-4, atol=1e-5) for key, value in answer.items()):
                wrong.append(f"{name}: values of another answer")
        connection.close()

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(12)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    joined = {name: executions(server, name) < counts[name] for name in models}
    assert stop(server) == (0, "")
    assert wrong == [] and min(counts.values()) > 0
    assert joined == {name: name in JOINED for name in models}


def executions(server: Server, name: str) -> int:
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    start = f'taglio_batch_requests_count{{model="{name}",version="1"}} '
    return int(float(next(line for line in text.splitlines() if line.startswith(start)).removeprefix(start)))


def test_an_answer_of_other_rows_is_taken_apart() -> None:
    """What the graph and the samples do not show: a runtime that answers a batch with other rows."""

    class Short(Model):
        def run(self, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            (answer,) = super().run(feed)
            return [answer[:2]]

    model = Short()
    queue = queue_of(model)
    first = queue.submit(rows(1))
    model.running.wait(10)
    others = [queue.submit(rows(1, value)) for value in (2.0, 3.0, 4.0)]
    model.free.set()
    assert first.result(10)["y"].tolist() == [[2.0, 2.0]]
    assert [other.result(10)["y"].tolist() for other in others] == [[[4.0, 4.0]], [[6.0, 6.0]], [[8.0, 8.0]]]
    assert queue.close(10) == 0


def test_a_request_whose_inputs_differ_in_rows_is_never_joined() -> None:
    """Where the model gives their first dimensions no common name, such a request is its own affair."""
    model = Model()
    queue = queue_of(model)
    futures = [queue.submit(rows(1))]
    model.running.wait(10)
    futures += [queue.submit({**rows(1), "other": np.ones((2, 2), np.float32)})]
    futures += [queue.submit(rows(1)) for _ in range(2)]
    model.free.set()
    assert [future.result(10)["y"].shape for future in futures] == [(1, 2)] * 4
    assert model.batches == [1, 1, 2] and queue.close(10) == 0


@pytest.mark.parametrize(
    ("dims", "planned", "joined", "batched"),
    [
        (("batch", "tokens"), {}, True, ("a",)),
        ((None, None), {}, True, ("a", "b")),
        ((1, "batch"), {}, False, ("b",)),
        (("batch", "batch"), {"a": (4, 2), "b": (1, 2)}, False, ()),
    ],
)
def test_which_inputs_must_have_equal_rows(
    dims: tuple[str | int | None, ...], planned: dict[str, tuple[int, ...]], joined: bool, batched: tuple[str, ...]
) -> None:
    inputs = [InputSpec(name, (dim, 2), "float32") for name, dim in zip("ab", dims, strict=True)]
    assert batched_inputs(inputs, planned, joined=joined) == batched


def test_openvino_takes_the_limit_of_its_kernel_cache(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="taglio[openvino] is not installed")
    path = tmp_path / "m.onnx"
    onnx.save(product(), path)
    for limit in (0, 10):
        session = openvino.open_session(path, SessionOptions(1, runtime="openvino", kernel_cache=limit))
        for count in (1, 2, 3):
            assert session.run(["y"], rows_of(count))[0].shape == (count, 4)


def rows_of(count: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((count, 4), np.float32)}


def test_batches_are_made_of_the_delivered_samples(tmp_path: Path) -> None:
    """Integers stay as they are in the trial, and the greatest of random ones is 1: samples show that 2 and more
    divide."""
    coupled = parsed("""(int64[batch,4] x) => (int64[batch,4] y) <int64 one = {1}> {
        m = ReduceMax<keepdims=0>(x) c = Max(m, one) y = Div(x, c)
    }""")
    folder = workspace(tmp_path / "model", coupled)
    assert open_model(folder, "m", "1").alone == ""
    delivered = [{"x": np.arange(start, start + 4)[None]} for start in (0, 4)]
    sampled = workspace(tmp_path / "sampled", coupled, samples=delivered)
    assert "in a batch of 2 samples from that of each alone" in open_model(sampled, "m", "1").alone
