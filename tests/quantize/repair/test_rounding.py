"""Weights rounded so that products change least: never worse than the nearest integers on correlated inputs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from taglio.artifact import load, save
from taglio.data.dataset import Dataset
from taglio.error.switchable import Switchable
from taglio.model import graph as graphs
from taglio.model.load import Model
from taglio.quantize.precision import precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges, calibrate
from taglio.quantize.repair import rounding
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import Sketch, exact, loaded

SCHEME = exact("u8s8-asym-pc-rounding")
PLAIN = SessionOptions(1, Optimization.NONE)


def correlated(shape: Sequence[int], count: int) -> Dataset:
    """Samples whose values are mixtures of a few, and alike in neighbouring pixels."""
    rng = np.random.default_rng(0)
    size = int(np.prod(shape))
    pixels = [*shape[:2], *[1] * (len(shape) - 2)]
    mixing = (rng.normal(0, 1, (6, *pixels)) + rng.normal(0, 0.2, (6, *shape))).reshape(6, size)
    samples = tuple(
        {"x": (rng.normal(0, 1, 6) @ mixing + rng.normal(0, 0.02, size)).reshape(shape).astype(np.float32)}
        for _ in range(count)
    )
    return Dataset("made up", samples, tuple(map(str, range(count))), None, "0")


def convolution(group: int = 1, **attributes: Any) -> onnx.ModelProto:
    g = Sketch(3)
    weights = [g.weight(8, 8 // group, 3, 3), g.constant(g.rng.normal(0, 0.2, 8))]
    return g.model(g.op("Conv", g.input("x", 1, 8, 6, 6), *weights, group=group, **attributes))


def product(kind: str, **attributes: Any) -> onnx.ModelProto:
    g = Sketch(4)
    shape = (10, 48) if attributes.get("transB") else (48, 10)
    weight, added = g.constant(g.rng.normal(0, 0.3, shape)), g.constant(g.rng.normal(0, 1, 10))
    x = g.input("x", 4, 48)
    if kind == "Gemm":
        return g.model(g.op("Gemm", x, weight, added, **attributes))
    return g.model(g.op("Add", g.op("MatMul", x, weight), added))


def error(model: Model, ranges: Ranges, data: Dataset) -> float:
    """How far the float operator's answers are with its weights as they are stored: inputs are not quantised."""
    (node,) = (each for each in model.proto.graph.node if each.op_type != "Add")
    builder = QdqBuilder(model, graphs.build(model), {SCHEME.calibrated: ranges})
    weight = builder.quantized_weight(node, node.input[0], SCHEME)
    shape = [-1 if axis == weight.axis else 1 for axis in range(weight.values.ndim)]
    values = (weight.values.astype(np.float32) - weight.zero_point.reshape(shape)) * weight.scale.reshape(shape)
    changed = onnx.ModelProto()
    changed.CopyFrom(model.proto)
    for tensor in changed.graph.initializer:
        if tensor.name == node.input[1]:
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
    one, other = (open_session(proto, PLAIN) for proto in (model.proto, changed))
    names = list(model.outputs)
    return float(np.sqrt(sum(np.square(other.run(names, x)[0] - one.run(names, x)[0]).sum() for x in data.samples)))


def integers(model: Model, found: Ranges, data: Dataset, **limits: Any) -> dict[str, bytes]:
    builder = QdqBuilder(model, graphs.build(model), {SCHEME.calibrated: found})
    return rounding.rounded_weights(builder, SCHEME, data.samples, **{"budget_s": 10.0, **limits})


CASES = {
    "conv": (convolution(), (1, 8, 6, 6)),
    "padded and strided": (convolution(pads=[1, 2, 0, 1], strides=[2, 1]), (1, 8, 6, 6)),
    "dilated": (convolution(dilations=[2, 2]), (1, 8, 6, 6)),
    "groups": (convolution(group=2, pads=[1] * 4), (1, 8, 6, 6)),
    "depthwise": (convolution(group=8, pads=[1] * 4), (1, 8, 6, 6)),
    "matmul": (product("MatMul"), (4, 48)),
    "gemm": (product("Gemm"), (4, 48)),
    "gemm turned": (product("Gemm", transB=1), (4, 48)),
}


@pytest.mark.parametrize(("proto", "shape"), CASES.values(), ids=CASES)
def test_products_of_correlated_inputs_change_less(
    proto: onnx.ModelProto, shape: tuple[int, ...], tmp_path: Path
) -> None:
    model, data = loaded(proto, tmp_path), correlated(shape, 64)
    found = calibrate(model, data, "minmax")
    fresh = replace(data, samples=data.samples[48:])
    rounded = replace(found, rounded=integers(model, found, replace(data, samples=data.samples[:48])))
    assert len(rounded.rounded) == 1
    assert error(model, rounded, fresh) < 0.95 * error(model, found, fresh)


def test_without_correlation_the_nearest_integers_stay(tmp_path: Path) -> None:
    """Of one column for each group there is nothing that another could make up for."""
    g = Sketch(3)
    model = loaded(g.model(g.op("Conv", g.input("x", 1, 8, 6, 6), g.weight(8, 1, 1, 1), group=8)), tmp_path)
    data = correlated((1, 8, 6, 6), 4)
    found = calibrate(model, data, "minmax")
    (stored,) = integers(model, found, data).values()
    builder = QdqBuilder(model, graphs.build(model), {SCHEME.calibrated: found})
    (node,) = model.proto.graph.node
    assert stored == builder.quantized_weight(node, node.input[0], SCHEME).values.tobytes()


def test_switched_is_what_is_built_and_what_is_kept(tmp_path: Path) -> None:
    model, data = loaded(convolution(pads=[1] * 4), tmp_path), correlated((1, 8, 6, 6), 8)
    graph, found = graphs.build(model), calibrate(model, data, "minmax")
    found = replace(found, rounded=integers(model, found, data))
    save(tmp_path / "ranges.json", "ranges", model.sha256, found)
    assert load(tmp_path / "ranges.json", "ranges", Ranges, model_sha256=model.sha256) == found
    builder = QdqBuilder(model, graph, {SCHEME.calibrated: found})
    switchable = Switchable(model, graph, builder, precisions(SCHEME), SessionOptions(1))
    assignment = {block.name: precisions(SCHEME)[1] for block in graph.candidates()}
    built = open_session(builder.build(assignment), SessionOptions(1)).run(list(model.outputs), data.samples[0])
    np.testing.assert_allclose(switchable.run(assignment, data.samples[0])[0], built[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("limits", [{"budget_s": 0.0}, {"room_bytes": 1000.0}], ids=["time", "memory"])
def test_what_there_is_no_room_for_stays(limits: dict[str, float], tmp_path: Path) -> None:
    model, data = loaded(convolution(), tmp_path), correlated((1, 8, 6, 6), 4)
    assert integers(model, calibrate(model, data, "minmax"), data, **limits) == {}


def test_a_weight_that_two_operators_read_stays(tmp_path: Path) -> None:
    g = Sketch(4)
    x, weight = g.input("x", 4, 48), g.constant(g.rng.normal(0, 0.3, (48, 48)))
    model = loaded(g.model(g.op("MatMul", g.op("MatMul", x, weight), weight)), tmp_path)
    data = correlated((4, 48), 4)
    assert integers(model, calibrate(model, data, "minmax"), data) == {}
