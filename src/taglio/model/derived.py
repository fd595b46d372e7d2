"""Models made from another: with inferred shapes, with more outputs, with flags, or empty. Only flags are added in
place."""

from collections.abc import Iterable
from copy import deepcopy

import onnx
from onnx import TensorProto, helper, shape_inference

from taglio.model.captures import node_inputs, set_operators


def inferred(proto: onnx.ModelProto, *, data_prop: bool = False) -> onnx.ModelProto:
    """A copy of `proto` with the types and shapes that ONNX infers, with `data_prop` also from the values of computed
    sizes; `proto` itself if that fails."""
    try:
        return shape_inference.infer_shapes(proto, data_prop=data_prop)
    except Exception:  # bare RuntimeErrors from C++
        return proto


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
    in_order = [operator for index, node in enumerate(nodes) for operator in (node, *behind.get(index, ()))]
    set_operators(extended.graph, [*behind.get(-1, ()), *in_order])
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


def part_of(
    proto: onnx.ModelProto,
    name: str,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """A model called `name` with the operators `nodes`, these inputs and outputs, and the initialisers of `proto` that
    are read or are outputs."""
    part = empty_like(proto, name)
    part.graph.node.extend(nodes)
    part.graph.input.extend(inputs)
    part.graph.output.extend(outputs)
    used = {tensor for node in part.graph.node for tensor in node_inputs(node)}
    used |= {value.name for value in part.graph.output}
    part.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name in used)
    return part


def with_nodes(
    proto: onnx.ModelProto, nodes: Iterable[onnx.NodeProto], constants: Iterable[TensorProto]
) -> onnx.ModelProto:
    """A model with the inputs, outputs and recorded tensors of `proto` and the operators `nodes`, with the initialisers
    of `proto` that they read or that are outputs, and `constants`."""
    other = part_of(proto, proto.graph.name, nodes, proto.graph.input, proto.graph.output)
    other.graph.value_info.extend(proto.graph.value_info)
    other.graph.initializer.extend(constants)
    return other


def add_flags(graph: onnx.GraphProto, name: str, count: int) -> list[str]:
    """Add, in place, an input `name` of `count` bools, unless that is 0; returns the name of each of them."""
    flags = [f"{name}/{index}" for index in range(count)]
    if flags:
        sizes = helper.make_tensor(f"{name}/sizes", TensorProto.INT64, [count], [1] * count)
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.BOOL, [count]))
        graph.initializer.append(sizes)
        graph.node.append(helper.make_node("Split", [name, sizes.name], flags, name=f"{name}/split", axis=0))
    return flags
