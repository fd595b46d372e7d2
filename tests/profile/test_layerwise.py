"""Layers alone: every block is timed, the two int8 cuts, the numbers of each sub-model, and the layer sum."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from taglio.data.files import load as load_data
from taglio.embedded import digits_data
from taglio.errors import BadOption, MeasurementFailed
from taglio.model.graph import Graph, build
from taglio.model.inputs import random_feed
from taglio.model.load import Model, load
from taglio.profile.layerwise import Cut, LayerCutter, LayerTime, LayerTimes, layer_times, predict_sum, speedups
from taglio.quantize.precision import FLOAT32, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges, calibrate
from taglio.quantize.scheme import parse_scheme
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import digits_model, loaded, parsed

ONE = SessionOptions(threads=1)
SCHEME = parse_scheme("u8s8-asym-pc-rr")  # as exact on every processor
CHOICES = precisions(SCHEME)
_, INT8, ANCHOR = CHOICES

Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def model() -> Model:
    return load(digits_model())


@pytest.fixture(scope="module")
def graph(model: Model) -> Graph:
    return build(model)


@pytest.fixture(scope="module")
def builder(model: Model, graph: Graph) -> QdqBuilder:
    data = load_data(digits_data(), model.inputs, limit=4)
    return QdqBuilder(model, graph, {"minmax": calibrate(model, data, "minmax")})


@pytest.fixture(scope="module")
def cutter(model: Model, builder: QdqBuilder) -> LayerCutter:
    return LayerCutter(model, build(model), builder)


@pytest.fixture(scope="module")
def tensors(model: Model, graph: Graph) -> Tensors:
    """Every tensor between blocks, as the whole float model computes it on one held-out image."""
    feed = load_data(digits_data(), model.inputs, limit=2).samples[1]
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    names = [tensor.name for tensor in graph.tensors if tensor.name not in feed]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in model.outputs)
    session = open_session(proto, SessionOptions(1, Optimization.BASIC))
    return {**feed, **dict(zip(names, session.run(names, feed), strict=True))}


def run(proto: onnx.ModelProto, tensors: Tensors) -> list[np.ndarray]:
    feed = {value.name: tensors[value.name] for value in proto.graph.input}
    return [np.asarray(value) for value in open_session(proto, ONE).run(None, feed)]


def kinds(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in proto.graph.node)


def types(values: Iterable[onnx.ValueInfoProto]) -> list[str]:
    return [helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name for value in values]


def test_every_block_is_timed_in_every_form_it_has(model: Model, graph: Graph, builder: QdqBuilder) -> None:
    calls: list[tuple[str, int, int]] = []

    times = layer_times(
        model,
        graph,
        builder,
        CHOICES,
        ONE,
        random_feed(model.inputs, 0),
        runs=2,
        progress=lambda *call: calls.append(call),
    )

    expected = {
        (block.name, precision.name) for block in graph.blocks for precision in CHOICES if precision.fits(block)
    }
    assert set(times.seconds()) == expected and len(times.layers) == len(expected)
    assert {name for name, precision in expected if precision == "float32"} == {block.name for block in graph.blocks}
    assert ("/Flatten", "int8") in expected  # a movement block
    assert ("/fine/fine.0/activation/Relu", "int8") not in expected  # a refused block
    assert all(layer.seconds > 0 for layer in times.layers)
    assert times.sessions == len(expected)
    assert times.wall_s > sum(3 * layer.seconds for layer in times.layers) / 2
    assert (times.cut, times.warmup, times.runs, times.model_sha256) == ("upstream", 1, 2, model.sha256)
    assert calls == [("timing layers", done, len(expected)) for done in range(len(expected) + 1)]


def test_upstream_begins_before_the_quantizer_and_downstream_behind_it(graph: Graph, cutter: LayerCutter) -> None:
    for block in graph.candidates():
        upstream, downstream = (cutter.layer(block, INT8, cut) for cut in ("upstream", "downstream"))
        assert types(upstream.graph.input) == ["float32"] * len(block.inputs), block.name
        assert types(downstream.graph.input) == ["uint8"] * len(block.inputs), block.name
        assert types(upstream.graph.output) == types(downstream.graph.output) == ["uint8"] * len(block.outputs)
        # What differs is one QuantizeLinear an input, and nothing else.
        assert kinds(upstream) - kinds(downstream) == Counter(QuantizeLinear=len(block.inputs)), block.name
        first = upstream.graph.node[0]
        assert first.op_type == "QuantizeLinear" and first.input[0] == block.inputs[0], block.name
        ends = {value.name for value in downstream.graph.output}
        last = {node.op_type for node in downstream.graph.node if ends & set(node.output)}
        assert last == {"QuantizeLinear"}, block.name


def test_an_anchor_leaves_float_behind(graph: Graph, cutter: LayerCutter) -> None:
    soft = [block for block in graph.blocks if block.soft_tail]
    assert [block.kind for block in soft] == ["Conv+Sigmoid+Mul"] * 2
    for block in soft:
        upstream, downstream = (cutter.layer(block, ANCHOR, cut) for cut in ("upstream", "downstream"))
        assert types(upstream.graph.output) == types(downstream.graph.output) == ["float32"]
        assert types(upstream.graph.input) == ["float32"] and types(downstream.graph.input) == ["uint8"]
        assert kinds(upstream)["QuantizeLinear"] == 2 and kinds(downstream)["QuantizeLinear"] == 1  # behind the Conv


@pytest.mark.parametrize("cut", ["upstream", "downstream"])
def test_a_float_layer_computes_what_the_whole_model_computes(
    graph: Graph, cutter: LayerCutter, tensors: Tensors, cut: Cut
) -> None:
    for block in graph.blocks:
        proto = cutter.layer(block, FLOAT32, cut)
        assert "QuantizeLinear" not in kinds(proto)
        assert [value.name for value in proto.graph.input] == list(block.inputs)
        for name, value in zip(block.outputs, run(proto, tensors), strict=True):
            np.testing.assert_allclose(value, tensors[name], rtol=1e-4, atol=1e-5, err_msg=f"{block.name}: {name}")


def test_an_int8_layer_has_the_real_scales(
    graph: Graph, builder: QdqBuilder, cutter: LayerCutter, tensors: Tensors
) -> None:
    """Fed real values and dequantised by the builder's own scale, every int8 layer is near the float model; and the
    downstream cut, fed what the upstream cut quantises, gives the same integers."""
    for block in graph.candidates():
        stored = {}
        for name in block.inputs:
            parameters = builder.parameters(name, SCHEME)
            levels = np.rint(tensors[name] / parameters.scale) + int(parameters.zero_point)
            stored[f"{name}/int8"] = np.clip(levels, 0, 255).astype(np.uint8)
        upstream = run(cutter.layer(block, INT8, "upstream"), tensors)
        downstream = run(cutter.layer(block, INT8, "downstream"), stored)
        for name, value, twin in zip(block.outputs, upstream, downstream, strict=True):
            np.testing.assert_array_equal(value, twin, err_msg=block.name)
            parameters = builder.parameters(name, SCHEME)
            restored = (value.astype(np.float32) - int(parameters.zero_point)) * parameters.scale
            distance = np.linalg.norm(restored - tensors[name]) / np.linalg.norm(tensors[name])
            assert distance < 0.06, f"{block.name}: {name} is {distance:.1%} off"


def test_an_index_that_is_computed_keeps_its_real_values(tmp_path: Path) -> None:
    """TopK's positions feed a Gather: random integers would point outside; the whole model's values are used."""
    proto = parsed("""(float[1, 300] x) => (float[1, 3] picked) <int64[1] k = {3}, int64[1] axis = {0}> {
        y = Relu (x)
        best, where = TopK <axis = 1> (y, k)
        index = Squeeze (where, axis)
        picked = Gather <axis = 1> (y, index)
    }""")
    model = loaded(proto, tmp_path)
    graph = build(model)
    builder = QdqBuilder(model, graph, {"minmax": Ranges("minmax", "", {})})

    times = layer_times(model, graph, builder, [FLOAT32], ONE, random_feed(model.inputs, 0), runs=1)

    assert {layer.block for layer in times.layers} == {block.name for block in graph.blocks}
    assert times.sessions == len(graph.blocks) + 1  # one more, for the real values


def test_the_layer_sum_and_the_speed_ups_by_hand(graph: Graph) -> None:
    """Every block 2 s in float; in int8 the n-th candidate takes n s: 2/n is its speed-up."""
    candidates = [block.name for block in graph.candidates()]
    layers = [LayerTime(block.name, "float32", 2.0) for block in graph.blocks]
    layers += [LayerTime(name, "int8", float(n)) for n, name in enumerate(candidates, 1)]
    times = LayerTimes(graph.model_sha256, "upstream", 1, 10, tuple(layers), len(layers), 1.0)

    assert predict_sum(times, graph, {}) == 2.0 * len(graph.blocks)
    mixed = {candidates[0]: INT8, candidates[3]: INT8}
    assert predict_sum(times, graph, mixed) == 2.0 * (len(graph.blocks) - 2) + 1.0 + 4.0
    assert speedups(times) == {name: 2.0 / n for n, name in enumerate(candidates, 1)}
    assert [name for name, ratio in speedups(times).items() if ratio > 1] == candidates[:1]
    with pytest.raises(BadOption, match=r"not timed alone in int8-anchor \(only: float32, int8\)"):
        predict_sum(times, graph, {candidates[0]: ANCHOR})


def test_refuses_no_runs(model: Model, graph: Graph, builder: QdqBuilder) -> None:
    with pytest.raises(BadOption, match="0 runs after 1 warm-up:"):
        layer_times(model, graph, builder, CHOICES, ONE, {}, runs=0)
    with pytest.raises(BadOption, match="no negative warm-up"):
        layer_times(model, graph, builder, CHOICES, ONE, {}, warmup=-1)


def test_a_layer_that_fails_is_named(
    model: Model, graph: Graph, builder: QdqBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taglio.profile.layerwise._feed", lambda *_: {})
    with pytest.raises(MeasurementFailed, match=r"block /stem/stem\.0/Conv alone: failed while being timed"):
        layer_times(model, graph, builder, CHOICES, ONE, random_feed(model.inputs, 0))
