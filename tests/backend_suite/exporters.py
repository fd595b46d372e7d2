"""Graphs as exporters and public networks make them, each with samples: what random graphs rarely hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.backend_suite.case import SAMPLES, Case, Feed
from tests.backend_suite.steps import Writer

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
_MICROSOFT, _ML = "com.microsoft", "ai.onnx.ml"
_DOMAINS = {_MICROSOFT: 1, _ML: 2, "layers": 1}


class Graph(Writer):
    """A graph in the making, with short words for what all of these need."""

    def given(self, name: str, kind: int, *shape: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def gives(self, tensor: str, kind: int = FLOAT, *shape: int | str) -> None:
        self.outputs.append(helper.make_tensor_value_info(tensor, kind, shape or None))

    def whole(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def linear(self, source: str, size: int, made: int) -> str:
        return self.op("Add", self.op("MatMul", source, self.weight(size, made, fan=size)), self.weight(made, fan=9))

    def conv(self, source: str, size: int, made: int) -> str:
        return self.op("Conv", source, self.weight(made, size, 3, 3), pads=[1] * 4)

    def ones(self, size: int) -> str:
        return self.constant(np.ones(size, np.float32))


Made = tuple[Graph, Sequence[Feed]]


def cases() -> Iterator[Case]:
    """All of them."""
    for make in _ALL:
        graph, feeds = make()
        proto = helper.make_model(
            helper.make_graph(graph.nodes, make.__name__, graph.inputs, graph.outputs, graph.weights),
            opset_imports=[helper.make_opsetid("", graph.opset)]
            + [helper.make_opsetid(domain, version) for domain, version in _DOMAINS.items()],
            functions=graph.functions,
            ir_version=10,
        )
        yield Case(f"exported-{make.__name__}", proto.SerializeToString(), tuple(feeds))


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 1.0, shape).astype(np.float32)


def each(make: Callable[[int], Mapping[str, Any]]) -> list[Feed]:
    return [make(index) for index in range(SAMPLES)]


def body(nodes: list[onnx.NodeProto], written: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", [], [helper.make_tensor_value_info(written, FLOAT, None)])


def classifier_with_a_map() -> Made:
    """scikit-learn: a sequence of maps as output."""
    g = Graph(15)
    linear: dict[str, Any] = {"coefficients": normal(12, seed=1).tolist(), "intercepts": [0.0, 0.1, -0.1]}
    linear |= {"classlabels_ints": [0, 1, 2], "post_transform": "SOFTMAX"}
    outputs = ("label", "scores")
    g.gives(g.op("LinearClassifier", g.given("X", FLOAT, "N", 4), outputs=outputs, domain=_ML, **linear), INT64)
    mapped = g.op("ZipMap", "scores", domain=_ML, classlabels_int64s=[0, 1, 2])
    value = onnx.ValueInfoProto(name=mapped)
    value.type.sequence_type.elem_type.map_type.key_type = INT64
    value.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = FLOAT
    g.outputs.append(value)
    return g, each(lambda index: {"X": normal(1, 4, seed=index)})


def text_in_and_out() -> Made:
    g = Graph(17)
    city = g.given("city", TensorProto.STRING, "N", 1)
    known = g.op("LabelEncoder", city, domain=_ML, keys_strings=["rome", "oslo"], values_floats=[0.0, 1.0])
    joined = g.op("Concat", known, g.given("age", FLOAT, "N", 1), axis=1)
    scores = g.linear(g.op("Relu", g.linear(joined, 2, 8)), 8, 3)
    g.gives(scores)
    best = g.op("ArgMax", scores, axis=1, keepdims=0)
    g.gives(g.op("LabelEncoder", best, domain=_ML, keys_int64s=[0, 1], values_strings=["a", "b"]), TensorProto.STRING)
    cities = np.array(["rome", "oslo", "bari"], object)
    return g, each(lambda index: {"city": cities[[[index % 3]]], "age": normal(1, 1, seed=index)})


def missing_values() -> Made:
    """scikit-learn: NaN is a value that the model replaces."""
    g = Graph(15)
    values: dict[str, Any] = {"replaced_value_float": float("nan"), "imputed_value_floats": [0.5] * 6}
    filled = g.op("Imputer", g.given("X", FLOAT, "N", 6), domain=_ML, **values)
    g.gives(g.op("Softmax", g.linear(g.op("Relu", g.linear(filled, 6, 16)), 16, 3)))
    hole = np.array([np.nan] + [0.0] * 5, np.float32)
    return g, each(lambda index: {"X": normal(1, 6, seed=index) + np.roll(hole, index)})


def bytes_in_and_out() -> Made:
    """TFLite: quantised throughout."""
    g = Graph(13)
    scale, zero = g.constant(np.float32(0.02)), g.constant(np.uint8(128))
    x = g.op("DequantizeLinear", g.given("x", TensorProto.UINT8, "N", 4, 8, 8), scale, zero)
    stored = g.constant(g.rng.integers(-80, 80, (8, 4, 3, 3)).astype(np.int8))
    scales = g.constant(g.rng.uniform(0.002, 0.006, 8).astype(np.float32))
    weight = g.op("DequantizeLinear", stored, scales, g.constant(np.zeros(8, np.int8)), axis=0)
    x = g.op("Relu", g.op("Conv", x, weight, pads=[1] * 4))
    pair = g.constant(np.float32(0.04)), g.constant(np.uint8(0))
    x = g.op("DequantizeLinear", g.op("QuantizeLinear", x, *pair), *pair)
    g.gives(g.op("QuantizeLinear", g.op("GlobalAveragePool", x), scale, pair[1]), TensorProto.UINT8)
    rng = np.random.default_rng(0)
    return g, each(lambda _: {"x": rng.integers(0, 256, (1, 4, 8, 8)).astype(np.uint8)})


def channels_last() -> Made:
    """tf2onnx: transposes around convolutions, shapes computed in int32."""
    g = Graph(15)
    x = g.op("Transpose", g.given("input_1:0", FLOAT, "N", 8, 8, 3), perm=[0, 3, 1, 2])
    x = g.op("Relu", g.conv(g.op("Relu", g.conv(x, 3, 8)), 8, 8))
    x = g.op("Transpose", x, perm=[0, 2, 3, 1])
    batch = g.op("Slice", g.op("Cast", g.op("Shape", x), to=INT32), g.whole(0), g.whole(1), g.whole(0))
    sizes = g.op("Concat", batch, g.constant(np.array([-1], np.int32)), axis=0)
    x = g.op("Reshape", x, g.op("Cast", sizes, to=INT64))
    g.gives(g.op("Softmax", g.linear(x, 512, 5)))
    return g, each(lambda index: {"input_1:0": normal(1, 8, 8, 3, seed=index)})


def function_of_functions() -> Made:
    """A local function that calls another, passes it an attribute, and holds an If."""
    g = Graph(17)
    own = [helper.make_opsetid("", 17), helper.make_opsetid("layers", 1)]
    leaky = helper.make_node("LeakyRelu", ["x"], ["y"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT))
    inner = helper.make_function("layers", "activation", ["x"], ["y"], [leaky], own, ["alpha"])
    yes, no = (body([helper.make_node(kind, ["h"], ["r"])], "r") for kind in ("Relu", "Neg"))
    choice = helper.make_node("If", ["c"], ["y"], then_branch=yes, else_branch=no)
    product = helper.make_node("MatMul", ["x", "w"], ["m"])
    call = helper.make_node("activation", ["m"], ["h"], domain="layers", alpha=0.3)
    outer = helper.make_function("layers", "layer", ["x", "w", "c"], ["y"], [product, call, choice], own)
    g.functions += [inner, outer]
    y = g.given("x", FLOAT, "N", 8)
    flag = g.op("Greater", g.op("ReduceSum", y, keepdims=0), g.constant(np.float32(0.0)))
    for _ in range(3):
        y = g.op("layer", y, g.weight(8, 8), flag, domain="layers")
    g.gives(y)
    return g, each(lambda index: {"x": normal(1, 8, seed=index)})


def decoder_with_a_past() -> Made:
    """GroupQueryAttention with rotary embedding, RMS norm with skip, SwiGLU; the past grows from nothing."""
    g = Graph(17)
    width, heads, shared, size, words = 64, 4, 2, 16, 20
    ids = g.given("input_ids", INT64, "batch", "sequence")
    mask = g.given("attention_mask", INT64, "batch", "total")
    for kind in ("key", "value"):
        g.given(f"past.{kind}", FLOAT, "batch", shared, "past", size)
    x = g.op("Gather", g.weight(words, width, fan=1), ids)
    length = g.op("Cast", g.op("Sub", g.op("ReduceSum", mask, g.whole(1), keepdims=0), g.whole(1)), to=INT32)
    total = g.op("Cast", g.op("Gather", g.op("Shape", mask), g.constant(np.int64(1))), to=INT32)
    angles = np.outer(np.arange(32), 100.0 ** (-np.arange(size // 2) / (size // 2)))
    tables = [g.constant(turn(angles).astype(np.float32)) for turn in (np.cos, np.sin)]
    normed = g.op("SimplifiedLayerNormalization", x, g.ones(width), axis=-1)
    made = [g.op("MatMul", normed, g.weight(width, n * size, fan=width)) for n in (heads, shared, shared)]
    inputs = [*made, "past.key", "past.value", length, total, *tables]
    answers = ("attended", "present.key", "present.value")
    how: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared, "do_rotary": 1}
    g.op("GroupQueryAttention", *inputs, outputs=answers, domain=_MICROSOFT, **how)
    for name in answers[1:]:
        g.gives(name, FLOAT, "batch", shared, "total", size)
    y = g.linear("attended", width, width)
    x = g.op("SkipSimplifiedLayerNormalization", x, y, g.ones(width), domain=_MICROSOFT)
    gate = g.op("MatMul", x, g.weight(width, 32))
    gated = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), g.op("MatMul", x, g.weight(width, 32)))
    g.gives(g.linear(gated, 32, words))

    def feed(index: int) -> Mapping[str, Any]:
        past, new = ((0, 6), (5, 1), (9, 1))[index % 3]
        pasts = {f"past.{kind}": normal(1, shared, past, size, seed=index) for kind in ("key", "value")}
        ids = np.random.default_rng(index).integers(0, words, (1, new))
        return {"input_ids": ids, "attention_mask": np.ones((1, past + new), np.int64), **pasts}

    return g, each(feed)


def states_with_the_batch_second() -> Made:
    """PyTorch: a bidirectional LSTM, its states given and returned."""
    g = Graph(14)
    x = g.given("x", FLOAT, "T", "B", 8)
    states = [g.given(name, FLOAT, 2, "B", 12) for name in ("h0", "c0")]
    weights = [g.weight(2, 48, 8, fan=8), g.weight(2, 48, 12, fan=12), g.weight(2, 96, fan=99)]
    written = ("steps", "h1", "c1")
    g.op("LSTM", x, *weights, "", *states, outputs=written, hidden_size=12, direction="bidirectional")
    y = g.op("Reshape", g.op("Transpose", "steps", perm=[0, 2, 1, 3]), g.whole(0, 0, -1))
    g.gives(g.linear(g.op("Relu", g.linear(y, 24, 16)), 16, 5))
    for name in written[1:]:
        g.gives(name)
    return g, each(
        lambda index: {
            "x": normal(5 + index % 2, 2, 8, seed=index),
            "h0": normal(2, 2, 12, seed=index + 50) * 0.1,
            "c0": normal(2, 2, 12, seed=index + 90) * 0.1,
        }
    )


def experts() -> Made:
    """A mixture of experts: each row goes to one, found by NonZero and put back by ScatterND."""
    g = Graph(16)
    x = g.given("x", FLOAT, "T", 8)
    best = g.op("ArgMax", g.linear(x, 8, 3), axis=-1, keepdims=0)
    total = g.op("ConstantOfShape", g.op("Shape", x))
    for expert in range(3):
        rows = g.op("NonZero", g.op("Equal", best, g.constant(np.int64(expert))))
        rows = g.op("Transpose", rows, perm=[1, 0])
        y = g.linear(g.op("Relu", g.linear(g.op("GatherND", x, rows), 8, 16)), 16, 8)
        total = g.op("ScatterND", total, rows, y)
    g.gives(g.op("Add", total, x))
    return g, each(lambda index: {"x": normal(7, 8, seed=index)})


def regions() -> Made:
    """A second stage: as many regions as the data say."""
    g = Graph(16)
    features = g.op("Relu", g.conv(g.given("x", FLOAT, 1, 3, 16, 16), 3, 8))
    boxes = g.given("boxes", FLOAT, "R", 4)
    count = g.op("Slice", g.op("Shape", boxes), g.whole(0), g.whole(1))
    zero = helper.make_tensor("zero", INT64, [1], [0])
    first = g.op("ConstantOfShape", count, value=zero)
    cut = g.op("RoiAlign", features, boxes, first, output_height=3, output_width=3, sampling_ratio=2)
    y = g.op("Relu", g.linear(g.op("Flatten", cut), 72, 16))
    g.gives(g.op("Softmax", g.linear(y, 16, 5)))
    g.gives(g.linear(y, 16, 4))
    corner = np.array([0, 0, 4, 4], np.float32)
    return g, each(
        lambda index: {
            "x": normal(1, 3, 16, 16, seed=index),
            "boxes": np.abs(normal(2 + index % 3, 4, seed=index)) * 3 + corner,
        }
    )


def odd_outputs() -> Made:
    """An input, a weight, a constant, an inner tensor twice and an input that nothing reads."""
    g = Graph(13)
    x = g.given("x", FLOAT, "N", 8)
    g.given("unused", FLOAT, "N", 3)
    inner = g.op("Relu", g.linear(x, 8, 16))
    y = g.linear(inner, 16, 4)
    table = g.constant(np.arange(3, dtype=np.float32))
    constant = g.op("Constant", value_floats=[1.0, 2.0])
    for tensor in (y, inner, g.op("Identity", inner), table, constant, g.op("Identity", "unused")):
        g.gives(tensor)
    return g, each(lambda index: {"x": normal(1, 8, seed=index), "unused": normal(1, 3, seed=index)})


_ALL: tuple[Callable[[], Made], ...] = (
    classifier_with_a_map, text_in_and_out, missing_values,
    bytes_in_and_out, channels_last, function_of_functions, decoder_with_a_past,
    states_with_the_batch_second, experts, regions, odd_outputs,
)  # fmt: skip
