"""Reading a model: each refusal with its words and numbers, and that what is simplified answers as before."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taglio.data.spec import InputSpec
from taglio.errors import BadData, BadModel
from taglio.model import opset
from taglio.model.captures import graphs
from taglio.model.inputs import random_feed
from taglio.model.load import Model, load
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import TINY, Sketch, branching, conv_relu_chain, loaded, messy, residual, saved, silu, two_in_two_out

SHARED = Path(__file__).parents[2] / ".." / "shared"
ULTRAFACE = SHARED / "models" / "ultraface-rfb-320.onnx"


def answers(proto: onnx.ModelProto | Path, model: Model) -> list[np.ndarray]:
    session = open_session(proto, SessionOptions(threads=1, optimization=Optimization.BASIC))
    outputs: list[np.ndarray] = session.run(None, random_feed(model.inputs, seed=3))
    return outputs


def refusal(path: Path, shapes: dict[str, tuple[int, ...]] | None = None) -> str:
    with pytest.raises(BadModel) as caught:
        load(path, shapes)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text or not path.name
    return text


def batched() -> onnx.ModelProto:
    g = Sketch(30)
    return g.model(g.conv(g.input("x", "batch", 3, 8, 8), 3, 4))


# Files


def test_a_missing_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.onnx")


def test_a_folder(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"1")
    refusal(tmp_path / "model.onnx" / "model.onnx")


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    assert "is empty (0 bytes)" in refusal(path)


def test_a_file_that_is_not_onnx(tmp_path: Path) -> None:
    path = tmp_path / "notes.onnx"
    path.write_text("a shopping list, not a model")
    assert "not an ONNX file" in refusal(path)


def test_a_model_in_onnx_runtimes_own_format(tmp_path: Path) -> None:
    """Which also holds what ONNX Runtime fused when it was saved."""
    path = saved(conv_relu_chain(), tmp_path)
    fused = tmp_path / "fused.ort"
    extended = SessionOptions(1, Optimization.EXTENDED)
    open_session(path, extended, save_optimized=fused)
    model = load(fused)
    assert model.name == "fused" and "FusedConv" in {node.op_type for node in model.proto.graph.node}
    feed = random_feed(model.inputs, seed=3)
    wanted, simplified = (open_session(source, SessionOptions(1)).run(None, feed) for source in (path, model.proto))
    np.testing.assert_allclose(simplified[0], wanted[0], rtol=1e-4, atol=1e-5)
    open_session(branching(), extended, save_optimized=fused)
    assert "If" in {node.op_type for node in load(fused).proto.graph.node}
    fused.write_bytes(fused.read_bytes()[:400])
    assert "ONNX Runtime" in refusal(fused)


@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.95])
def test_a_truncated_file(tmp_path: Path, part: float) -> None:
    whole = residual().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[: int(len(whole) * part)])
    text = refusal(path)
    assert f"{int(len(whole) * part):,} bytes" in text
    assert "export it again" in text


def test_a_model_without_operators(tmp_path: Path) -> None:
    proto = residual()
    del proto.graph.node[:]
    assert "holds no ONNX graph" in refusal(saved(proto, tmp_path))


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_refused_or_loads_but_never_crashes(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(conv_relu_chain().SerializeToString())
    for _ in range(3):
        # Above the names and operators: bytes of the weights.
        data[int(rng.integers(len(data) // 4, len(data)))] = int(rng.integers(256))
    path = tmp_path / "damaged.onnx"
    path.write_bytes(bytes(data))
    with contextlib.suppress(BadModel):
        assert isinstance(load(path), Model)


def test_a_name_that_is_not_text(tmp_path: Path) -> None:
    data = residual().SerializeToString()
    path = tmp_path / "damaged.onnx"
    for named in (b"\x1a\x05conv0", b"\x12\x04tiny"):  # NodeProto.name: field 3, five bytes; GraphProto.name
        assert named in data
        path.write_bytes(data.replace(named, named[:-2] + b"\xff\xfe"))
        refusal(path)


def test_external_weights_are_read_and_missing_ones_named(tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    onnx.save(residual(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = load(path)
    for ours, theirs in zip(answers(model.proto, model), answers(residual(), model)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    before = model.sha256
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x00\x00\x80\x3f")
    assert load(path).sha256 != before
    weights.unlink()
    assert "external weights cannot be read" in refusal(path)


# Shapes


def test_dynamic_dimensions_stay_as_the_model_names_them(tmp_path: Path) -> None:
    proto = batched()
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "answers"
    model = load(saved(proto, tmp_path))
    assert model.inputs == (InputSpec("x", ("batch", 3, 8, 8), "float32"),)
    assert list(model.proto.graph.input) == list(proto.graph.input)
    assert list(model.proto.graph.output) == list(proto.graph.output)
    assert random_feed(model.inputs, 0)["x"].shape == (1, 3, 8, 8)


def test_a_dynamic_dimension_can_be_fixed(tmp_path: Path) -> None:
    path = saved(batched(), tmp_path)
    one, two = (load(path, {"x": (batch, 3, 8, 8)}) for batch in (1, 2))
    assert two.inputs[0].shape == (2, 3, 8, 8)
    assert answers(two.proto, two)[0].shape == (2, 4, 8, 8)
    assert one.sha256 != two.sha256


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": (1, 3, 8, 8)}, "`shapes` names the input z; the model's inputs are x"),
        ({"x": (1, 3, 8)}, "`shapes` x gives 3 dimensions; the input has 4"),
        ({"x": (1, 4, 8, 8)}, "`shapes` x gives 4 where the model fixes 3"),
        ({"x": (-1, 3, 8, 8)}, "`shapes` x gives -1: give sizes of 0 or more"),
    ],
)
def test_a_wrong_shape_flag(tmp_path: Path, shapes: dict[str, tuple[int, ...]], words: str) -> None:
    assert words in refusal(saved(batched(), tmp_path), shapes)


def test_a_zero_dimension_is_a_size(tmp_path: Path) -> None:
    g = Sketch(31)
    model = load(saved(g.model(g.op("Relu", g.input("x", 1, 0, 8))), tmp_path))
    assert model.inputs[0].shape == (1, 0, 8)


def test_an_input_without_a_shape_takes_any_or_the_one_given(tmp_path: Path) -> None:
    g = Sketch(32)
    g.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))
    path = saved(g.model(g.op("Relu", "x")), tmp_path)
    assert load(path).inputs[0].shape is None
    assert load(path, {"x": (2, 3)}).inputs[0].shape == (2, 3)


def test_a_dimension_of_minus_one_is_dynamic(tmp_path: Path) -> None:
    proto = batched()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert load(saved(proto, tmp_path)).inputs[0].shape == (None, 3, 8, 8)


def test_inputs_that_cannot_be_random_refuse_nothing(tmp_path: Path) -> None:
    """Integer division by zero, a shape and an index out of range: random values end in an error."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"])], "g", [x, shape], [y])
    path = saved(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path)
    assert [spec.name for spec in load(path).inputs] == ["x", "shape"]
    feed = {"x": np.ones((1, 6), np.float32), "shape": np.array([2, 3])}
    assert load(path, samples=lambda _: [feed]).inputs[1].dtype == "int64"
    with pytest.raises(BadData, match="cannot run these inputs"):
        load(path, samples=lambda _: [{**feed, "shape": np.array([4, 4])}])


