"""Operators that are quantised in the source model: find them, keep them, or fold them to float. Calibrates nothing."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taglio import weights
from taglio.model.captures import graphs, node_inputs, readers, rename_inputs, writers
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
# Integer operators with a standard float equivalent -> how many tensors they read, each with scale and zero point.
_TWINS = {
    "QLinearConv": 2, "QLinearMatMul": 2, "QLinearAdd": 2, "QLinearMul": 2, "QLinearSigmoid": 1, "QLinearLeakyRelu": 1,
    "QLinearAveragePool": 1, "QLinearGlobalAveragePool": 1, "QGemm": 2,
    "QLinearSoftmax": 1,
}  # fmt: skip
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
        return (Note(Kind.FACT, f"quantised operators without a known float form stay: {listed(counts)}"),)
    what = "the model is quantised already: float32 means the model as given, and other runtimes round it differently"
    advice = "to plan from float instead: --requantize (in Python: requantize=True)"
    return (Note(Kind.QUANTIZED_SOURCE, f"{what}; {advice}"),)


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
    constants = []
    for group in [nodes] if store is None else [[node] for node in nodes]:
        names = [node.output[0] for node in group]
        for name, value in zip(names, _computed(proto, group, names), strict=True):
            constants.append(weights.constant(value, name, store))
    replaced = {node.name for node in nodes}
    remaining = [node for node in proto.graph.node if node.name not in replaced]
    del proto.graph.node[:]
    proto.graph.node.extend(remaining)
    proto.graph.initializer.extend(constants)
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

    1. An integer operator becomes its float operator, between DequantizeLinear and QuantizeLinear.
    2. DequantizeLinear of a constant, also of one that was moved first, as rows of an embedding are, becomes a float
       constant.
    3. A pair on an activation is removed. If its zero point is an end of its type, a Clip replaces it: that is how
       quantisers fold away a Relu or Clip before the pair.

    Operators without a known float equivalent stay, so do weights in blocks and what is in subgraphs.
    """
    float_proto = deepcopy(proto)
    del float_proto.graph.value_info[:]
    nodes = [float_node for node in float_proto.graph.node for float_node in _float_twin(node, float_proto)]
    nodes = _dequantized_first(_dynamic_to_float(nodes, float_proto, store), float_proto.graph.initializer)
    del float_proto.graph.node[:]
    float_proto.graph.node.extend(nodes)
    _name(float_proto.graph.node)
    constants = {tensor.name for tensor in float_proto.graph.initializer}
    dequantize = [node for node in float_proto.graph.node if node.op_type == "DequantizeLinear"]
    _fold(float_proto, [node for node in dequantize if all(name in constants for name in node.input if name)], store)
    _drop_pairs(float_proto)
    return float_proto


def _name(nodes: Collection[onnx.NodeProto]) -> None:
    used_names: set[str] = set()
    for index, node in enumerate(nodes):
        if not node.name or node.name in used_names:
            node.name = f"{node.op_type}:{node.output[0]}:{index}"
        used_names.add(node.name)


