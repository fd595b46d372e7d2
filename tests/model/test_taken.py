"""Every model that ONNX Runtime runs is taken: one example of each kind that once was refused, crashed or hung."""

import contextlib
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taglio.errors import BadModel, TaglioError
from taglio.model import graph as graphs
from taglio.model import observe, same
from taglio.model.graph import Graph
from taglio.model.inputs import random_feed
from taglio.model.load import Model, load
from taglio.model.observe import observe_random
from taglio.model.opset import with_quantizable_opset
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import residual, saved

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape: list[int] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, values: object, dtype: type = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


def made(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto] | None = None,
    opsets: dict[str, int] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants or [])
    imports = [helper.make_opsetid(domain, version) for domain, version in (opsets or {"": 17}).items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions or [])


def taken(proto: onnx.ModelProto, folder: Path, feed: dict[str, np.ndarray]) -> tuple[Model, Graph]:
    """`proto` loaded; what is left of it answers `feed` as it does, at every level of ONNX Runtime's rewrites."""
    model = load(saved(proto, folder))
    wanted = open_session(proto, SessionOptions(1, Optimization.NONE)).run(None, feed)
    for level in Optimization:
        answers = open_session(model.proto, SessionOptions(1, level)).run(list(model.outputs), feed)
        for left, right in zip(wanted, answers, strict=True):
            assert same.difference(left, right) < 1e-3
    graph = graphs.build(model)
    assert graph.flows
    return model, graph


X = np.random.default_rng(0).normal(0, 1, (1, 4)).astype(np.float32)


def test_minus_infinity_as_a_mask(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["s"], name="masked"),
        helper.make_node("Softmax", ["s"], ["y"], name="softmax"),
    ]
    proto = made(nodes, [value("x", [1, 4])], [value("y", [1, 4])], [constant("mask", [0, 0, -np.inf, 0])])
    _, graph = taken(proto, tmp_path, {"x": X})
    assert graph.block("masked").refusal == "its constant mask holds infinity or NaN"


def test_a_bias_of_minus_infinity_is_a_class_that_is_never_chosen(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["s"], name="logits"),
        helper.make_node("Softmax", ["s"], ["y"], name="softmax"),
    ]
    weights = [constant("w", np.eye(4)), constant("b", [0, -np.inf, 0, 0])]
    _, graph = taken(made(nodes, [value("x", [1, 4])], [value("y", [1, 4])], weights), tmp_path, {"x": X})
    assert not graph.block("logits").quantizable


def test_the_names_that_onnx_runtime_gives_are_given_anew(tmp_path: Path) -> None:
    """MatMulAddFusion adds `gemm_input_shape` whatever else is called so."""
    w, b, s = constant("w", np.eye(4)), constant("b", [1, 2, 3, 4]), constant("s", [1, 2, 2], np.int64)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="one"),
        helper.make_node("Add", ["m", "b"], ["y"], name="two"),
    ]
    model, _ = taken(
        made(nodes, [value("x", [1, 3, 4])], [value("y", [1, 3, 4])], [w, b]),
        tmp_path,
        {"x": np.ones((1, 3, 4), np.float32)},
    )
    own = {"x", "y", "m", "w", "b"}
    graph = model.proto.graph
    names = {t.name for t in graph.initializer} | {name for node in graph.node for name in node.output}
    assert names - own and all(name.startswith("basic:") for name in names - own)
    assert s.name not in names


def test_names_like_those_that_taglio_writes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["x/int8"], name="taglio/split"),
        helper.make_node("Relu", ["x/int8"], ["x/int8/scale"], name="a"),
        helper.make_node("Relu", ["x/int8/scale"], ["model/x/scale"], name="b"),
        helper.make_node("Neg", ["model/x/scale"], ["y"]),
    ]
    model, _ = taken(made(nodes, [value("x", [1, 4])], [value("y", [1, 4])]), tmp_path, {"x": X})
    written = [node.output[0] for node in model.proto.graph.node]
    assert "x/int8" not in written and "x/int8/scale" not in written
    names = [node.name for node in model.proto.graph.node]
    assert len(set(names)) == len(names) and "taglio/split" not in names


def test_a_function_of_the_model(tmp_path: Path) -> None:
    body = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Neg", ["r"], ["b"])]
    function = helper.make_function("own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("Twice", ["x"], ["m"], domain="own", name="first"),
        helper.make_node("Twice", ["m"], ["y"], domain="own", name="second"),
    ]
    proto = made(nodes, [value("x", [1, 4])], [value("y", [1, 4])], opsets={"": 17, "own": 1}, functions=[function])
    model, _ = taken(proto, tmp_path, {"x": X})
    assert {node.op_type for node in model.proto.graph.node} <= {"Relu", "Neg"}