def test_an_input_that_is_no_tensor(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("items", TensorProto.FLOAT, None)
    length = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    graph = helper.make_graph([helper.make_node("SequenceLength", ["items"], ["n"])], "g", [sequence], [length])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert "input items is not a tensor" in refusal(saved(proto, tmp_path))


def test_shapes_that_contradict_the_weights(tmp_path: Path) -> None:
    g = Sketch(33)
    node = helper.make_node("Conv", [g.input("x", 1, 5, 8, 8), g.weight(4, 3, 3, 3)], ["y"], name="conv")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    proto = helper.make_model(helper.make_graph([node], "g", g.inputs, [output], g.initializers), ir_version=8)
    proto.opset_import[0].version = 17
    with pytest.raises(BadData, match="cannot run these inputs"):
        load(saved(proto, tmp_path), samples=lambda inputs: [random_feed(inputs, 0)])


# Values and operators


@pytest.mark.parametrize(("value", "count"), [(np.nan, 2), (np.inf, 1)])
def test_weights_that_are_not_numbers(tmp_path: Path, value: float, count: int) -> None:
    g = Sketch(34)
    weights = g.rng.normal(0, 1, (4, 3, 3, 3))
    weights.ravel()[:count] = value
    proto = g.model(g.op("Conv", g.input("x", 1, 3, 8, 8), g.constant(weights, "kernel")))
    text = refusal(saved(proto, tmp_path))
    assert f"weight kernel of Conv conv0 has {count} NaN or Inf among 108 values" in text


def test_a_nan_in_a_constant_operator(tmp_path: Path) -> None:
    g = Sketch(35)
    value = numpy_helper.from_array(np.array([[1, np.nan], [2, 3]], np.float32))
    proto = g.model(g.op("MatMul", g.input("x", 1, 2), g.op("Constant", value=value)))
    assert "of MatMul" in refusal(saved(proto, tmp_path))


def test_an_operator_of_a_custom_domain(tmp_path: Path) -> None:
    proto = silu()
    proto.graph.node[3].domain = "ai.acme"
    proto.opset_import.append(helper.make_opsetid("ai.acme", 1))
    text = refusal(saved(proto, tmp_path))
    assert 'operator Conv (conv3) has the custom domain "ai.acme"' in text


def test_an_opset_that_does_not_exist(tmp_path: Path) -> None:
    proto = residual()
    proto.opset_import[0].version = 99
    assert "ONNX Runtime" in refusal(saved(proto, tmp_path))


# What is read


@pytest.mark.parametrize("make", TINY.values(), ids=TINY)
def test_a_simplified_model_answers_as_the_original(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    original = make()
    model = loaded(original, tmp_path)
    names = {tensor.name for tensor in original.graph.initializer}
    del original.graph.input[:]
    original.graph.input.extend(value for value in make().graph.input if value.name not in names)
    original.ir_version = max(original.ir_version, 4)
    for ours, theirs in zip(answers(model.proto, model), answers(original, model), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert model.outputs == tuple(value.name for value in make().graph.output)


def test_random_answers_are_told_and_no_reason_to_leave_a_model_as_it_is(tmp_path: Path) -> None:
    def noisy(*kinds: str, opset: int = 17) -> Model:
        g = Sketch(opset=opset)
        y = g.conv(g.input("x", 1, 3, 8, 8), 3, 4)
        for kind in kinds:
            y = g.op("Add", y, g.op(kind, y))
        mean, scale = g.constant(np.zeros(4)), g.constant(np.ones(4))
        y = g.op("BatchNormalization", y, scale, mean, mean, scale)
        return loaded(g.model(y), tmp_path)

    model = noisy("RandomNormalLike", "RandomUniformLike", opset=11)
    assert "answers are random (RandomNormalLike, RandomUniformLike): for the same input output" in model.remarks[0]
    assert model.opset == 17  # raised, though its answers are others each time
    assert noisy("Neg").remarks == ()


def test_a_model_with_random_answers_is_simplified_alike_each_time(tmp_path: Path) -> None:
    """Else a workspace would not fit the model when it is opened again. Here the noise differs much between samples."""
    g = Sketch()
    mean = g.op("MatMul", g.input("x", 1, 4), g.weight(4, 4))
    mean = g.op("Add", mean, g.constant(np.ones(4)))
    noise = g.op("Mul", g.op("Exp", mean), g.op("RandomNormalLike", mean))
    path = saved(g.model(g.op("Add", mean, noise)), tmp_path)
    feeds = [{"x": np.full((1, 4), fill, np.float32)} for fill in (-1.0, 0.0, 1.0, 2.0)]
    blocks = {tuple(node.name for node in load(path, samples=lambda _: feeds).proto.graph.node) for _ in range(20)}
    assert len(blocks) == 1


def test_a_messy_old_model_comes_out_clean(tmp_path: Path) -> None:
    model = loaded(messy(), tmp_path)
    graph = model.proto.graph
    assert model.opset == 17
    assert [spec.name for spec in model.inputs] == ["x"]
    assert [value.name for value in graph.input] == ["x"]
    assert "BatchNormalization" not in {node.op_type for node in graph.node}
    names = [node.name for node in graph.node]
    assert all(names) and len(set(names)) == len(names)
    read = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in graph.initializer} <= read
    assert model.initializers().keys() == {tensor.name for tensor in graph.initializer}


@pytest.mark.skipif(
    not ULTRAFACE.exists(), reason="the shared folder's ultraface-rfb-320.onnx is not beside this checkout"
)
def test_a_real_messy_model() -> None:
    original = onnx.load(ULTRAFACE)
    kinds = {node.op_type for node in original.graph.node}
    assert "BatchNormalization" in kinds
    assert original.graph.initializer[0].name in {value.name for value in original.graph.input}
    model = load(ULTRAFACE)
    assert "BatchNormalization" not in {node.op_type for node in model.proto.graph.node}
    assert [spec.shape for spec in model.inputs] == [(1, 3, 240, 320)]
    for ours, theirs in zip(answers(model.proto, model), answers(ULTRAFACE, model), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_the_hash_is_of_the_file(tmp_path: Path) -> None:
    first, same = (load(saved(residual(), tmp_path, name)) for name in ("a", "b"))
    other = load(saved(silu(), tmp_path, "c"))
    assert first.sha256 == same.sha256 != other.sha256
    assert (first.name, same.name) == ("a", "b")


def test_inputs_and_outputs_are_described(tmp_path: Path) -> None:
    model = loaded(two_in_two_out(), tmp_path)
    assert [(spec.name, spec.shape, spec.dtype) for spec in model.inputs] == [
        ("left", (1, 3, 8, 8), "float32"),
        ("right", (1, 2, 8, 8), "float32"),
    ]
    assert model.outputs == ("middle", "end")


def test_random_feeds_fit_the_inputs_and_repeat(tmp_path: Path) -> None:
    model = loaded(two_in_two_out(), tmp_path)
    feed, same, other = (random_feed(model.inputs, seed) for seed in (1, 1, 2))
    assert {name: value.shape for name, value in feed.items()} == {"left": (1, 3, 8, 8), "right": (1, 2, 8, 8)}
    assert all(value.dtype == np.float32 for value in feed.values())
    np.testing.assert_array_equal(feed["left"], same["left"])
    assert (feed["left"] != other["left"]).any()


def test_the_file_is_not_written_to(tmp_path: Path) -> None:
    path = saved(messy(), tmp_path)
    before = path.read_bytes()
    load(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_model_of_trees_is_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No operator of its could be int8 at a newer opset, and trees may be large."""
    monkeypatch.setattr(opset, "_raised", lambda _: pytest.fail("it was converted"))
    x, y = (
        helper.make_tensor_value_info(name, kind, (1, 3))
        for name, kind in (("x", TensorProto.FLOAT), ("y", TensorProto.INT64))
    )
    nodes = [helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0])]
    nodes += [helper.make_node("Cast", ["s"], ["y"], to=TensorProto.INT64)]
    domains = [helper.make_opsetid("", 9), helper.make_opsetid("ai.onnx.ml", 1)]
    model = load(saved(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=domains), tmp_path))
    assert (model.opset, model.no_int8) == (9, "no operator of ONNX's own domain computes")


def test_no_opset_is_added_to_a_model_that_imports_none(tmp_path: Path) -> None:
    """ONNX Runtime declares its newest, which other runtimes refuse and QuantizeLinear lacks."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 3)) for name in "xy")
    nodes = [helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0])]
    domains = [helper.make_opsetid("ai.onnx.ml", 1)]
    model = load(saved(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=domains), tmp_path))
    assert (model.opset, model.no_int8) == (0, "no operator of ONNX's own domain computes")


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_an_old_upsample_is_raised_and_answers_as_before(mode: str, tmp_path: Path) -> None:
    """onnx's converter makes it a Resize that takes pixels by their centres."""
    weight = numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), "w")
    scales = numpy_helper.from_array(np.array([1, 1, 2, 3], np.float32), "scales")
    nodes = [
        helper.make_node("Upsample", ["x", "scales"], ["up"], mode=mode),
        helper.make_node("Conv", ["up", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 2, 5, 5]), ("y", None)))
    graph = helper.make_graph(nodes, "g", [x], [y], [weight, scales])
    model = load(saved(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4), tmp_path))
    assert (model.opset, model.no_int8) == (17, "")


