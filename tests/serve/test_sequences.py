"""Steps of sequences, by the protocol's extension: a model with state answers as one process would, over both doors."""

import json
import urllib.request
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import msgspec
import numpy as np
import onnx
import pytest

from taglio.components.build import State
from taglio.serve.queue import ModelQueue
from taglio.serve.refusals import BadRequest
from taglio.serve.request import Parameters
from taglio.serve.served import SequenceStep, open_model
from tests.built import product, workspace
from tests.models import parsed
from tests.serve.conftest import Asked, Server

KEPT = State("total", "before", "float32", (1, 2))


def counter() -> onnx.ModelProto:
    """y and the state are the sum of all that a sequence was given."""
    return parsed("""(float[1, 2] x, float[1, 2] before) => (float[1, 2] y, float[1, 2] total) {
        [sum] total = Add (x, before)
        [copy] y = Identity (total)
    }""")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return workspace(tmp_path / "counter", counter(), [KEPT])


def row(value: float) -> dict[str, np.ndarray]:
    return {"x": np.full((1, 2), value, np.float32)}


def test_steps_that_wait_together_run_in_their_order(folder: Path) -> None:
    queue = Asked(ModelQueue(open_model(folder, "counter", "1")))
    steps = [
        SequenceStep("a", start=True),
        SequenceStep(2, start=True),
        SequenceStep("a"),
        SequenceStep(2),
        SequenceStep("a", end=True),
        SequenceStep("a"),
    ]
    found = [queue.submit(row(value), None, step) for value, step in zip((1, 10, 2, 20, 3, 4), steps, strict=True)]
    wait(found)
    assert [each.result()["y"][0, 0] for each in found[:5]] == [1.0, 10.0, 3.0, 30.0, 6.0]
    assert all(set(each.result()) == {"y"} for each in found[:5])
    with pytest.raises(BadRequest, match="sequence 'a' has not been started"):
        found[5].result()
    whole = queue.submit({**row(1.0), "before": np.full((1, 2), 5.0, np.float32)})
    assert set(whole.result()) == {"y", "total"} and whole.result()["y"][0, 0] == 6.0
    queue.close(5.0)


def test_the_sequence_used_longest_ago_is_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taglio.serve.served.SESSIONS", 2)
    model = open_model(folder, "counter", "1")
    for name in ("a", "b", "a", "c"):
        model.run(row(1.0), SequenceStep(name, start=name not in model.states))
    assert list(model.states) == ["a", "c"]


def test_what_is_no_step_is_refused(tmp_path: Path) -> None:
    stateless = open_model(workspace(tmp_path / "product", product()), "product", "1")
    with pytest.raises(BadRequest, match="has no state"):
        stateless.needed(SequenceStep(1, start=True))
    for none in ({}, {"sequence_id": None}, {"sequence_id": 0}, {"sequence_id": ""}):
        assert msgspec.convert(none, Parameters).step is None
    for wrong in ({"sequence_id": 1.5}, {"sequence_id": True}, {"sequence_id": 1, "sequence_start": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Parameters)


def test_sequences_over_rest_and_grpc_are_the_same_ones(serving: Callable[..., Server], folder: Path) -> None:
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    running = serving(f"counter={folder}")

    def rest(value: float, **parameters: Any) -> float:
        asked = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [value, value]}
        body = json.dumps({"inputs": [asked], "parameters": parameters}).encode()
        with urllib.request.urlopen(f"{running.http}/v2/models/counter/infer", body) as answer:
            told = json.load(answer)
        assert [each["name"] for each in told["outputs"]] == ["y"]
        return float(told["outputs"][0]["data"][0])

    def grpc(value: float, **parameters: Any) -> float:
        tensor = client.InferInput("x", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.full((1, 2), value, np.float32))
        with client.InferenceServerClient(running.grpc) as door:
            return float(door.infer("counter", [tensor], **parameters).as_numpy("y")[0, 0])

    assert rest(1.0, sequence_id=7, sequence_start=True) == 1.0
    assert grpc(2.0, sequence_id=7) == 3.0
    assert grpc(5.0, sequence_id=8, sequence_start=True) == 5.0
    assert rest(3.0, sequence_id=7, sequence_end=True) == 6.0
    with pytest.raises(HTTPError) as refused:
        rest(1.0, sequence_id=7)
    with refused.value as answer:
        assert "sequence 7 has not been started" in answer.read().decode()
