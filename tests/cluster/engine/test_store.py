"""A device keeps no file that is not what its hash says."""

import hashlib
from pathlib import Path

import pytest

from taglio.cluster.engine.resident import Resident
from taglio.errors import BadArtifact

DATA = b"component" * 1000
SHA = hashlib.sha256(DATA).hexdigest()


def sent(store: Resident, sha256: str, data: bytes) -> None:
    for start in range(0, len(data), 1000):
        store.receive(sha256, len(data), start, data[start : start + 1000])


def test_a_transfer_that_broke_off_begins_anew(tmp_path: Path) -> None:
    store = Resident(store=tmp_path)
    store.receive(SHA, len(DATA), 0, DATA[:700])
    sent(store, SHA, DATA)
    assert store.verified(SHA).read_bytes() == DATA


def test_another_hash_than_announced_is_refused(tmp_path: Path) -> None:
    store = Resident(store=tmp_path)
    with pytest.raises(BadArtifact, match="announced was"):
        sent(store, SHA, DATA[:-1] + b"x")
    assert list(tmp_path.iterdir()) == []
    assert store.missing([SHA]) == [SHA]


def test_files_of_a_model_lie_side_by_side_under_their_names(tmp_path: Path) -> None:
    store, weights = Resident(store=tmp_path), b"weights"
    sha = hashlib.sha256(weights).hexdigest()
    sent(store, SHA, DATA)
    sent(store, sha, weights)
    for _ in range(2):
        path = store.named({"model.onnx": SHA, "sub/model.bin": sha})
        assert path.name == "model.onnx" and path.read_bytes() == DATA
        assert (path.parent / "sub" / "model.bin").read_bytes() == weights
        store.path(SHA).unlink()  # and sent again: what has its name is not the old one
        sent(store, SHA, DATA)
    assert store.named({"model.onnx": SHA}).samefile(store.path(SHA))
    with pytest.raises(BadArtifact, match="lies outside"):
        store.named({"model.onnx": SHA, "../model.bin": sha})
    store.path(sha).write_bytes(b"other")
    with pytest.raises(BadArtifact, match="was changed"):
        store.named({"model.onnx": SHA, "sub/model.bin": sha})