def _float_twin(node: onnx.NodeProto, proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """`node` itself, or DequantizeLinear, the float operator and QuantizeLinear for a QLinear operator."""
    kind, out, inputs = node.op_type, node.output[0], list(node.input)
    if kind == "QLinearConcat":
        reads, (scale, zero), inputs = (len(inputs) - 2) // 3, inputs[:2], inputs[2:]
    elif kind in _TWINS and not integer(node, "channels_last"):
        reads = _TWINS[kind]
        if kind == "QGemm":  # its bias comes before the output's scale, which it may lack: then it writes float
            bias, *ends = (*inputs[6:], "", "", "")[:3]
            inputs = [*inputs[:6], *ends, bias]
        scale, zero = (*inputs[3 * reads : 3 * reads + 2], "")[:2]
    else:
        yield node
        return
    dims = {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}
    floats = []
    for index in range(reads):
        stored, *parameters = inputs[3 * index : 3 * index + 3]
        pair = helper.make_node(
            "DequantizeLinear", [stored, *(name for name in parameters if name)], [f"{out}:float:{index}"]
        )
        if index == 1 and dims.get(parameters[0], 0):  # a scale per channel of the weights
            first = kind == "QLinearConv" or (kind == "QGemm" and integer(node, "transB"))
            pair.attribute.append(helper.make_attribute("axis", 0 if first else dims[stored] - 1))
        floats.append(pair.output[0])
        yield pair
    if kind in ("QLinearConv", "QGemm") and len(inputs) > 8 and inputs[8]:
        # A bias is int32, with scale = input scale × weight scale.
        yield helper.make_node("Mul", [inputs[1], inputs[4]], [f"{out}:bias:scale"])
        yield helper.make_node("Cast", [inputs[8]], [f"{out}:bias:cast"], to=TensorProto.FLOAT)
        yield helper.make_node("Mul", [f"{out}:bias:cast", f"{out}:bias:scale"], [f"{out}:bias"])
        floats.append(f"{out}:bias")
    kind = "Gemm" if kind == "QGemm" else kind.removeprefix("QLinear")
    twin = helper.make_node(kind, floats, [f"{out}:float" if scale else out], name=node.name)
    twin.attribute.extend(attribute for attribute in node.attribute if attribute.name not in ("channels_last", "opset"))
    yield twin
    if scale:
        yield helper.make_node("QuantizeLinear", [f"{out}:float", scale, *([zero] if zero else [])], [out])


def _dynamic_to_float(
    nodes: list[onnx.NodeProto], proto: onnx.ModelProto, store: weights.WeightFiles | None
) -> list[onnx.NodeProto]:
    """`nodes` with dynamic quantisation and the integer products behind it as float products, with a scale of 1."""
    arrays = {tensor.name: tensor for tensor in proto.graph.initializer}
    produced = writers(nodes)
    dynamic = {
        node.output[0]: node
        for node in nodes
        # Before opset 11 the scale is computed by other operators.
        if node.op_type == "DynamicQuantizeLinear" or (node.op_type == "QuantizeLinear" and node.input[1] in produced)
    }
    products = [node for node in nodes if node.op_type in _INTEGER]
    if not products or any(node.input[0] not in dynamic or node.input[1] not in arrays for node in products):
        return nodes
    quantizers = [dynamic[node.input[0]] for node in products]
    scales = {(*quantizer.output[1:], *quantizer.input[1:])[0] for quantizer in quantizers}
    one = numpy_helper.from_array(np.array(1, np.float32), f"{products[0].output[0]}:one")
    proto.graph.initializer.append(one)
    float_nodes = []
    for node in nodes:
        if scale := next((name for name in node.output if name in scales), ""):
            float_nodes.append(helper.make_node("Identity", [one.name], [scale], name=node.name))
        elif node.op_type in _INTEGER:
            values = weights.values(arrays[node.input[1]]).astype(np.float32)
            if len(node.input) > 3 and node.input[3]:
                zero = weights.values(arrays[node.input[3]]).astype(np.float32)
                values = values - (zero.reshape(-1, *[1] * (values.ndim - 1)) if node.op_type[0] == "C" else zero)
            name = f"{node.output[0]}:weight"
            proto.graph.initializer.append(weights.constant(values, name, store))
            kind = node.op_type.removesuffix("Integer")
            twin = helper.make_node(kind, [dynamic[node.input[0]].input[0], name], node.output, name=node.name)
            twin.attribute.extend(node.attribute)
            float_nodes.append(twin)
        else:
            float_nodes.append(node)
    return float_nodes


def _dequantized_first(nodes: list[onnx.NodeProto], constants: Sequence[TensorProto]) -> list[onnx.NodeProto]:
    """`nodes` where a constant that is moved and then dequantised, with one scale, is dequantised first."""
    dims, producer = {tensor.name: tensor.dims for tensor in constants}, writers(nodes)
    constant_of: dict[tuple[str, ...], str] = {}
    reordered = []
    for node in nodes:
        mover = producer.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        moves = mover is not None and mover.op_type in _CARRIERS and mover.input[0] in dims
        if mover is None or not moves or prod(dims.get(node.input[1], [0])) != 1:
            reordered.append(node)
            continue
        key = (mover.input[0], *node.input[1:])
        if key not in constant_of:
            constant_of[key] = f"{node.output[0]}:constant"
            reordered.append(helper.make_node("DequantizeLinear", key, [constant_of[key]]))
        twin = deepcopy(mover)
        twin.name, twin.input[0], twin.output[:] = node.name, constant_of[key], [node.output[0]]
        reordered.append(twin)
    return reordered


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
            twin.name, twin.input[0], twin.output[0] = f"{node.name}:f", in_float[node.input[0]], f"{node.output[0]}:f"
            nodes.append(twin)
            in_float[node.output[0]] = twin.output[0]
        elif node.op_type == "DequantizeLinear" and node.input[0] in in_float:
            if node.output[0] in outputs:
                nodes[-1] = helper.make_node("Identity", [in_float[node.input[0]]], node.output, name=node.name)
            else:
                renamed[node.output[0]] = in_float[node.input[0]]
    del proto.graph.node[:]
    proto.graph.node.extend(_used(nodes, outputs))


def _clip(proto: onnx.ModelProto, source: str, out: str, limits: tuple[float, float]) -> onnx.NodeProto:
    """A Clip of `source`; its limits become weights of `proto`, or attributes before opset 11."""
    low, high = limits
    if any(opset.domain in ("", "ai.onnx") and opset.version < 11 for opset in proto.opset_import):
        return helper.make_node("Clip", [source], [out], name=out, min=low, max=high)
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
