"""Write out what DequantizeLinear leaves to the type of its input. Folds nothing.

ONNX Runtime's basic rewrites move a Transpose or Reshape before DequantizeLinear by writing a pair of QuantizeLinear
and DequantizeLinear behind it, with the same scale and zero point. A QuantizeLinear without a zero point writes u8, and
none writes s32, so the values are clipped to 0 … 255. Therefore:

1. An s8 input gets the zero point 0 that is left out.
2. An s32 input that is not constant, with one scale, is cast and multiplied instead.

Constants are left: they are folded.
"""

from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taglio import weights
from taglio.model.captures import graphs, set_operators
from taglio.model.element_types import element_types


def with_zero_points(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `proto` in which rules 1 and 2 hold; `proto` itself if they do already."""
    stored = {tensor.name: tensor for graph in graphs(proto.graph) for tensor in graph.initializer}
    if not any(_depends_on_type(node, stored) for graph in graphs(proto.graph) for node in graph.node):
        return proto
    types = element_types(proto)
    explicit = deepcopy(proto)
    constants = {tensor.name: tensor for graph in graphs(explicit.graph) for tensor in graph.initializer}
    changed = [_written_out(graph, types, constants) for graph in graphs(explicit.graph)]
    return explicit if any(changed) else proto


def _depends_on_type(node: onnx.NodeProto, stored: Mapping[str, TensorProto]) -> bool:
    """Whether this is a DequantizeLinear of computed values whose zero point does not say that they are narrow."""
    if node.op_type != "DequantizeLinear" or node.input[0] in stored:
        return False
    zero = stored.get((*node.input, "", "")[2])
    return zero is None or zero.data_type == TensorProto.INT32


def _written_out(graph: onnx.GraphProto, types: dict[str, int], constants: dict[str, TensorProto]) -> bool:
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in graph.node:
        kind, scale = types.get(node.input[0]) if node.input else None, constants.get((*node.input, "", "")[1])
        if scale is None or not _depends_on_type(node, constants):
            nodes.append(node)
            continue
        out = node.output[0]
        if kind == TensorProto.INT8 and not (*node.input, "", "")[2]:
            node.input[2:] = [f"{out}:zero"]
            graph.initializer.append(numpy_helper.from_array(np.zeros([*scale.dims], np.int8), node.input[2]))
            changed = True
        if kind == TensorProto.INT32 and weights.values(scale).size == 1:
            single_scale = numpy_helper.from_array(weights.values(scale).reshape(()), f"{out}:scale")
            graph.initializer.append(single_scale)
            nodes.append(helper.make_node("Cast", [node.input[0]], [f"{out}:cast"], to=scale.data_type))
            nodes.append(helper.make_node("Mul", [f"{out}:cast", single_scale.name], [out], name=node.name))
            changed = True
        else:
            nodes.append(node)
    set_operators(graph, nodes)
    return changed