def test_weights_that_one_branch_reads_move_into_it(tmp_path: Path) -> None:
    """`twice` is read in both branches and `outside` by the graph too: these stay."""
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=None)
    names = ("there", "here", "twice", "outside")
    weights = {name: np.full((4, 4), index + 1.0, np.float32) for index, name in enumerate(names)}

    def branch(own: str) -> onnx.GraphProto:
        read = [own, "twice", "outside"]
        nodes = [
            helper.make_node("MatMul", [before, weight], [f"{own}/{weight}"])
            for before, weight in zip(("x", *(f"{own}/{weight}" for weight in read)), read)
        ]
        return helper.make_graph(nodes, own, [], [value(f"{own}/outside")])

    nodes = [
        helper.make_node("If", ["which"], ["chosen"], then_branch=branch("there"), else_branch=branch("here")),
        helper.make_node("MatMul", ["chosen", "outside"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])]
    inputs.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    kept = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [value("y")], kept)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = load(saved(proto, tmp_path))
    initializers_of = {scope.name: {tensor.name for tensor in scope.initializer} for scope in graphs(model.proto.graph)}
    assert initializers_of == {model.proto.graph.name: {"twice", "outside"}, "there": {"there"}, "here": {"here"}}
    for which in (True, False):
        feed = {"x": np.ones((2, 4), np.float32), "which": np.array(which)}
        before, after = (
            open_session(version, SessionOptions(1), label="m").run(None, feed)[0] for version in (proto, model.proto)
        )
        np.testing.assert_array_equal(before, after)


