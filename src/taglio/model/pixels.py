"""Whether the first operators of a model scale pixels from 0 to 255 themselves. Runs no model."""

import numpy as np
import onnx

from taglio import weights
from taglio.model.captures import readers

# Operators that keep values as they are.
_KEEP = frozenset({"Cast", "Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Pad", "Resize"})
# Means and divisors of inputs from 0 to 1 or −1 to 1 are at most about 1, those of pixels 50 to 255.
_OF_PIXELS = 16.0


def pixel_scaling(graph: onnx.GraphProto, name: str) -> str:
    """What the first operator that computes with the input `name` does, as text, if it is made for pixels from 0 to
    255: it divides by a large number, multiplies by a small one, or subtracts a large mean; else ""."""
    users, constants = readers(graph.node), {tensor.name: tensor for tensor in graph.initializer}
    for _ in graph.node:  # bounds a damaged graph
        if len(following := users.get(name, [])) != 1:
            return ""
        node = following[0]
        if node.op_type not in _KEEP:
            return _scaling(node, name, constants)
        name = node.output[0]
    return ""


def _scaling(node: onnx.NodeProto, name: str, constants: dict[str, onnx.TensorProto]) -> str:
    batch_norm = node.op_type == "BatchNormalization"
    factors = [node.input[3]] if batch_norm else [factor for factor in node.input if factor != name]
    if len(factors) != 1 or factors[0] not in constants:
        return ""
    values = np.abs(np.asarray(weights.values(constants[factors[0]]), np.float64))
    if not values.size or not values.max() > 0.0:
        return ""
    largest = float(values.max())
    match node.op_type:
        case "Div" if node.input[0] == name and largest >= _OF_PIXELS:
            return f"divides by {largest:.4g}"
        case "Mul" if largest <= 1.0 / _OF_PIXELS:
            return f"multiplies by {largest:.2g}"
        case "Sub" if node.input[0] == name and largest >= _OF_PIXELS:
            return f"subtracts {largest:.4g}"
        case "Add" | "BatchNormalization" if largest >= _OF_PIXELS:
            return f"{'subtracts a mean of' if batch_norm else 'adds'} {largest:.4g}"
    return ""
