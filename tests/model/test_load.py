"""Reading a model: each refusal with its words and numbers, shapes and what a file says of itself."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from taglio.data.spec import InputSpec
from taglio.errors import BadData, BadModel
from taglio.model.inputs import random_feed
from taglio.model.load import Model, load
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import (
    Sketch,
    parsed,
    saved,
)


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


@pytest.mark.parametrize(("value", "count"), [(np.nan, 2), (np.inf, 1)])
def test_weights_that_are_not_numbers(tmp_path: Path, value: float, count: int) -> None:
    g = Sketch(34)
    weights = g.rng.normal(0, 1, (4, 3, 3, 3))
    weights.ravel()[:count] = value
    proto = g.model(g.op("Conv", g.input("x", 1, 3, 8, 8), g.constant(weights, "kernel")))
    text = refusal(saved(proto, tmp_path))
    assert f"weight kernel of Conv conv0 has {count} NaN or Inf among 108 values" in text


def test_an_output_that_is_listed_twice(tmp_path: Path) -> None:
    """ONNX Runtime runs it and gives the answer twice."""
    g = Sketch(34)
    proto = g.model(g.op("Relu", g.input("x", 1, 3)))
    proto.graph.output.append(proto.graph.output[0])
    assert f"lists the output {proto.graph.output[0].name} 2 times" in refusal(saved(proto, tmp_path))


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
        ({"x": (1, 3, 8)}, "`shapes` x gives 3 dimensions; the input has 4"),
        ({"x": (1, 4, 8, 8)}, "`shapes` x gives 4 where the model fixes 3"),
    ],
)
def test_a_wrong_shape_flag(tmp_path: Path, shapes: dict[str, tuple[int, ...]], words: str) -> None:
    assert words in refusal(saved(batched(), tmp_path), shapes)


@pytest.mark.parametrize(
    ("declared", "shape"),
    [((1, 0, 8), (1, 0, 8)), ((-1, 3, 8, 8), (None, 3, 8, 8)), (None, None)],
    ids=["a size of 0", "-1", "none"],
)
def test_odd_shapes_of_inputs_are_read(
    declared: tuple[int, ...] | None, shape: tuple[int | None, ...] | None, tmp_path: Path
) -> None:
    g = Sketch(31)
    g.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, declared))
    path = saved(g.model(g.op("Relu", "x")), tmp_path)
    assert load(path).inputs[0].shape == shape
    if shape is None:
        assert load(path, {"x": (2, 3)}).inputs[0].shape == (2, 3)


def test_inputs_that_cannot_be_random_refuse_nothing(tmp_path: Path) -> None:
    """Integer division by zero, a shape and an index out of range: random values end in an error."""
    path = saved(parsed("(float[1, 6] x, int64[2] shape) => (float[] y) { y = Reshape (x, shape) }"), tmp_path)
    assert [spec.name for spec in load(path).inputs] == ["x", "shape"]
    feed = {"x": np.ones((1, 6), np.float32), "shape": np.array([2, 3])}
    assert load(path, samples=lambda _: [feed]).inputs[1].dtype == "int64"
    with pytest.raises(BadData, match="cannot run these inputs"):
        load(path, samples=lambda _: [{**feed, "shape": np.array([4, 4])}])


def test_an_input_that_is_no_tensor(tmp_path: Path) -> None:
    proto = parsed("(seq(float[]) items) => (int64 n) { n = SequenceLength (items) }")
    assert "input items is not a tensor" in refusal(saved(proto, tmp_path))


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
    assert [str(note) for note in model.notes] == [
        f"dimension S is {lengths[0]} in a and {lengths[1]} in b, so it is taken as several"
    ]
    assert [spec.shape for spec in model.inputs] == [("B", None, 16)] * 2
    (answer,) = open_session(model.proto, SessionOptions(1)).run(None, feed)
    assert answer.shape == (1, lengths[0], 16)


def test_operators_may_come_before_those_that_they_read(tmp_path: Path) -> None:
    model = parsed(
        """(float[1, 8] x) => (float[1, 8] y) {
            [last] y = MatMul (r, w)
            [middle] r = Relu (a)
            [first] a = MatMul (x, w)
        }""",
        {"w": np.ones((8, 8), np.float32)},
    )
    assert list(load(saved(model, tmp_path)).nodes()) == ["first", "middle", "last"]
