"""Models whose weights are in files: read, refused where the files are wrong, simplified without being held."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio import weights
from taglio.errors import BadModel
from taglio.model.inputs import random_feed
from taglio.model.load import Model, load
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import Sketch, saved

OUTSIDE = "weights.bin"


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model be one whose weights are many."""
    monkeypatch.setattr(weights, "IN_FILES_BYTES", 1)


def products(transposed: bool = False) -> onnx.ModelProto:
    """Three products; with `transposed` of weights that are folded when the model is simplified."""
    g = Sketch(3)
    x = g.input("x", 2, 96)
    for _ in range(3):
        w = g.weight(96, 96)
        x = g.op("Relu", g.op("MatMul", x, g.op("Transpose", w, perm=[1, 0]) if transposed else w))
    return g.model(x)


def external(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "outside.onnx"
    onnx.save(proto, path, save_as_external_data=True, location=OUTSIDE, size_threshold=1024)
    return path


def answers(model: Model) -> list[np.ndarray]:
    values: list[np.ndarray] = open_session(model.proto, SessionOptions(1)).run(None, random_feed(model.inputs, 0))
    return values


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("outside", [False, True])
def test_weights_stay_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transposed: bool, outside: bool
) -> None:
    proto = products(transposed)
    path = external(proto, tmp_path) if outside else saved(proto, tmp_path)
    in_memory = load(path)
    assert in_memory.store is None
    monkeypatch.setattr(weights, "IN_FILES_BYTES", 1)
    model = load(path)
    assert model.store is not None
    assert model.proto.ByteSize() < 4096 < weights.weight_bytes(model.proto)
    stored = [tensor for tensor in weights.tensors(model.proto) if weights.in_file(tensor)]
    assert {Path(weights.place(tensor)[0]).parent for tensor in stored} == {model.store.folder}
    assert (model.sha256, model.outputs) == (in_memory.sha256, in_memory.outputs)
    np.testing.assert_allclose(answers(model)[0], answers(in_memory)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("in_files")
def test_the_files_go_with_the_model(tmp_path: Path) -> None:
    model = load(saved(products(), tmp_path))
    assert model.store is not None
    folder = model.store.folder
    assert folder.is_dir()
    del model
    assert not folder.exists()


@pytest.mark.usefixtures("in_files")
def test_an_old_opset_is_raised_with_its_files(tmp_path: Path) -> None:
    proto = products()
    proto.opset_import[0].version = 11
    model = load(external(proto, tmp_path))
    assert model.opset == 17
    assert not model.no_int8


@pytest.mark.usefixtures("in_files")
def test_a_link_to_the_weights_will_do(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    path = external(products(), tmp_path)
    (tmp_path / OUTSIDE).rename(tmp_path / "blobs" / "1234")
    (tmp_path / OUTSIDE).symlink_to(Path("blobs") / "1234")
    assert len(answers(load(path))) == 1


def changed(path: Path, key: str, value: str) -> Path:
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("limit", [1, 2**40])
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("location", "absent.bin", "No such file"),
        ("location", "../weights.bin", "not in the model's directory"),
        ("length", "7", "has 7 bytes; its shape needs 36,864"),
        ("offset", "99999999", "ends at"),
        ("offset", "-1", "ends at"),
    ],
)
def test_wrong_files_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, key: str, value: str, said: str
) -> None:
    monkeypatch.setattr(weights, "IN_FILES_BYTES", limit)
    path = changed(external(products(), tmp_path), key, value)
    with pytest.raises(BadModel, match="external weights cannot be read") as caught:
        load(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_weights_are_another_model(tmp_path: Path) -> None:
    path = external(products(), tmp_path)
    before = load(path).sha256
    (tmp_path / OUTSIDE).write_bytes((tmp_path / OUTSIDE).read_bytes()[:-4] + b"\x00\x00\x80\x3f")
    assert load(path).sha256 != before


def test_a_model_in_memory_without_its_weights_is_told_to_come_as_a_path(tmp_path: Path) -> None:
    proto = onnx.load(external(products(), tmp_path), load_external_data=False)
    with pytest.raises(BadModel, match=r"weights\.bin: No such file or directory\): give its path instead$"):
        load(proto)


def test_weights_in_int8_alone_become_float_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "IN_FILES_BYTES", 2 * 4 * 96 * 96)  # of their floats: the file has a quarter
    g = Sketch(4)
    x = g.input("x", 2, 96)
    for _ in range(2):
        stored = g.constant(g.rng.integers(-127, 128, (96, 96)).astype(np.int8))
        scale, zero = g.constant(np.float32(0.002)), g.constant(np.int8(0))
        x = g.op("MatMul", x, g.op("DequantizeLinear", stored, scale, zero))
    path = saved(g.model(x), tmp_path)
    model = load(path)
    assert [node.op_type for node in model.proto.graph.node] == ["MatMul", "MatMul"]
    assert model.proto.ByteSize() < 4096
    shutil.rmtree(tmp_path)  # nothing of the source is needed any more
    assert len(answers(model)) == 1
