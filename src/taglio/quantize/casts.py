"""Remove needless casts that the float16 converter leaves between float32 operators. Converts nothing itself."""

from collections.abc import Collection, Mapping

import onnx
from onnx import TensorProto, shape_inference
from onnxruntime.quantization.onnx_model import ONNXModel

from taglio.model.operators import integer

_ADDED = "_cast_to_fp16"  # what the converter appends to the name of a float32 tensor


def tidy_casts(proto: onnx.ModelProto, own: Collection[str]) -> onnx.ModelProto:
    """`proto`, sorted topologically, with float32 operators reading each other directly; `proto` itself is changed too.

    The converter casts to float16 and back between any two operators that stay float32, appends its casts at the end,
    and repeats a cast if two such operators read the same tensor. `own` names the operators of the original model.
    """
    nodes = [node for node in proto.graph.node if node.op_type != "Cast" or node.name in own]
    produced = {name for node in nodes for name in node.output}
    casts = {node.output[0]: node for node in proto.graph.node if node.op_type == "Cast" and node.name not in own}
    outputs = {value.name for value in proto.graph.output}
    names = _straight(casts, outputs, produced)
    nodes += [node for name, node in casts.items() if name not in names and name not in names.values()]
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    read = {name for node in nodes for name in node.input} | outputs
    nodes = [node for node in nodes if node.name in own or node.output[0] in read]
    written = {name for node in nodes for name in node.output}
    back = {n: n.removesuffix(_ADDED) for n in written if n.endswith(_ADDED) and n.removesuffix(_ADDED) not in written}
    for node in nodes:
        node.input[:] = [back.get(name, name) for name in node.input]
        node.output[:] = [back.get(name, name) for name in node.output]
    del proto.graph.node[:], proto.graph.value_info[:]
    proto.graph.node.extend(nodes)
    tool = ONNXModel(proto)
    tool.topological_sort()
    return shape_inference.infer_shapes(tool.model, data_prop=True)


def _straight(casts: Mapping[str, onnx.NodeProto], outputs: set[str], produced: set[str]) -> dict[str, str]:
    """Renames (old -> new) that skip casts to float16 and back.

    A tensor takes the name of its float32 source; if the tensor is an output, the source takes its name.
    """
    names: dict[str, str] = {}
    for name, back in casts.items():
        there = casts.get(back.input[0])
        if there is None or integer(back, "to") != TensorProto.FLOAT or integer(there, "to") != TensorProto.FLOAT16:
            continue
        source = there.input[0]
        if name not in outputs:
            names[name] = source
        elif source in produced and source not in outputs and source not in names:
            names[source] = name
    return {name: names.get(target, target) for name, target in names.items()}


def in_float16(proto: onnx.ModelProto) -> set[str]:
    """Names of the operators that write a float16 tensor, by ONNX's own type inference."""
    half = {v.name for v in proto.graph.value_info if v.type.tensor_type.elem_type == TensorProto.FLOAT16}
    return {node.name for node in proto.graph.node if node.op_type != "Cast" and any(n in half for n in node.output)}
