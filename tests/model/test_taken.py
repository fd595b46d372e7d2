"""Every model that ONNX Runtime runs is taken: one example of each kind that once was refused, crashed or hung."""

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from taglio.errors import BadModel, TaglioError
from taglio.model import graph as graphs
from taglio.model import observe, same
from taglio.model.graph import Graph
from taglio.model.inputs import random_feed
from taglio.model.load import Model, load
from taglio.model.observe import observe_random
from taglio.model.opset import with_quantizable_opset
from taglio.runtimes.difference import difference
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import initializer, parsed, residual, saved

ROW = "(float[1, 4] x) => (float[1, 4] y)"
X = np.random.default_rng(0).normal(0, 1, (1, 4)).astype(np.float32)


def taken(proto: onnx.ModelProto, folder: Path, feed: dict[str, np.ndarray]) -> tuple[Model, Graph]:
    """`proto` loaded; what is left of it answers `feed` as it does, at every level of ONNX Runtime's rewrites."""
    model = load(saved(proto, folder))
    wanted = open_session(proto, SessionOptions(1, Optimization.NONE)).run(None, feed)
    for level in Optimization:
        answers = open_session(model.proto, SessionOptions(1, level)).run(list(model.outputs), feed)
        for left, right in zip(wanted, answers, strict=True):
            assert difference(left, right) < 1e-3
    graph = graphs.build(model)
    assert graph.flows
    return model, graph


def test_minus_infinity_as_a_mask(tmp_path: Path) -> None:
    proto = parsed(ROW + "{ [masked] s = Add (x, mask) y = Softmax (s) }", {"mask": [0.0, 0.0, -np.inf, 0.0]})
    _, graph = taken(proto, tmp_path, {"x": X})
    assert graph.block("masked").refusal == "its constant mask holds infinity or NaN"


def test_a_bias_of_minus_infinity_is_a_class_that_is_never_chosen(tmp_path: Path) -> None:
    constants = {"w": np.eye(4), "b": [0.0, -np.inf, 0.0, 0.0]}
    proto = parsed(ROW + "{ [logits] s = Gemm (x, w, b) y = Softmax (s) }", constants)
    _, graph = taken(proto, tmp_path, {"x": X})
    assert not graph.block("logits").quantizable


def test_the_names_that_onnx_runtime_gives_are_given_anew(tmp_path: Path) -> None:
    """MatMulAddFusion adds `gemm_input_shape` whatever else is called so."""
    constants = {"w": np.eye(4), "b": [1.0, 2.0, 3.0, 4.0]}
    proto = parsed("(float[1, 3, 4] x) => (float[1, 3, 4] y) { m = MatMul (x, w) y = Add (m, b) }", constants)
    model, _ = taken(proto, tmp_path, {"x": np.ones((1, 3, 4), np.float32)})
    graph = model.proto.graph
    names = {tensor.name for tensor in graph.initializer} | {name for node in graph.node for name in node.output}
    added = names - {"x", "y", "m", "w", "b"}
    assert added and all(name.startswith("basic:") for name in added)


def test_names_like_those_that_taglio_writes(tmp_path: Path) -> None:
    proto = parsed(
        ROW
        + """{
            ["taglio/split"] "x/int8" = Relu (x)
            [a] "x/int8/scale" = Relu ("x/int8")
            [b] "model/x/scale" = Relu ("x/int8/scale")
            y = Neg ("model/x/scale")
        }"""
    )
    model, _ = taken(proto, tmp_path, {"x": X})
    written = [node.output[0] for node in model.proto.graph.node]
    assert "x/int8" not in written and "x/int8/scale" not in written
    names = [node.name for node in model.proto.graph.node]
    assert len(set(names)) == len(names) and "taglio/split" not in names


def test_an_opset_without_quantize_linear_is_lowered(tmp_path: Path) -> None:
    model, graph = taken(parsed(ROW + "{ y = Relu (x) }", imports='"": 28'), tmp_path, {"x": X})
    assert model.opset < 28 and not model.no_int8
    assert "Relu" in graph.blocks[0].refusal


def test_an_attribute_that_crashes_the_converter_of_onnx_costs_a_refusal(tmp_path: Path) -> None:
    """The converter takes the attribute as the numbers that it should be, without looking: exit code 139."""
    proto = parsed('(float[1, 4] x) => (float[4] y) { y = Squeeze <axes = "first"> (x) }', imports='"": 11')
    assert with_quantizable_opset(proto) == proto
    with pytest.raises(BadModel, match="axes"):
        load(saved(proto, tmp_path))


