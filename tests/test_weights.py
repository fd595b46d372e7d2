"""Weights in files: read back as they were, written once, found by a runtime, gone with their store."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taglio import weights
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.weights import WeightFiles

RNG = np.random.default_rng(0)
SQUARE = RNG.standard_normal((64, 64)).astype(np.float32)
FEED = {"x": RNG.standard_normal((2, 64)).astype(np.float32)}


def product(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", tensor.name], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 64]) for name in "xy"]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.bool_])
def test_values_come_back(dtype: type) -> None:
    store = WeightFiles()
    values: np.ndarray = (100 * RNG.standard_normal((50, 200))).astype(dtype)
    tensor = store.tensor(values, "w")
    assert weights.in_file(tensor)
    assert not tensor.raw_data
    np.testing.assert_array_equal(weights.values(tensor), values)
    np.testing.assert_array_equal(store.keep(values), values)


def test_the_same_bytes_are_written_once() -> None:
    store = WeightFiles()
    first = store.keep(SQUARE)
    places = {weights.place(store.tensor(file, name)) for name, file in {"a": SQUARE, "b": first}.items()}
    assert len(places) == 1
    assert weights.place(store.tensor(first.T, "t")) not in places  # a view of it holds other bytes
    np.testing.assert_array_equal(weights.values(store.tensor(first.T, "t")), SQUARE.T)
    assert sum(file.stat().st_size for file in store.folder.iterdir()) == 2 * SQUARE.nbytes


def test_a_runtime_finds_them_and_what_it_saves_finds_them_too(tmp_path: Path) -> None:
    proto = product(WeightFiles().tensor(SQUARE, "w"))  # the store is gone: its files are
    with pytest.raises(FileNotFoundError):
        weights.values(proto.graph.initializer[0])
    store = WeightFiles()
    proto = product(store.tensor(SQUARE, "w"))
    saved = tmp_path / "optimised.onnx"
    first = open_session(proto, SessionOptions(1), save_optimized=saved).run(None, FEED)
    assert saved.stat().st_size < SQUARE.nbytes
    second = open_session(saved, SessionOptions(1)).run(None, FEED)
    for answers in (first, second):
        np.testing.assert_allclose(answers[0], FEED["x"] @ SQUARE, rtol=1e-4, atol=1e-4)


def test_a_saved_model_stands_on_its_own(tmp_path: Path) -> None:
    store = WeightFiles()
    store.keep(np.zeros(5000, np.float32))  # what it does not refer to stays behind
    path, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    weights.save(path, product(store.tensor(SQUARE, "w")), data, data.name)
    del store
    assert data.stat().st_size == SQUARE.nbytes
    onnx.checker.check_model(path)
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(path).graph.initializer[0]), SQUARE)
    np.testing.assert_array_equal(weights.values(weights.load(path).graph.initializer[0]), SQUARE)
    assert weights.size_bytes(weights.load(path)) >= SQUARE.nbytes


def test_tensors_in_branches_and_attributes_are_found() -> None:
    inner = helper.make_graph([], "inner", [], [], [numpy_helper.from_array(SQUARE, "inner")])
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(SQUARE[:1], "attribute")),
    ]
    proto = helper.make_model(helper.make_graph(nodes, "g", [], []))
    assert [tensor.name for tensor in weights.tensors(proto)] == ["inner", "inner", "attribute"]
    assert weights.weight_bytes(proto) == 2 * SQUARE.nbytes + SQUARE[:1].nbytes
