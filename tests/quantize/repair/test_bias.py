"""Bias correction: what int8 adds to the mean of each channel, its bias takes off."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from taglio.data.dataset import Dataset
from taglio.error.switchable import Switchable
from taglio.model import graph as graphs
from taglio.model.load import Model
from taglio.quantize.precision import precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges, calibrate
from taglio.quantize.repair import bias
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import Sketch, exact, loaded

SCHEME = exact("u8s8-asym-pt-bias")
PLAIN = SessionOptions(1, Optimization.NONE)


def positive(shape: Sequence[int], count: int) -> Dataset:
    """Samples far from zero, so that errors of weights do not average out."""
    rng = np.random.default_rng(0)
    samples = tuple({"x": rng.normal(4.0, 1.0, shape).astype(np.float32)} for _ in range(count))
    return Dataset("made up", samples, tuple(map(str, range(count))), None, "0")


def convolutions(*, biased: bool) -> onnx.ModelProto:
    g = Sketch(3)
    x = g.op("Relu", g.conv(g.input("x", 1, 4, 8, 8), 4, 8, bias=biased))
    return g.model(g.op("Relu", g.conv(x, 8, 6, bias=biased)))


def product(kind: str) -> onnx.ModelProto:
    g = Sketch(4)
    weight, added = g.constant(g.rng.normal(0, 0.3, (16, 5))), g.constant(g.rng.normal(0, 1, 5))
    x = g.input("x", 2, 16)
    if kind == "Gemm":
        return g.model(g.op("Gemm", x, weight, added))
    return g.model(g.op("Add", g.op("MatMul", x, weight), added))


def whole(model: Model, ranges: Ranges) -> onnx.ModelProto:
    graph = graphs.build(model)
    int8 = precisions(SCHEME)[1]
    builder = QdqBuilder(model, graph, {SCHEME.calibrated: ranges})
    return builder.build({block.name: int8 for block in graph.candidates()})


def shifts(model: Model, ranges: Ranges, data: Dataset) -> dict[str, tuple[float, ...]]:
    return bias.shifts(QdqBuilder(model, graphs.build(model), {SCHEME.calibrated: ranges}), SCHEME, data.samples)


def mean_errors(model: Model, ranges: Ranges, data: Dataset, axes: tuple[int, ...]) -> np.ndarray:
    """By output channel, the mean of int8 less float."""
    names = list(model.outputs)
    one, other = (open_session(proto, PLAIN) for proto in (model.proto, whole(model, ranges)))
    differences = [other.run(names, each)[0] - one.run(names, each)[0] for each in data.samples]
    return np.asarray(np.mean([each.mean(axis=axes) for each in differences], axis=0))


@pytest.mark.parametrize(
    ("proto", "shape", "axes"),
    [
        (convolutions(biased=True), (1, 4, 8, 8), (0, 2, 3)),
        (convolutions(biased=False), (1, 4, 8, 8), (0, 2, 3)),
        (product("Gemm"), (2, 16), (0,)),
        (product("MatMul"), (2, 16), (0,)),
    ],
    ids=["conv", "conv without bias", "gemm", "matmul and add"],
)
def test_the_mean_of_every_channel_comes_back(
    proto: onnx.ModelProto, shape: tuple[int, ...], axes: tuple[int, ...], tmp_path: Path
) -> None:
    model, data = loaded(proto, tmp_path), positive(shape, 16)
    found = calibrate(model, data, "minmax")
    before = mean_errors(model, found, data, axes)
    after = mean_errors(model, replace(found, shifts=shifts(model, found, data)), data, axes)
    assert np.linalg.norm(after) < 0.5 * np.linalg.norm(before)


@pytest.mark.parametrize("biased", [True, False])
def test_switched_is_what_is_built(biased: bool, tmp_path: Path) -> None:
    model, data = loaded(convolutions(biased=biased), tmp_path), positive((1, 4, 8, 8), 4)
    graph, found = graphs.build(model), calibrate(model, data, "minmax")
    found = replace(found, shifts=shifts(model, found, data))
    assert len(found.shifts) == 2
    builder = QdqBuilder(model, graph, {SCHEME.calibrated: found})
    switchable = Switchable(model, graph, builder, precisions(SCHEME), SessionOptions(1))
    int8 = precisions(SCHEME)[1]
    for names in ([block.name] for block in graph.candidates()):
        assignment = dict.fromkeys(names, int8)
        built = open_session(builder.build(assignment), SessionOptions(1)).run(list(model.outputs), data.samples[0])
        np.testing.assert_allclose(switchable.run(assignment, data.samples[0])[0], built[0], rtol=1e-5, atol=1e-5)


def test_a_scaled_gemm_stays_as_it_is(tmp_path: Path) -> None:
    g = Sketch(4)
    weight, added = g.constant(g.rng.normal(0, 0.3, (16, 5))), g.constant(g.rng.normal(0, 1, 5))
    model = loaded(g.model(g.op("Gemm", g.input("x", 2, 16), weight, added, beta=0.5)), tmp_path)
    data = positive((2, 16), 4)
    assert shifts(model, calibrate(model, data, "minmax"), data) == {}


def test_a_model_without_products_has_nothing_to_correct(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("x", "y")]
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=opsets, ir_version=8)
    model, data = loaded(proto, tmp_path), positive((2, 4), 2)
    assert shifts(model, calibrate(model, data, "minmax"), data) == {}