def test_an_old_opset_that_cannot_be_raised_stays_and_nothing_is_int8(tmp_path: Path) -> None:
    """Scan of opset 8 has a batch dimension, which no converter removes."""
    proto = parsed(
        """(float[1, 2] start, float[1, 3, 2] x) => (float[1, 2] y, float[1, 3, 2] all) {
            end, all = Scan <num_scan_inputs = 1, body = step (float[2] s, float[2] e) => (float[2] t, float[2] o) {
                t = Add (s, e)
                o = Identity (t)
            }> (, start, x)
            [product] y = MatMul (end, w)
        }""",
        {"w": np.eye(2)},
        imports='"": 8',
    )
    feed = {"start": np.ones((1, 2), np.float32), "x": np.ones((1, 3, 2), np.float32)}
    model, graph = taken(proto, tmp_path, feed)
    assert model.opset == 8
    assert graph.block("product").refusal == "int8 needs opset 13, and the model's opset 8 cannot be converted"


def test_blocks_that_share_a_sequence_are_one_with_what_lies_between(tmp_path: Path) -> None:
    proto = parsed(
        """(float[1, 4] x) => (float[] y, int64 n) <int64 i = {2}> {
            [before] r = Relu (x)
            [split] parts = SplitToSequence <axis = 1> (r)
            [at] one = SequenceAt (parts, i)
            [between] negative = Neg (one)
            [insert] more = SequenceInsert (parts, negative)
            [join] joined = ConcatFromSequence <axis = 1> (more)
            [behind] y = Relu (joined)
            [length] n = SequenceLength (more)
        }"""
    )
    _, graph = taken(proto, tmp_path, {"x": X})
    assert [block.name for block in graph.blocks] == ["before", "split", "behind"]
    assert set(graph.blocks[1].operators) == {"split", "at", "between", "insert", "join", "length"}
    assert not {"parts", "more"} & {tensor.name for tensor in graph.tensors}


@pytest.mark.whole
def test_an_endless_loop_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same, "_LIMIT_S", 1.0)
    proto = parsed(
        ROW
        + """<bool true = {1}> {
            y = Loop <body = step (int64 i, bool go, float[1, 4] v) => (bool on, float[1, 4] w) {
                on = Identity (go)
                w = Sin (v)
            }> (, true, x)
        }"""
    )
    begun = time.perf_counter()
    with pytest.raises(TaglioError, match="one inference did not end within 1 s: check the model's loops"):
        load(saved(proto, tmp_path), samples=lambda _: [{"x": np.ones((1, 4), np.float32)}])
    # `inspect` has no data: it does not wait for an inference.
    monkeypatch.setattr(same, "_RANDOM_S", 1.0)
    model = load(saved(proto, tmp_path))
    assert model.run_s == 0.0
    observed = observe_random(model)[0]
    assert observed is not None
    assert observed["y"].shape == (1, 4)
    assert time.perf_counter() - begun < 30


def test_more_elements_than_memory(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="input x has 4,611,686,018,427,387,904 elements"):
        load(saved(parsed("(float[4611686018427387904] x) => (float[] y) { y = Relu (x) }"), tmp_path))


@pytest.mark.whole
def test_ten_thousand_nodes_take_seconds(tmp_path: Path) -> None:
    nodes = " ".join(f"t{index + 1} = Neg (t{index})" for index in range(10_000))
    proto = parsed(f"(float[2] t0) => (float[2] t10000) {{ {nodes} }}")
    begun = time.process_time()
    graph = graphs.build(load(saved(proto, tmp_path)))
    assert len({block.name for block in graph.blocks}) == 10_000
    assert time.process_time() - begun < 30


@pytest.mark.parametrize("batch", [1, "batch"])
def test_no_run_for_shapes_that_inference_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int | str
) -> None:
    """A 3-D network took 46 s to inspect."""
    model = load(saved(residual(batch), tmp_path))
    every = observe.observe(model, random_feed(model.inputs, seed=0), "x")
    monkeypatch.setattr(observe, "open_session", lambda *_, **__: pytest.fail("a session was opened"))
    assert observe_random(model)[0] == every


def test_sparse_weights(tmp_path: Path) -> None:
    """Given by flat indices and by coordinates."""
    proto = parsed("(float[1, 4] x) => (float[1, 2] y) { h = MatMul (x, a) r = Relu (h) y = MatMul (r, b) }")
    for name, shape, at in (("a", [4, 4], [1, 6, 15]), ("b", [4, 2], [[0, 1], [3, 0]])):
        values, places = initializer(np.arange(1.0, len(at) + 1), name), initializer(at, f"{name}/at")
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, shape))
    _, graph = taken(proto, tmp_path, {"x": X})
    assert all(block.quantizable for block in graph.blocks)
    proto.graph.sparse_initializer[0].indices.CopyFrom(initializer([1, 6, 16], "a/at"))
    with pytest.raises(BadModel):
        load(saved(proto, tmp_path))