def test_an_output_that_is_constant_and_one_that_is_an_input(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["c", "c"], ["k"]), helper.make_node("Relu", ["x"], ["y"])]
    outputs = [value("y", [1, 4]), value("k", [2]), value("x", [1, 4])]
    model, graph = taken(made(nodes, [value("x", [1, 4])], outputs, [constant("c", [1, 2])]), tmp_path, {"x": X})
    assert model.outputs == graph.outputs == ("y", "k", "x")


def test_operators_of_onnx_ml_alone(tmp_path: Path) -> None:
    node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.5)
    proto = made([node], [value("x", [1, 4])], [value("y", [1, 4])], opsets={"ai.onnx.ml": 3})
    _, graph = taken(proto, tmp_path, {"x": X})
    assert not graph.candidates()


def test_an_opset_without_quantize_linear_is_lowered_where_nothing_changed_since(tmp_path: Path) -> None:
    proto = made([helper.make_node("Relu", ["x"], ["y"])], [value("x", [1, 4])], [value("y", [1, 4])], opsets={"": 28})
    model, graph = taken(proto, tmp_path, {"x": X})
    assert model.opset < 28 and not model.no_int8
    assert "Relu" in graph.blocks[0].refusal


def test_an_attribute_that_crashes_the_converter_of_onnx_costs_a_refusal(tmp_path: Path) -> None:
    """The converter takes the attribute as the numbers that it should be, without looking: exit code 139."""
    node = helper.make_node("Squeeze", ["x"], ["y"], axes="first")
    proto = made([node], [value("x", [1, 4])], [value("y", [4])], opsets={"": 11})
    assert with_quantizable_opset(proto) == proto
    with pytest.raises(BadModel, match="axes"):
        load(saved(proto, tmp_path))


