"""In which runtime a device profiles: the fastest that it has, where none is asked for."""

import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taglio import weights
from taglio.cluster.devices import Device
from taglio.cluster.engine import remote_profile
from taglio.cluster.engine.deploy import send
from taglio.cluster.engine.host import Host
from taglio.memory import free_bytes, used_bytes
from taglio.model.load import load
from taglio.quantize.scheme import parse_scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.end_to_end.command import SCHEME
from tests.models import parsed

GRAPH: Any = SimpleNamespace(candidates=list, blocks=())


@pytest.mark.parametrize("in_files", [False, True])
def test_a_device_times_the_model_as_it_was_simplified_here_within_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_files: bool
) -> None:
    """Inputs are those that `taglio profile` times: of every shape, not only of the most
    frequent."""
    if in_files:
        monkeypatch.setattr("taglio.weights.IN_FILES_BYTES", 1)
        monkeypatch.setattr("taglio.weights.ONE_FILE_BYTES", 1)
    model = load(parsed("(float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }", {"w": np.ones((64, 64))}))
    options = {"options": lambda: SessionOptions(1), "runtime": "onnxruntime"}
    timed = [{"x": np.ones((1, size), np.float32)} for size in (64, 8)]
    given = {"typical": timed[:1], "timed": timed, "graph": GRAPH, "ranges": lambda *_: None}
    work: Any = SimpleNamespace(setup=SimpleNamespace(**options, seed=0), model=model, **given)
    job = remote_profile._job(work, parse_scheme(SCHEME), 1.0, Device("far"), "onnxruntime")
    assert [each["x"].shape for each in job.feeds] == [(1, 64), (1, 8)]
    files, there = remote_profile.written(model, tmp_path), Host("far", 1, tmp_path / "store")
    assert len(files) == 1 + in_files
    send(there, files, tmp_path)
    found = remote_profile.opened(pickle.loads(pickle.dumps(job)).model, there.verified(files))
    assert (found.name, found.sha256, found.inputs) == (model.name, model.sha256, model.inputs)
    assert (found.store is not None) == weights.refers(found.proto) == in_files
    both = [open_session(each.proto, SessionOptions(1)).run(None, timed[0])[0] for each in (model, found)]
    assert np.array_equal(*both)
    assert 0 < replace(job, memory_bytes=10**9).limit_bytes() - 10**9 < 2 * used_bytes()
    assert job.limit_bytes() < free_bytes() + used_bytes()