# Dimensions


def two_lengths() -> onnx.ModelProto:
    """Two inputs whose second dimension has one name, though only the rows need it: the second is reduced over it."""
    g = Sketch(31)
    a, b = g.input("a", "B", "S", 16), g.input("b", "B", "S", 16)
    mean = g.op("ReduceMean", g.op("MatMul", b, g.weight(16, 16)), axes=[1], keepdims=1)
    return g.model(g.op("Add", g.op("MatMul", a, g.weight(16, 16)), mean))


@pytest.mark.parametrize("lengths", [(5, 9), (9, 5), (1, 40)])
def test_a_dimension_with_two_sizes_in_the_data_loses_its_name(lengths: tuple[int, int], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    feed = {
        name: rng.standard_normal((1, size, 16)).astype(np.float32) for name, size in zip("ab", lengths, strict=True)
    }
    model = load(saved(two_lengths(), tmp_path), samples=lambda _: [feed])
    assert model.remarks == (f"dimension S is {lengths[0]} in a and {lengths[1]} in b, so it is taken as several",)
    assert [spec.shape for spec in model.inputs] == [("B", None, 16)] * 2
    (answer,) = open_session(model.proto, SessionOptions(1)).run(None, feed)
    assert answer.shape == (1, lengths[0], 16)


def test_a_dimension_with_one_size_keeps_its_name(tmp_path: Path) -> None:
    feed = {name: np.ones((1, 4, 16), np.float32) for name in "ab"}
    model = load(saved(two_lengths(), tmp_path), samples=lambda _: [feed])
    assert model.remarks == () and [spec.shape for spec in model.inputs] == [("B", "S", 16)] * 2


# Constants


@pytest.mark.parametrize("kind", ["Expand", "Tile", "ConstantOfShape", "Range"])
def test_a_table_that_operators_write_is_not_stored_in_the_model(kind: str, tmp_path: Path) -> None:
    g = Sketch(32)
    rows = 400_000
    match kind:
        case "Expand":
            table = g.op("Expand", g.weight(1, 4), g.constant(np.array([rows, 4])))
        case "Tile":
            table = g.op("Tile", g.weight(1, 4), g.constant(np.array([rows, 1])))
        case "ConstantOfShape":
            table = g.op("ConstantOfShape", g.constant(np.array([rows, 4])))
        case _:
            ends = (g.constant(np.array(end, np.float32)) for end in (0, 4 * rows, 1))
            table = g.op("Reshape", g.op("Range", *ends), g.constant(np.array([rows, 4])))
    row = g.op("Gather", table, g.op("Cast", g.input("row", 1), to=TensorProto.INT64), axis=0)
    model = loaded(g.model(g.op("Add", row, g.input("x", 1, 4))), tmp_path)
    assert model.proto.ByteSize() < 10_000


def test_weights_that_are_moved_are_folded_whatever_their_size(tmp_path: Path) -> None:
    g = Sketch(33)
    moved = g.op("Transpose", g.weight(600, 500), perm=[1, 0])
    model = loaded(g.model(g.op("MatMul", g.input("x", 1, 500), moved)), tmp_path)
    assert [node.op_type for node in model.proto.graph.node] == ["MatMul"]


# Outputs


@pytest.mark.parametrize(
    ("batch", "declared", "right"),
    [(2, (2, 7), (2, 12)), (2, (1, 12), (2, 12)), ("N", (1, 12), ("N", 12)), (2, (2, 3, 4), (2, 12))],
)
def test_a_stale_shape_of_an_output_is_corrected_and_told(
    batch: int | str, declared: tuple[int, ...], right: tuple[int | str, ...], tmp_path: Path
) -> None:
    g = Sketch(34)
    proto = g.model(g.op("Relu", g.op("MatMul", g.input("x", batch, 16), g.weight(16, 12))))
    name = proto.graph.output[0].name
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, TensorProto.FLOAT, declared))
    model = loaded(proto, tmp_path)
    dims = model.proto.graph.output[0].type.tensor_type.shape.dim
    assert tuple(dim.dim_param or dim.dim_value for dim in dims) == right
    (remark,) = model.remarks
    assert f"declares [{', '.join(map(str, declared))}] for output {name}" in remark


def test_a_shape_that_is_right_or_wider_stays(tmp_path: Path) -> None:
    for declared in ((2, 12), ("rows", 12)):
        g = Sketch(35)
        proto = g.model(g.op("Relu", g.op("MatMul", g.input("x", 2, 16), g.weight(16, 12))))
        name = proto.graph.output[0].name
        proto.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, TensorProto.FLOAT, declared))
        model = loaded(proto, tmp_path)
        assert model.remarks == ()