def test_an_old_opset_that_cannot_be_raised_stays_and_nothing_is_int8(tmp_path: Path) -> None:
    """Scan of opset 8 has a batch dimension, which no converter removes."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body",
        [value("s", [2]), value("e", [2])],
        [value("t", [2]), value("o", [2])],
    )
    nodes = [
        helper.make_node("Scan", ["", "start", "x"], ["end", "all"], num_scan_inputs=1, body=body, name="scan"),
        helper.make_node("MatMul", ["end", "w"], ["y"], name="product"),
    ]
    inputs = [value("start", [1, 2]), value("x", [1, 3, 2])]
    outputs = [value("y", [1, 2]), value("all", [1, 3, 2])]
    proto = made(nodes, inputs, outputs, [constant("w", np.eye(2))], opsets={"": 8})
    feed = {"start": np.ones((1, 2), np.float32), "x": np.ones((1, 3, 2), np.float32)}
    model, graph = taken(proto, tmp_path, feed)
    assert model.opset == 8
    assert graph.block("product").refusal == "int8 needs opset 13, and the model's opset 8 cannot be converted"


def test_an_attribute_of_a_wrong_type_ends_no_process(tmp_path: Path) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    node.attribute.append(helper.make_attribute("axis", [1.0, 2.0]))
    proto = made([node], [value("x", [1, 4])], [value("y", [1, 4])], opsets={"": 9})
    with pytest.raises(BadModel):
        load(saved(proto, tmp_path))


def test_blocks_that_share_a_sequence_are_one_with_what_lies_between(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="before"),
        helper.make_node("SplitToSequence", ["r"], ["parts"], axis=1, name="split"),
        helper.make_node("SequenceAt", ["parts", "i"], ["one"], name="at"),
        helper.make_node("Neg", ["one"], ["negative"], name="between"),
        helper.make_node("SequenceInsert", ["parts", "negative"], ["more"], name="insert"),
        helper.make_node("ConcatFromSequence", ["more"], ["joined"], axis=1, name="join"),
        helper.make_node("Relu", ["joined"], ["y"], name="behind"),
        helper.make_node("SequenceLength", ["more"], ["n"], name="length"),
    ]
    outputs = [value("y", None), value("n", [], INT64)]
    _, graph = taken(made(nodes, [value("x", [1, 4])], outputs, [constant("i", 2, np.int64)]), tmp_path, {"x": X})
    assert [block.name for block in graph.blocks] == ["before", "split", "behind"]
    assert set(graph.blocks[1].operators) == {"split", "at", "between", "insert", "join", "length"}
    assert not {"parts", "more"} & {tensor.name for tensor in graph.tensors}


def test_text_in_and_out(tmp_path: Path) -> None:
    node = helper.make_node("StringConcat", ["a", "b"], ["y"])
    kind = TensorProto.STRING
    proto = made([node], [value("a", [2], kind), value("b", [2], kind)], [value("y", [2], kind)], opsets={"": 20})
    feed = {"a": np.array(["x", "y"], object), "b": np.array(["1", "2"], object)}
    taken(proto, tmp_path, feed)


@pytest.mark.whole
def test_an_endless_loop_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same, "_LIMIT_S", 1.0)
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Sin", ["v"], ["w"])],
        "body",
        [value("i", [], INT64), value("go", [], TensorProto.BOOL), value("v", [1, 4])],
        [value("on", [], TensorProto.BOOL), value("w", [1, 4])],
    )
    node = helper.make_node("Loop", ["", "true", "x"], ["y"], body=body, name="loop")
    proto = made([node], [value("x", [1, 4])], [value("y", [1, 4])], [constant("true", True, bool)])
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


def test_a_slow_model_without_loops_is_no_endless_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same, "_LIMIT_S", 1e-6)
    x = np.ones((1, 4, 8, 8), np.float32)
    assert load(saved(residual(), tmp_path), samples=lambda _: [{"x": x}]).run_s > 0.0


def test_an_element_type_that_does_not_exist(tmp_path: Path) -> None:
    proto = residual()
    proto.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(BadModel, match="tensor x has the element type 99"):
        load(saved(proto, tmp_path))
    proto = residual()
    proto.graph.initializer[0].data_type = 99
    with pytest.raises(BadModel, match=r"weight .* has the element type 99"):
        load(saved(proto, tmp_path))


def test_more_elements_than_memory(tmp_path: Path) -> None:
    proto = made([helper.make_node("Relu", ["x"], ["y"])], [value("x", [2**62])], [value("y", None)])
    with pytest.raises(BadModel, match="input x has 4,611,686,018,427,387,904 elements"):
        load(saved(proto, tmp_path))


def test_a_weight_whose_shape_is_not_that_of_its_values(tmp_path: Path) -> None:
    proto = residual()
    proto.graph.initializer[0].dims[0] = 2**62
    with pytest.raises(BadModel), contextlib.suppress(OverflowError):
        load(saved(proto, tmp_path))


@pytest.mark.whole
def test_ten_thousand_nodes_take_seconds(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"]) for i in range(10_000)]
    proto = made(nodes, [value("t0", [2])], [value("t10000", [2])])
    begun = time.process_time()
    graph = graphs.build(load(saved(proto, tmp_path)))
    assert len({block.name for block in graph.blocks}) == 10_000
    assert time.process_time() - begun < 30


def test_many_tensors_of_static_shape_are_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(saved(residual(), tmp_path))
    feed = random_feed(model.inputs, seed=0)
    every = observe.observe(model, feed, "x")
    monkeypatch.setattr(observe, "_ALL_OBSERVED", 3)
    monkeypatch.setattr(observe, "open_session", lambda *_, **__: pytest.fail("a session was opened"))
    assert observe.observe(model, feed, "x") == every


@pytest.mark.parametrize("batch", [1, "batch"])
def test_no_run_for_shapes_that_inference_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: object) -> None:
    """A 3-D network took 46 s to inspect."""
    proto = residual()
    for value_info in (*proto.graph.input, *proto.graph.output):
        if batch != 1:
            value_info.type.tensor_type.shape.dim[0].dim_param = str(batch)
    model = load(saved(proto, tmp_path))
    every = observe.observe(model, random_feed(model.inputs, seed=0), "x")
    monkeypatch.setattr(observe, "open_session", lambda *_, **__: pytest.fail("a session was opened"))
    assert observe_random(model)[0] == every


def test_sparse_weights(tmp_path: Path) -> None:
    """Given by flat indices and by coordinates."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    proto = made(nodes, [value("x", [1, 4])], [value("y", [1, 2])])
    for name, shape, at in (("a", [4, 4], [1, 6, 15]), ("b", [4, 2], [[0, 1], [3, 0]])):
        proto.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                constant(name, np.arange(1.0, len(at) + 1)), constant(f"{name}/at", at, np.int64), shape
            )
        )
    _, graph = taken(proto, tmp_path, {"x": X})
    assert all(block.quantizable for block in graph.blocks)
    proto.graph.sparse_initializer[0].indices.CopyFrom(constant("a/at", [1, 6, 16], np.int64))
    with pytest.raises(BadModel):
        load(saved(proto, tmp_path))


def test_tensors_of_types_that_shape_does_not_read(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    zero = helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0])
    proto = made(nodes, [value("x", [1, 4])], [value("y", [1, 4])], [constant("s", 0.05), zero], {"": 19})
    proto.ir_version = 9
    model, _ = taken(proto, tmp_path, {"x": X})
    assert observe.observe(model, {"x": X}, "x")["r"].shape == (1, 4)
