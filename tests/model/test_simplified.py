"""Simplifying a model: its answers stay, what it stores does not grow, and what is odd in it is told."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from taglio.model.captures import graphs
from taglio.model.load import Model, load
from taglio.model.observe import tensor_shapes
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.model.test_load import answers
from tests.models import TINY, Sketch, loaded, messy, parsed, saved


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
    assert "answers are random (RandomNormalLike, RandomUniformLike): for the same input output" in model.notes[0].text
    assert model.opset == 17  # raised, though its answers are others each time
    assert noisy("Neg").notes == ()


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


SCALER = "(float[1, 3] x) => (float[1, 3] y) { y = ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (x) }"


def test_no_opset_is_added_to_a_model_that_imports_none(tmp_path: Path) -> None:
    """ONNX Runtime declares its newest, which other runtimes refuse and QuantizeLinear lacks."""
    model = load(saved(parsed(SCALER, imports='"ai.onnx.ml": 1'), tmp_path))
    assert (model.opset, model.no_int8) == (0, "no operator of ONNX's own domain computes")


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_an_old_upsample_is_raised_and_answers_as_before(mode: str, tmp_path: Path) -> None:
    """onnx's converter makes it a Resize that takes pixels by their centres."""
    text = f'(float[1, 2, 5, 5] x) => (float[] y) {{ up = Upsample <mode = "{mode}"> (x, scales) y = Conv (up, w) }}'
    constants = {"w": np.ones((2, 2, 3, 3)), "scales": [1.0, 1.0, 2.0, 3.0]}
    model = load(saved(parsed(text, constants, imports='"": 9'), tmp_path))
    assert (model.opset, model.no_int8) == (17, "")


def test_weights_that_one_branch_reads_move_into_it(tmp_path: Path) -> None:
    """`twice` is read in both branches and `outside` by the graph too: these stay."""
    products = "{0}1 = MatMul (x, {0}) {0}2 = MatMul ({0}1, twice) {0}3 = MatMul ({0}2, outside)"
    branch = f"() => (float[] {{0}}3) {{{{ {products} }}}}"
    proto = parsed(
        f"""(float[2, 4] x, bool which) => (float[] y) {{
            chosen = If (which) <
                then_branch = there {branch.format("there")}, else_branch = here {branch.format("here")}
            >
            y = MatMul (chosen, outside)
        }}""",
        {name: np.full((4, 4), index + 1.0) for index, name in enumerate(("there", "here", "twice", "outside"))},
    )
    model = load(saved(proto, tmp_path))
    initializers_of = {scope.name: {tensor.name for tensor in scope.initializer} for scope in graphs(model.proto.graph)}
    assert initializers_of == {model.proto.graph.name: {"twice", "outside"}, "there": {"there"}, "here": {"here"}}
    for which in (True, False):
        feed = {"x": np.ones((2, 4), np.float32), "which": np.array(which)}
        before, after = (
            open_session(version, SessionOptions(1), label="m").run(None, feed)[0] for version in (proto, model.proto)
        )
        np.testing.assert_array_equal(before, after)


# Constants


@pytest.mark.parametrize(
    "table",
    [
        "t = Expand (row, shape)",
        "t = Tile (row, times)",
        "t = ConstantOfShape (shape)",
        "r = Range (zero, end, one) t = Reshape (r, shape)",
    ],
)
def test_a_table_that_operators_write_is_not_stored_in_the_model(table: str, tmp_path: Path) -> None:
    rows = 400_000
    read = "i = Cast <to = 7> (at) g = Gather (t, i) y = Add (g, x)"
    text = f"(float[1] at, float[1, 4] x) => (float[1, 4] y) {{ {table} {read} }}"
    constants: dict[str, object] = {"row": np.ones((1, 4)), "shape": np.array([rows, 4]), "times": np.array([rows, 1])}
    constants |= {"zero": np.float32(0), "end": np.float32(4 * rows), "one": np.float32(1)}
    used = {name: value for name, value in constants.items() if name in table}
    assert loaded(parsed(text, used), tmp_path).proto.ByteSize() < 10_000


# Outputs


@pytest.mark.parametrize(
    ("batch", "declared", "right"),
    [
        (2, (2, 7), (2, 12)), ("N", (1, 12), ("N", 12)), (2, (2, 3, 4), (2, 12)),
        (2, (2, 12), (2, 12)), (2, ("rows", 12), ("rows", 12)),  # right, and wider than needed
    ],
)  # fmt: skip
def test_a_stale_shape_of_an_output_is_corrected_and_told(
    batch: int | str, declared: tuple[int | str, ...], right: tuple[int | str, ...], tmp_path: Path
) -> None:
    g = Sketch(34)
    proto = g.model(g.op("Relu", g.op("MatMul", g.input("x", batch, 16), g.weight(16, 12))))
    name = proto.graph.output[0].name
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, TensorProto.FLOAT, declared))
    model = loaded(proto, tmp_path)
    dims = model.proto.graph.output[0].type.tensor_type.shape.dim
    assert tuple(dim.dim_param or dim.dim_value for dim in dims) == right
    told = [f"declares [{', '.join(map(str, declared))}] for output {name}"] if declared != right else []
    assert len(model.notes) == len(told) and all(words in " ".join(map(str, model.notes)) for words in told)


def test_the_frequencies_of_an_stft_are_counted_one_sided(tmp_path: Path) -> None:
    """Shape inference takes an STFT without `onesided` for two-sided, and the switchable graph would not load."""
    text = """(float[1, 96, 1] wave) => (float[1, 5, 17, 2] spectrum, float[1, 5, 17, 2] y) {
        spectrum = STFT (wave, hop, window)
        power = Mul (spectrum, spectrum)
        y = Relu (power)
    }"""
    model = loaded(parsed(text, {"hop": np.array(16), "window": np.ones(32)}), tmp_path)
    assert model.notes == ()
    assert tensor_shapes(model.proto)["power"] == (1, 5, 17, 2)
