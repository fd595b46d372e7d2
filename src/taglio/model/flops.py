"""Floating-point operations of one ONNX operator. Counts arithmetic, not memory traffic, and measures nothing.

A multiply-add is two operations. Bias additions count; comparisons (Relu, Clip, MaxPool) count one per element, as
TensorFlow's profiler does for pooling; data movement counts none.
"""

from collections.abc import Mapping
from math import prod

import onnx

from taglio.model.operators import integer, integers, text

Shapes = Mapping[str, tuple[int, ...]]

# Operations per output element; a transcendental function counts as one, as is common.
_PER_ELEMENT = {
    "Add": 1, "Sub": 1, "Mul": 1, "Div": 1, "Pow": 1, "Sqrt": 1, "Exp": 1, "Log": 1, "Neg": 1, "Abs": 1,
    "Relu": 1, "Clip": 1, "LeakyRelu": 2, "PRelu": 2, "Sigmoid": 4, "Tanh": 5, "Erf": 8, "Gelu": 12,
    "HardSigmoid": 3, "HardSwish": 4, "Elu": 3, "Selu": 3, "Softplus": 3, "Max": 1, "Min": 1,
    "BatchNormalization": 2, "InstanceNormalization": 8, "LayerNormalization": 8, "Softmax": 5, "LogSoftmax": 6,
    "GroupNormalization": 8, "RMSNormalization": 5, "SimplifiedLayerNormalization": 5, "SkipLayerNormalization": 9,
    "SkipSimplifiedLayerNormalization": 6, "Swish": 5, "QuickGelu": 5, "FastGelu": 12, "BiasGelu": 13, "Mish": 8,
}  # fmt: skip
# Index of the input that holds the keys of earlier steps.
_PAST = {"Attention": 4, "MultiHeadAttention": 6, "GroupQueryAttention": 3}


def operator_flops(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Operations of `node`, from the shapes of its inputs and outputs; 0 for movement or if shapes are unknown."""
    output = shapes.get(node.output[0])
    if output is None:
        return 0
    size = prod(output)
    match node.op_type:
        case "Conv" | "FusedConv" | "ConvInteger" | "QLinearConv":
            weight = shapes.get(node.input[3 if node.op_type == "QLinearConv" else 1], ())
            return size * (2 * prod(weight[1:]) + _has_bias(node))
        case "ConvTranspose":
            source, weight = shapes.get(node.input[0], ()), shapes.get(node.input[1], ())
            return 2 * prod(source) * prod(weight[1:]) + size * _has_bias(node)
        case "MatMul" | "FusedMatMul" | "MatMulInteger" | "MatMulNBits" | "QLinearMatMul":
            return 2 * size * shapes.get(node.input[0], (0, 0))[-2 if integer(node, "transA") else -1]
        case "Einsum":
            return 2 * _einsum_size(node, shapes) if len(node.input) == 2 else 0
        case "Attention" | "MultiHeadAttention" | "GroupQueryAttention":
            return _attention(node, shapes, size)
        case "Gemm":
            left_shape = shapes.get(node.input[0], (0, 0))
            inner = left_shape[0] if integer(node, "transA") else left_shape[1]
            return size * (2 * inner + _has_bias(node))
        case "LSTM" | "GRU" | "RNN":  # both matrices at every step; elementwise work in the gates is not counted
            weights = sum(prod(shapes.get(name, ())) for name in node.input[1:3] if shapes.get(name))
            steps = prod(shapes.get(node.input[0], (0,))[:2])
            return steps * (2 * weights + prod(shapes.get(node.input[3], (0,)) if len(node.input) > 3 else (0,)))
        case "MaxPool" | "AveragePool":
            return size * prod(integers(node, "kernel_shape"))
        case "GlobalAveragePool" | "GlobalMaxPool" | "ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceMin":
            return prod(shapes.get(node.input[0], (0,)))
        case "Resize":
            return 0 if text(node, "mode", "nearest") == "nearest" else 7 * size
        case other:
            return _PER_ELEMENT.get(other, 0) * size


def _attention(node: onnx.NodeProto, shapes: Shapes, size: int) -> int:
    """Both matrix products; the Softmax between them is not counted."""
    query = shapes.get(node.input[0], (0, 0))
    if node.domain and node.op_type == "Attention":  # also projects queries, keys and values
        return 2 * prod(query) * shapes.get(node.input[1], (0,))[-1] + 4 * size * query[-2]
    key = shapes.get(node.input[1], query) if node.input[1] else query
    past = _PAST[node.op_type]
    earlier = shapes.get(node.input[past], (0, 0)) if len(node.input) > past and node.input[past] else (0, 0)
    return 2 * (key[-2] + earlier[-2]) * (prod(query) + size)


def _einsum_size(node: onnx.NodeProto, shapes: Shapes) -> int:
    """The product of the sizes of all indices; 0 if an ellipsis hides some."""
    terms = text(node, "equation", "").replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, name in zip(terms, node.input, strict=False):
        if len(term) != len(shapes.get(name, ())) or "." in term:
            return 0
        sizes |= dict(zip(term, shapes[name], strict=True))
    return prod(sizes.values())


def _has_bias(node: onnx.NodeProto) -> int:
    bias = {"QLinearConv": 8, "ConvInteger": 9}.get(node.op_type, 2)
    return int(len(node.input) > bias and node.input[bias] != "")
