"""Models made from another: with more outputs, with HardSwish, with flags, or empty. Only flags are added in place."""

from collections import Counter
from collections.abc import Iterable
from copy import deepcopy

import onnx
from onnx import TensorProto, helper

from taglio.model.captures import node_inputs
from taglio.model.opset import declared_opset

# HardSwish is an operator from this opset on. Its HardSigmoid is max(0, min(1, x / 6 + 0.5)).
_HARD_SWISH_OPSET, _SLOPE = 14, {"alpha": 1.0 / 6.0, "beta": 0.5}


def with_outputs(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy of `proto` with the tensors `names` among its outputs."""
    extended = deepcopy(proto)
    have = {value.name for value in proto.graph.output}
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
    return extended


def with_operators(proto: onnx.ModelProto, added: Iterable[onnx.NodeProto], outputs: Iterable[str]) -> onnx.ModelProto:
    """A copy of `proto` with operators `added`, each directly behind the last one that it reads, and with the tensors
    `outputs` among its outputs. A `lean` session then holds no tensor longer for them."""
    extended = with_outputs(proto, outputs)
    nodes = [*extended.graph.node]
    writer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    behind: dict[int, list[onnx.NodeProto]] = {}
    for node in added:
        index = max((writer.get(name, -1) for name in node_inputs(node)), default=-1)
        behind.setdefault(index, []).append(node)
        writer |= dict.fromkeys(node.output, index)
    del extended.graph.node[:]
    extended.graph.node.extend(behind.get(-1, ()))
    for index, node in enumerate(nodes):
        extended.graph.node.extend((node, *behind.get(index, ())))
    return extended


def empty_like(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A model with the opsets, functions and descriptions of `proto` and an empty graph called `name`."""
    empty = onnx.ModelProto(
        ir_version=proto.ir_version,
        producer_name="taglio",
        domain=proto.domain,
        model_version=proto.model_version,
        doc_string=proto.doc_string,
        metadata_props=proto.metadata_props,
    )
    empty.opset_import.extend(proto.opset_import)
    empty.functions.extend(proto.functions)
    empty.graph.name = name
    return empty


def add_flags(graph: onnx.GraphProto, name: str, count: int) -> list[str]:
    """Add, in place, an input `name` of `count` bools, unless that is 0; returns the name of each of them."""
    flags = [f"{name}/{index}" for index in range(count)]
    if flags:
        sizes = helper.make_tensor(f"{name}/sizes", TensorProto.INT64, [count], [1] * count)
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.BOOL, [count]))
        graph.initializer.append(sizes)
        graph.node.append(helper.make_node("Split", [name, sizes.name], flags, name=f"{name}/split", axis=0))
    return flags


def with_hard_swish(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `proto` with one HardSwish for each x · HardSigmoid(x) that ONNX Runtime made of it. `proto` itself if
    its opset has none. The copy answers the same, and OpenVINO is fast on it without runtimes/openvino_fusions.py."""
    if declared_opset(proto) < _HARD_SWISH_OPSET:
        return proto
    rewritten = deepcopy(proto)
    nodes = rewritten.graph.node
    read_counts = Counter(name for node in nodes for name in node_inputs(node))
    read_counts.update(output.name for output in rewritten.graph.output)
    hard = {
        node.output[0]: node for node in nodes if node.op_type == "HardSigmoid" and read_counts[node.output[0]] == 1
    }
    for node in [node for node in nodes if node.op_type == "Mul"]:
        for gate, value in (node.input, [*node.input][::-1]):
            if gate in hard and hard[gate].input[0] == value and _hard_swish(hard[gate]):
                nodes.remove(hard[gate])
                node.op_type, node.input[:] = "HardSwish", [value]
                break
    return rewritten


def _hard_swish(node: onnx.NodeProto) -> bool:
    """Whether a HardSigmoid is that of HardSwish."""
    attributes = {attribute.name: attribute.f for attribute in node.attribute}
    return all(abs(attributes.get(name, 0.0) - value) < 1e-6 for name, value in _SLOPE.items())
