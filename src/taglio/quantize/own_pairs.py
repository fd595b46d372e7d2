"""Scales of the quantise/dequantise pairs that the source model already has, which are kept. Adds no pairs."""

from collections.abc import Mapping

import numpy as np
import onnx

from taglio import weights
from taglio.quantize.parameters import TensorParameters

_STEPS = ("QuantizeLinear", "DequantizeLinear")


def own_parameters(proto: onnx.ModelProto, initializers: Mapping[str, onnx.TensorProto]) -> dict[str, TensorParameters]:
    """Scale and zero point of every activation that the model itself quantises to, or dequantises from, 8 bits."""
    result: dict[str, TensorParameters] = {}
    for node in proto.graph.node:
        if node.op_type not in _STEPS or node.input[0] in initializers:
            continue
        tensor = node.input[0] if node.op_type == "QuantizeLinear" else node.output[0]
        if tensor not in result and (parameters := _constants(node, initializers)):
            result[tensor] = parameters
    return result


def _constants(node: onnx.NodeProto, initializers: Mapping[str, onnx.TensorProto]) -> TensorParameters | None:
    """The node's parameters if they are constants: one scale and one 8-bit zero point for the whole tensor."""
    if any(name not in initializers for name in node.input[1:] if name) or len(node.input) < 3 or not node.input[2]:
        return None
    scale, zero_point = (weights.values(initializers[name]) for name in node.input[1:3])
    if scale.size != 1 or scale.dtype != np.float32 or zero_point.dtype not in (np.uint8, np.int8):
        return None
    return TensorParameters(scale.reshape(-1)[0], zero_point.reshape(-1)[0])
