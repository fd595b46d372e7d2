"""Operators that are quantised in the source model: find them, keep them, or fold them to float. Calibrates nothing."""

from collections import Counter
from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taglio import weights
from taglio.model.captures import graphs, node_inputs, readers, rename_inputs, set_operators, writers
from taglio.model.operators import MOVEMENT, integer
from taglio.model.simplify import drop_unused_initializers
from taglio.notes import Kind, Note
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

_PAIR = ("QuantizeLinear", "DequantizeLinear")
# Integer products; their scales are applied by the Cast, Mul and Add after them.
_INTEGER = frozenset({"MatMulInteger", "ConvInteger"})
_SCALING = frozenset({"Cast", "Mul", "Add"})
_OTHERS = frozenset(
    {"DynamicQuantizeLinear", "MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "MatMulIntegerToFloat",
     "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QGemm", "QAttention", "QEmbedLayerNormalization", "QMoE",
     "QOrderedMatMul"}
)  # fmt: skip
# Operators that move quantised values without changing them.
_CARRIERS = MOVEMENT - {"Resize"}
_WIDE = frozenset({TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32})


def is_quantized(kind: str) -> bool:
    """Whether an operator of this type computes with quantised values."""
    return kind in _PAIR or kind in _INTEGER or kind in _OTHERS or kind.startswith("QLinear")


def quantized_operators(proto: onnx.ModelProto) -> dict[str, int]:
    """Counts of the operators that compute with quantised values, also in subgraphs, by type."""
    counts = Counter(node.op_type for graph in graphs(proto.graph) for node in graph.node if is_quantized(node.op_type))
    return dict(counts.most_common())


def already_quantized(proto: onnx.ModelProto, requantized: bool = False) -> tuple[Note, ...]:
    """A note on what figures mean if the model is quantised already, or still is after `to_float`; else none."""
    if not (counts := quantized_operators(proto)):
        return ()
    if requantized:
        return (Note(Kind.FACT, f"quantised operators that were not folded to float stay: {listed(counts)}"),)
    what = "the model is quantised already: float32 means the model as given, and other runtimes round it differently"
    advice = "; to plan from float instead: --requantize (in Python: requantize=True)" if _PAIR[1] in counts else ""
    return (Note(Kind.QUANTIZED_SOURCE, what + advice),)


def listed(counts: Mapping[str, int]) -> str:
    """Counts of operators by type as text."""
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def kept_nodes(proto: onnx.ModelProto) -> frozenset[str]:
    """Names of the quantised nodes and of the nodes they exchange values with, also through movement operators.

    These stay as they are: next to a second Q/DQ pair, ONNX Runtime would fuse or drop one of the two.
    """
    nodes = list(proto.graph.node)
    producer, users = writers(nodes), readers(nodes)
    kept_names = {node.name for node in nodes if is_quantized(node.op_type)}

    def behind(node: onnx.NodeProto, through: Collection[str]) -> None:
        waiting = [node]
        while waiting:
            for user in (user for name in waiting.pop().output for user in users.get(name, ())):
                if user.name not in kept_names and user.op_type in through:
                    waiting.append(user)
                kept_names.add(user.name)

    for node in nodes:
        if node.op_type in ("DequantizeLinear", "DynamicQuantizeLinear"):
            behind(node, _CARRIERS)
        elif node.op_type in _INTEGER:
            behind(node, _SCALING)
        elif node.op_type == "QuantizeLinear":
            source = producer.get(node.input[0])
            while source is not None and source.name not in kept_names:
                kept_names.add(source.name)
                source = producer.get(source.input[0]) if source.op_type in _CARRIERS and source.input else None
    return frozenset(kept_names)


def why_float(proto: onnx.ModelProto) -> dict[str, str]:
    """Node name -> why it gets no int8 form, whatever its operator: it or a neighbour is quantised already, or it has
    infinite or NaN constants, for which there is no scale."""
    infinite = {
        tensor.name
        for tensor in proto.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and not np.isfinite(weights.values(tensor)).all()
    }
    kept_names = kept_nodes(proto)
    reasons = {}
    for node in proto.graph.node:
        if is_quantized(node.op_type):
            reasons[node.name] = "already quantised"
        elif node.name in kept_names:
            reasons[node.name] = "next to an operator that is already quantised"
        elif infinite_inputs := infinite.intersection(node.input):
            reasons[node.name] = f"its constant {min(infinite_inputs)} holds infinity or NaN"
    return reasons


def fold_weights(proto: onnx.ModelProto, store: weights.WeightFiles | None = None) -> bool:
    """Turn weights of 8 bits or more that are dequantised for a float operator, and float16 ones that are cast for it,
    into float32 ones, in place; True if any.

    Weights stay quantised if their operator reads dequantised activations too (ONNX Runtime computes it in int8), and
    if they have 4 bits or are quantised in blocks (to be small). ONNX Runtime casts the weights of operators without a
    float16 kernel, after it has folded constants.
    """
    constants = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    dequantized = {node.output[0] for node in proto.graph.node if node.op_type == "DequantizeLinear"}
    folded = [
        node
        for node in proto.graph.node
        if node.op_type in ("DequantizeLinear", "Cast")
        and all(name in constants for name in node.input if name)
        and constants[node.input[0]] in (*_WIDE, TensorProto.FLOAT16)
        and not integer(node, "block_size")
    ]
    constant = {node.output[0] for node in folded}
    for node in proto.graph.node:
        if any(name in dequantized and name not in constant for name in node.input):
            folded = [source for source in folded if source.output[0] not in node.input]
    return _fold(proto, folded, store)


