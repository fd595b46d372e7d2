"""A device keeps no file that is not what its hash says."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from taglio.cluster.engine.resident import Resident
from taglio.errors import BadArtifact

DATA = b"component" * 1000
SHA = hashlib.sha256(DATA).hexdigest()
FILES = {"model.onnx": SHA}


def sent(store: Resident, files: Mapping[str, str], name: str, data: bytes) -> None:
    for start in range(0, len(data), 1000):
        store.receive(files, name, len(data), start, data[start : start + 1000])


def test_a_transfer_that_broke_off_begins_anew(tmp_path: Path) -> None:
    store = Resident(store=tmp_path)
    store.receive(FILES, "model.onnx", len(DATA), 0, DATA[:700])
    sent(store, FILES, "model.onnx", DATA)
    assert store.verified(FILES).read_bytes() == DATA


def test_another_hash_than_announced_is_refused(tmp_path: Path) -> None:
    store = Resident(store=tmp_path)
    with pytest.raises(BadArtifact, match="announced was"):
        sent(store, FILES, "model.onnx", DATA[:-1] + b"x")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert store.missing(FILES) == ["model.onnx"]


def test_files_of_a_model_lie_side_by_side_under_their_names(tmp_path: Path) -> None:
    store, weights = Resident(store=tmp_path), b"weights"
    files = {"model.onnx": SHA, "sub/model.bin": hashlib.sha256(weights).hexdigest()}
    sent(store, files, "model.onnx", DATA)
    assert store.missing(files) == ["sub/model.bin"]
    sent(store, files, "sub/model.bin", weights)
    path = store.verified(files)
    assert path.name == "model.onnx" and path.read_bytes() == DATA
    beside = path.parent / "sub" / "model.bin"
    assert beside.read_bytes() == weights
    with pytest.raises(BadArtifact, match="lies outside"):
        store.missing({"model.onnx": SHA, "../model.bin": SHA})
    beside.write_bytes(b"other")
    with pytest.raises(BadArtifact, match="was changed"):
        store.verified(files)
