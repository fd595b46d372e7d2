"""What float16 changes: the blocks whose values it cannot hold, and the answers of a model in true float16.

Converts nothing (float16.py). ONNX Runtime has hardly any float16 kernels for CPUs: it computes in float32, and rounds
only the tensors that it casts. So it does not show an overflow that a processor with float16 arithmetic would have.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taglio import weights
from taglio.model.captures import bodies
from taglio.model.element_types import element_types
from taglio.model.graph import Graph
from taglio.model.load import Model

LARGEST = float(np.finfo(np.float16).max)


def beyond_float16(
    model: Model, graph: Graph, blocks: Sequence[str], low_high: Mapping[str, tuple[float, float]]
) -> dict[str, str]:
    """The blocks that must stay in float32, each with the reason: a tensor that they read, write or hold as weights
    passes the largest float16. `low_high` are the calibrated ranges of activations."""
    nodes, constants = model.nodes(), model.initializers()
    reasons = {}
    for name in blocks:
        operators = [nodes[operator] for operator in graph.block(name).operators]
        tensors = dict.fromkeys(tensor for node in operators for tensor in (*node.input, *node.output) if tensor)
        for tensor in tensors:
            largest = _largest(tensor, constants, low_high)
            if largest > LARGEST:
                reasons[name] = f"{tensor} reaches {largest:.3g}; float16 ends at {LARGEST:.0f}"
                break
    return reasons


def _largest(name: str, constants: Mapping[str, TensorProto], low_high: Mapping[str, tuple[float, float]]) -> float:
    """The largest magnitude of a tensor. Infinities stay infinite in float16, and count as 0."""
    if name in low_high:
        return max(-low_high[name][0], low_high[name][1])
    if name not in constants or constants[name].data_type != TensorProto.FLOAT:
        return 0.0
    values = np.abs(weights.values(constants[name]))
    return float(values[np.isfinite(values)].max(initial=0.0))


def in_true_float16(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """`proto` in float32 operators, with every tensor that is float16 rounded to it when it is written; None if the
    type of a tensor is unknown, or a body of an If, Loop or Scan computes in float16.

    Products inside an operator are summed in float32, as processors with float16 arithmetic do or come close to.
    """
    types = element_types(proto)
    types |= {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    widened = onnx.ModelProto()
    widened.CopyFrom(proto)
    if any(
        value.type.tensor_type.elem_type == TensorProto.FLOAT16
        for value in (*widened.graph.input, *widened.graph.output)
    ):
        return None
    del widened.graph.value_info[:]
    for tensor in widened.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(weights.values(tensor).astype(np.float32), tensor.name))
    nodes: list[onnx.NodeProto] = []
    for node in widened.graph.node:
        if any(name not in types for name in node.output if name) or any(_holds_float16(body) for body in bodies(node)):
            return None
        half = [name for name in node.output if types.get(name) == TensorProto.FLOAT16]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT16:
                attribute.t.CopyFrom(numpy_helper.from_array(weights.values(attribute.t).astype(np.float32)))
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT
        node.output[:] = [f"{name}/wide" if name in half else name for name in node.output]
        nodes.append(node)
        for name in half:
            rounded = f"{name}/half"
            nodes.append(helper.make_node("Cast", [f"{name}/wide"], [rounded], name=rounded, to=TensorProto.FLOAT16))
            nodes.append(helper.make_node("Cast", [rounded], [name], name=name, to=TensorProto.FLOAT))
    del widened.graph.node[:]
    widened.graph.node.extend(nodes)
    return widened


def _holds_float16(graph: onnx.GraphProto) -> bool:
    values = (*graph.value_info, *graph.input, *graph.output)
    kinds = {tensor.data_type for tensor in graph.initializer}
    kinds |= {value.type.tensor_type.elem_type for value in values}
    inner = (body for node in graph.node for body in bodies(node))
    return TensorProto.FLOAT16 in kinds or any(map(_holds_float16, inner))
