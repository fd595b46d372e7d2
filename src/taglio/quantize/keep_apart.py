"""Rewrite a quantised model so that OpenVINO does not change its answers. Inserts no quantisation.

OpenVINO 2026.4 folds a sum or product with a constant per channel into a quantisation that alone reads it. Two of these
change the answers:

1. The bias of a convolution: that of the first channel is added to all. A convolution is fused with its bias before,
   unless it has a second reader. In a model with dynamic sizes OpenVINO makes one: where a program computes with a size
   of what the convolution writes (a grid of anchors, a Resize to the size of another tensor), it reads that size ahead
   of the bias. Boxes of a YOLOv8 were 8 to 12 % off.
2. A negative factor: the ends of the range are not swapped.

In a model with dynamic sizes an int8 convolution without a bias, of which several operators read, hands on numbers that
are off by a factor (66 to 100 %), for example where one of the readers is a sum with another convolution.

A LeakyRelu with slope 1, which changes nothing, keeps the two apart. Convolutions fuse it like any activation.
"""

import onnx
from onnx import helper

from taglio.model.captures import readers, set_operators, writers

_CONVOLUTIONS = frozenset({"Conv", "FusedConv"})
_WITH_CONSTANT = frozenset({"Add", "Sub", "Mul", "Div"})


def keep_apart(graph: onnx.GraphProto, *, dynamic: bool) -> None:
    """Rewrite a quantised `graph` in place; a second call changes nothing. `dynamic` says whether the model has dynamic
    sizes; without them convolutions are safe."""
    nodes = list(graph.node)
    constants, outputs = {tensor.name for tensor in graph.initializer}, [output.name for output in graph.output]
    producer = writers(nodes)

    def fixed(name: str) -> bool:
        return name in constants or (name in producer and all(source in constants for source in producer[name].input))

    def folds(name: str) -> bool:
        """Whether OpenVINO may fold the operator that writes a tensor into the quantisation behind it."""
        node = producer.get(name)
        if node is None:
            return False
        if node.op_type == "Concat" or (node.op_type == "Max" and len(node.input) == 1):
            return any(map(folds, node.input))  # it quantises ahead of a Concat, and drops such a Max
        if node.op_type in _CONVOLUTIONS:
            return dynamic and len(node.input) > 2
        return node.op_type in _WITH_CONSTANT and any(map(fixed, node.input))

    reading = readers(nodes)

    def shared(node: onnx.NodeProto) -> bool:
        """Whether OpenVINO may give the readers of an int8 convolution wrong numbers."""
        int8 = node.op_type in _CONVOLUTIONS and all(_dequantised(producer.get(name)) for name in node.input[:2])
        written = node.output[0]
        return dynamic and int8 and len(node.input) == 2 and len(reading.get(written, [])) + (written in outputs) > 1

    kept: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        if node.op_type == "QuantizeLinear" and folds(source := node.input[0]):
            node.input[0] = f"{source}/kept"
            kept[producer[source].name] = _unchanged(source, f"{source}/kept", source)
        elif shared(node):
            (written,) = node.output
            node.output[0] = f"{written}/raw"
            kept[node.name] = _unchanged(node.output[0], written, written)
    with_copies = (operator for node in nodes for operator in (node, kept.get(node.name)))
    set_operators(graph, (operator for operator in with_copies if operator is not None))


def _unchanged(source: str, written: str, name: str) -> onnx.NodeProto:
    return helper.make_node("LeakyRelu", [source], [written], name=f"{name}/keep", alpha=1.0)


def _dequantised(node: onnx.NodeProto | None) -> bool:
    return node is not None and node.op_type == "DequantizeLinear"
