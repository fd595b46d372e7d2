"""Floating-point operations of one ONNX operator: two for each multiply-add of a convolution, product or recurrence.

What elementwise operators compute is about a hundredth of a network's operations and counts none, as memory traffic.
Measures nothing.
"""

from collections.abc import Mapping
from math import prod

import onnx

from taglio.model.operators import integer, text

Shapes = Mapping[str, tuple[int, ...]]

# Index of the input that holds the keys of earlier steps.
_PAST = {"Attention": 4, "MultiHeadAttention": 6, "GroupQueryAttention": 3}


def operator_flops(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Operations of `node`, from the shapes of its inputs and outputs; 0 if shapes are unknown or lack dimensions that
    the operator needs (a file may declare wrong ones), and for operators without products."""
    try:
        return _flops(node, shapes)
    except IndexError:
        return 0


def _flops(node: onnx.NodeProto, shapes: Shapes) -> int:
    output = shapes.get(node.output[0])
    if output is None:
        return 0
    size = prod(output)
    match node.op_type:
        case "Conv" | "FusedConv" | "ConvInteger" | "QLinearConv":
            weight = shapes.get(node.input[3 if node.op_type == "QLinearConv" else 1], ())
            return 2 * size * prod(weight[1:])
        case "ConvTranspose":
            source, weight = shapes.get(node.input[0], ()), shapes.get(node.input[1], ())
            return 2 * prod(source) * prod(weight[1:])
        case "MatMul" | "FusedMatMul" | "MatMulInteger" | "MatMulNBits" | "QLinearMatMul" | "Gemm":
            left_shape = shapes.get(node.input[0], (0, 0))
            return 2 * size * left_shape[-2 if integer(node, "transA") else -1]
        case "Einsum":
            return 2 * _einsum_size(node, shapes) if len(node.input) == 2 else 0
        case "Attention" | "MultiHeadAttention" | "GroupQueryAttention":
            return _attention(node, shapes, size)
        case "LSTM" | "GRU" | "RNN":  # both matrices at every step
            weights = sum(prod(shapes.get(name, ())) for name in node.input[1:3] if shapes.get(name))
            return 2 * weights * prod(shapes.get(node.input[0], (0,))[:2])
    return 0


def _attention(node: onnx.NodeProto, shapes: Shapes, size: int) -> int:
    """Both matrix products."""
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