def _fold(proto: onnx.ModelProto, nodes: list[onnx.NodeProto], store: weights.WeightFiles | None) -> bool:
    """Replace `nodes`, which read only constants, by their values as ONNX Runtime computes them; True if there are any.

    With a `store` they are computed one by one and written to its files.
    """
    if not nodes:
        return False
    constants: dict[str, TensorProto] = {}
    for group in [nodes] if store is None else [[node] for node in nodes]:
        names = [node.output[0] for node in group]
        for name, value in zip(names, _computed(proto, group, names), strict=True):
            constants[name] = weights.constant(value, name, store)
    set_operators(proto.graph, (node for node in proto.graph.node if constants.keys().isdisjoint(node.output)))
    proto.graph.initializer.extend(constants.values())
    drop_unused_initializers(proto.graph)
    return True


def _computed(proto: onnx.ModelProto, nodes: list[onnx.NodeProto], names: list[str]) -> list[np.ndarray]:
    read_names = {name for node in nodes for name in node.input}
    constants = [tensor for tensor in proto.graph.initializer if tensor.name in read_names]
    graph = helper.make_graph(nodes, "constants", [], [], constants)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    part = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    values: list[np.ndarray] = open_session(part, SessionOptions(1, Optimization.NONE), label="its constants").run(
        names, {}
    )
    return values


def to_float(proto: onnx.ModelProto, store: weights.WeightFiles | None = None) -> onnx.ModelProto:
    """A copy of `proto` in float: weights are dequantised, and Q/DQ pairs on activations are removed.

    1. DequantizeLinear of a constant becomes a float constant.
    2. A pair on an activation is removed. If its zero point is an end of its type, a Clip replaces it: that is how
       quantisers fold away a Relu or Clip before the pair.

    Integer operators, dynamic quantisation and weights in blocks stay, and so does what is in subgraphs.
    """
    float_proto = deepcopy(proto)
    del float_proto.graph.value_info[:]
    constants = {tensor.name for tensor in float_proto.graph.initializer}
    dequantize = [node for node in float_proto.graph.node if node.op_type == "DequantizeLinear"]
    _fold(float_proto, [node for node in dequantize if all(name in constants for name in node.input if name)], store)
    _drop_pairs(float_proto)
    return float_proto


def _drop_pairs(proto: onnx.ModelProto) -> None:
    """Remove QuantizeLinear … DequantizeLinear pairs, in place; movement operators between them run in float."""
    arrays = {tensor.name: tensor for tensor in proto.graph.initializer}
    producer = writers(proto.graph.node)
    in_float: dict[str, str] = {}
    renamed: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    outputs = {value.name for value in proto.graph.output}
    for node in proto.graph.node:
        rename_inputs(node, renamed)
        nodes.append(node)
        if node.op_type == "QuantizeLinear":
            in_float[node.output[0]] = node.input[0]
            limits = _folded_clip(node, arrays)
            source = producer.get(node.input[0])
            if limits is not None and not (source is not None and source.op_type in ("Relu", "Clip")):
                clipped = f"{node.output[0]}:clip"
                nodes.append(_clip(proto, node.input[0], clipped, limits))
                in_float[node.output[0]] = clipped
        elif node.op_type in _CARRIERS and node.input and node.input[0] in in_float and len(node.output) == 1:
            twin = deepcopy(node)
            twin.input[0], twin.output[0] = in_float[node.input[0]], f"{node.output[0]}:f"
            nodes.append(twin)
            in_float[node.output[0]] = twin.output[0]
        elif node.op_type == "DequantizeLinear" and node.input[0] in in_float:
            if node.output[0] in outputs:
                nodes[-1] = helper.make_node("Identity", [in_float[node.input[0]]], node.output, name=node.name)
            else:
                renamed[node.output[0]] = in_float[node.input[0]]
    set_operators(proto.graph, _used(nodes, outputs))


def _clip(proto: onnx.ModelProto, source: str, out: str, limits: tuple[float, float]) -> onnx.NodeProto:
    """A Clip of `source`; its limits become weights of `proto`."""
    bounds = [numpy_helper.from_array(np.array(limit, np.float32), f"{out}:{limit}") for limit in limits]
    proto.graph.initializer.extend(bounds)
    return helper.make_node("Clip", [source, *(bound.name for bound in bounds)], [out], name=out)


def _folded_clip(node: onnx.NodeProto, arrays: dict[str, TensorProto]) -> tuple[float, float] | None:
    """The range of a QuantizeLinear whose zero point is an end of its integer type; None for any other."""
    scale_name, zero_name = (*node.input[1:], "")[:2]
    if any(name and name not in arrays for name in (scale_name, zero_name)):
        return None
    scale = weights.values(arrays[scale_name])
    zero = weights.values(arrays[zero_name]) if zero_name else np.zeros((), _stored_type(node))
    if scale.size != 1 or zero.dtype.kind not in "iu":
        return None
    low, high = (
        (float(end) - float(zero.item())) * float(scale.item())
        for end in (np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max)
    )
    return (low, high) if low == 0.0 or high == 0.0 else None


def _stored_type(node: onnx.NodeProto) -> np.dtype[Any]:
    """The type that a QuantizeLinear without a zero point writes."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(integer(node, "output_dtype") or TensorProto.UINT8))


def _used(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    producer, waiting, used_ids = writers(nodes), [*outputs], set[int]()
    while waiting:  # ONNX Runtime's tools write nodes behind an If that reads them
        node = producer.get(waiting.pop())
        if node is not None and id(node) not in used_ids:
            used_ids.add(id(node))
            waiting += node_inputs(node)
    return [node for node in nodes if id(node) in used_ids]
