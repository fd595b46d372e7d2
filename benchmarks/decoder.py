"""Transformers with random weights: a decoder with key/value caches as states, and an encoder. Writes nothing."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY = 1000


class _Writer:
    """Nodes and weights of a decoder in the making."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        name = to or f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=f"n_{name}", **attributes))
        return name

    def constant(self, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(values, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def matrix(self, rows: int, columns: int) -> str:
        return self.constant((self.rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32))

    def norm(self, source: str, wide: int) -> str:
        ones = self.constant(np.ones(wide, np.float32))
        return self.op("LayerNormalization", source, ones, axis=-1)

    def feed_forward(self, x: str, wide: int) -> str:
        inner = self.op("Relu", self.op("MatMul", self.norm(x, wide), self.matrix(wide, 4 * wide)))
        return self.op("Add", x, self.op("MatMul", inner, self.matrix(4 * wide, wide)))


def states(layers: int) -> list[tuple[str, str]]:
    """(output, input) of every cache."""
    return [
        (f"present.{layer}.{kind}", f"past_key_values.{layer}.{kind}")
        for layer in range(layers)
        for kind in ("key", "value")
    ]


def decoder(layers: int = 12, wide: int = 256, heads: int = 4, seed: int = 0) -> onnx.ModelProto:
    """ids [1, 1] -> logits [1, 1, vocabulary], one token a step; caches are [1, heads, tokens, wide / heads]."""
    w, size = _Writer(seed), wide // heads
    table = w.constant((w.rng.standard_normal((VOCABULARY, wide))).astype(np.float32))
    apart = w.constant(np.array([1, 1, heads, size], np.int64))
    whole = w.constant(np.array([1, 1, wide], np.int64))
    scale = w.constant(np.asarray(1.0 / np.sqrt(size), np.float32))
    x = w.op("Gather", table, "ids")
    for layer in range(layers):
        normed = w.norm(x, wide)
        query, *rows = (
            w.op("Transpose", w.op("Reshape", w.op("MatMul", normed, w.matrix(wide, wide)), apart), perm=[0, 2, 1, 3])
            for _ in range(3)
        )
        key, value = (
            w.op("Concat", f"past_key_values.{layer}.{kind}", row, to=f"present.{layer}.{kind}", axis=2)
            for kind, row in zip(("key", "value"), rows, strict=True)
        )
        scores = w.op("Mul", w.op("MatMul", query, w.op("Transpose", key, perm=[0, 1, 3, 2])), scale)
        mixed = w.op("MatMul", w.op("Softmax", scores, axis=-1), value)
        joined = w.op("Reshape", w.op("Transpose", mixed, perm=[0, 2, 1, 3]), whole)
        x = w.op("Add", x, w.op("MatMul", joined, w.matrix(wide, wide)))
        x = w.feed_forward(x, wide)
    w.op("MatMul", w.norm(x, wide), w.matrix(wide, VOCABULARY), to="logits")

    def cache(name: str, tokens: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, heads, tokens, size])

    pairs = states(layers)
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 1])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1, VOCABULARY])]
    inputs += [cache(past, "past") for _, past in pairs]
    outputs += [cache(present, "tokens") for present, _ in pairs]
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, w.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def encoder(layers: int = 12, wide: int = 768, tokens: int = 16, heads: int = 8, seed: int = 0) -> onnx.ModelProto:
    """x [1, tokens, wide] -> y of the same shape."""
    w, size = _Writer(seed), wide // heads
    apart = w.constant(np.array([1, tokens, heads, size], np.int64))
    whole = w.constant(np.array([1, tokens, wide], np.int64))
    scale = w.constant(np.asarray(1.0 / np.sqrt(size), np.float32))
    x = "x"
    for _ in range(layers):
        normed = w.norm(x, wide)
        query, key, value = (
            w.op("Transpose", w.op("Reshape", w.op("MatMul", normed, w.matrix(wide, wide)), apart), perm=[0, 2, 1, 3])
            for _ in range(3)
        )
        scores = w.op("Mul", w.op("MatMul", query, w.op("Transpose", key, perm=[0, 1, 3, 2])), scale)
        mixed = w.op("MatMul", w.op("Softmax", scores, axis=-1), value)
        joined = w.op("Reshape", w.op("Transpose", mixed, perm=[0, 2, 1, 3]), whole)
        x = w.feed_forward(w.op("Add", x, w.op("MatMul", joined, w.matrix(wide, wide))), wide)
    ones = w.constant(np.ones(wide, np.float32))
    w.op("LayerNormalization", x, ones, to="y", axis=-1)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, tokens, wide]) for name in ("x", "y")]
    graph = helper.make_graph(w.nodes, "encoder", ends[:1], ends[1:], w.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
