"""Quantise with ONNX Runtime's own tools: QOperator, dynamic int8, float16. Neither calibrates nor inserts pairs.

The tools silently skip what they cannot convert, and some convert more than asked. Both are errors here: every
requested operator is looked up in the result, and no other may have changed.

1. `qoperator` writes QLinear operators. Scales and zero points are taglio's (`activation_parameters`), so the results
   equal those of `qdq` but for three cases: a Clip that is not free in int8 stays float, and so does its output (such a
   Relu becomes QLinearLeakyRelu with slope 0); the sum of MatMul + Add is int8 itself; a linear Resize interpolates
   int8 values. A movement block is int8 only behind an int8 block (the same rule as in `effective`).
2. `dynamic` computes the scale of an activation while running, from the current input. Weights are int8; the operator's
   output and the activation function after it are float.
3. `float16` halves the file and the bytes sent. On a CPU without float16 arithmetic ONNX Runtime computes most of it in
   float32, so it is not faster.
"""

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationMethod, QuantizationMode, QuantType, quantize_dynamic
from onnxruntime.quantization.calibrate import TensorData, TensorsData
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.registry import QLinearOpsRegistry
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from taglio import weights
from taglio.errors import BadModel, BadOption, CannotQuantize, one_line, plural
from taglio.model.captures import captured, node_inputs, rename_inputs
from taglio.model.graph import Block, Graph
from taglio.model.load import Model
from taglio.model.observe import tensor_shapes, tensor_types
from taglio.model.operators import integer, scales
from taglio.model.simplify import drop_unused_initializers
from taglio.quantize.casts import in_float16, tidy_casts
from taglio.quantize.keep_float import import_domains, keep_float
from taglio.quantize.parameters import TensorParameters, activation_parameters
from taglio.quantize.ranges import Ranges
from taglio.quantize.same_range import share_ranges
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.scratch import scratch

_TYPES = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}
_CLIPS = frozenset({"Relu", "Clip"})
_DYNAMIC = frozenset({"Conv", "MatMul", "Gemm"})
_LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
_SCALES = "_scales_mul"  # the name of the tool's product of an activation's scale and the weights'


def most(
    graph: Graph, make: Callable[[Sequence[str]], onnx.ModelProto], names: Sequence[str]
) -> tuple[onnx.ModelProto, list[str], str]:
    """The model that `make` returns for as many of the blocks `names` as it accepts, those blocks, and a line about the
    others ("" if there are none). If `make` refuses a block, all blocks of its kind are left out.

    Raises CannotQuantize if less than half of them remain.
    """
    kinds = {name: graph.block(name).kind for name in names}
    left, why = list(names), ""
    while True:
        try:
            converted = make(left)
        except CannotQuantize as refusal:
            why = why or str(refusal)
            named = next((name for name in left if re.search(rf"blocks? {re.escape(name)}[: ]", str(refusal))), "")
            left = [name for name in left if named and kinds[name] != kinds[named]]
            if 2 * len(left) < len(names):
                raise
        else:
            out = len(names) - len(left)
            return converted, left, f"{out} of {plural(len(names), 'block')} left in float: {why}" if out else ""


def qoperator(model: Model, graph: Graph, blocks: Sequence[str], scheme: Scheme, ranges: Ranges) -> onnx.ModelProto:
    """`model` with `blocks` as QLinear operators under `scheme`; the others compute in float32.

    `ranges` are of the calibration method of `scheme`. Raises CannotQuantize for a block without a QLinear operator, or
    that ONNX Runtime would leave in float.
    """
    model = _in_memory(model)
    chosen = _without_float_movement(graph, _blocks(graph, blocks))
    if not chosen:
        return deepcopy(model.proto)
    nodes = model.nodes()
    parameters = _parameters(graph, share_ranges(model.proto, ranges.low_high), scheme)
    block_of: dict[str, Block] = {}
    slopes = set()
    for block in chosen:
        _refuse_qoperator(block, nodes, scheme)
        for position, name in enumerate(block.operators):
            node = nodes[name]
            if node.op_type in _CLIPS and position > 0:
                free = parameters.get(node.output[0])
                if free is not None and free.at_minimum:
                    parameters[nodes[block.operators[position - 1]].output[0]] = free
                elif node.op_type == "Relu":
                    slopes.add(name)
                else:
                    continue
            block_of[name] = block
    proto = _own_weights(model.proto, block_of)
    for node in proto.graph.node:
        if node.name in slopes:
            node.op_type = "LeakyRelu"
            node.attribute.append(onnx.helper.make_attribute("alpha", 0.0))
    before = _names(proto)
    quantized = _quantize(proto, block_of, scheme, _overrides(proto, block_of, parameters, scheme))
    _check_qoperator(quantized, block_of, nodes, before)
    _keep_float(quantized, tensor_shapes(model.proto), nodes.keys())
    _check_loads(quantized, chosen, "QOperator")
    return quantized


def dynamic_blocks(model: Model, graph: Graph) -> list[str]:
    """The candidate blocks that `dynamic` converts under a scheme per tensor."""
    nodes, initializers = model.nodes(), model.initializers()
    return [block.name for block in graph.candidates() if not _never_dynamic(nodes[block.operators[0]], initializers)]


def dynamic(model: Model, graph: Graph, blocks: Sequence[str], scheme: Scheme) -> onnx.ModelProto:
    """`model` with the Conv, MatMul or Gemm of each of `blocks` on int8 weights and scales computed at run time.

    The calibration and format of `scheme` do not apply. Raises BadOption for activations other than u8 asymmetric, the
    only kind that ONNX Runtime computes; CannotQuantize for a block without such an operator, or with an unsupported
    one.
    """
    model = _in_memory(model)
    if scheme.activation != "u8" or scheme.activation_symmetry != "asymmetric":
        raise BadOption(f"scheme {scheme}: dynamic activations are always u8 asymmetric: use u8{scheme.weight}-asym")
    chosen = _blocks(graph, blocks)
    if not chosen:
        return deepcopy(model.proto)
    nodes = model.nodes()
    initializers = model.initializers()
    block_of: dict[str, Block] = {}
    for block in chosen:
        node = nodes[block.operators[0]]
        reason = _never_dynamic(node, initializers)
        if not reason and node.op_type == "Conv" and scheme.per_channel:
            reason = f"scheme {scheme} has a weight scale per channel, ConvInteger one per tensor: write pt"
        if reason:
            raise CannotQuantize(f"block {block.name} cannot be dynamic int8: {reason}")
        # The tool first splits every Gemm into MatMul and Add, under new names, and transposes its weights in place.
        block_of[f"{node.name}_MatMul" if node.op_type == "Gemm" else node.name] = block
    gemms = {node.name for node in model.proto.graph.node if node.op_type == "Gemm"}
    proto = _typed(_own_weights(model.proto, gemms | {block.operators[0] for block in chosen}), graph)
    with scratch() as folder, _tool("dynamic int8"):
        target = folder / "dynamic.onnx"
        quantize_dynamic(
            proto,
            target,
            op_types_to_quantize=["Conv", "MatMul"],
            per_channel=scheme.per_channel,
            reduce_range=scheme.reduced_range,
            weight_type=_TYPES[scheme.weight],
            nodes_to_quantize=list(block_of),
            extra_options={"WeightSymmetric": scheme.weight_symmetric},
        )
        quantized = onnx.load(target)
    _compare(block_of, _integer(quantized) - _integer(model.proto), "dynamic int8")
    _scales_last(quantized)
    _check_loads(quantized, chosen, "dynamic int8")
    return quantized


def float16(model: Model, graph: Graph, blocks: Sequence[str]) -> onnx.ModelProto:
    """`model` with `blocks` in float16; inputs, outputs, the other blocks and tensors between those stay float32.

    Raises CannotQuantize for a block whose operators the converter keeps in float32, an If, Loop or Scan whose body
    reads tensors from outside, or weights beyond the range of float16.
    """
    model = _in_memory(model)
    chosen = _blocks(graph, blocks)
    if not chosen:
        return deepcopy(model.proto)
    nodes = model.nodes()
    initializers = model.initializers()
    block_of = {name: block for block in chosen for name in block.operators}
    for name, block in block_of.items():
        if nodes[name].op_type in DEFAULT_OP_BLOCK_LIST:
            raise CannotQuantize(f"block {block.name}: the float16 converter keeps {nodes[name].op_type} in float32")
        if captured(nodes[name]):
            raise CannotQuantize(f"block {block.name}: float16 bodies cannot read the float32 tensors around them")
    for block in chosen:
        for weight in block.weights:
            largest = float(np.abs(weights.values(initializers[weight])).max(initial=0.0))
            if largest > _LARGEST_FLOAT16:
                raise CannotQuantize(
                    f"block {block.name}: weight {weight} reaches {largest:.3g}, float16 ends at 65504: leave it out"
                )
    proto = _typed(_own_weights(model.proto, block_of), graph)
    outputs = [*proto.graph.output]
    written = {name for node in proto.graph.node for name in node.output}
    # The tool would write an output that is an input or a constant a second time.
    del proto.graph.output[:]
    proto.graph.output.extend(output for output in outputs if output.name in written)
    for node in proto.graph.node:  # the tool casts what a float32 operator reads, but not what its bodies do
        node.input.extend(captured(node))
    with _tool("float16"):
        converted = convert_float_to_float16(
            proto,
            keep_io_types=True,
            node_block_list=[node.name for node in proto.graph.node if node.name not in block_of],
        )
        converted = tidy_casts(converted, nodes)
    for node in converted.graph.node:
        if node.name in nodes and (names := captured(nodes[node.name])):
            renamed = node.input[-len(names) :]
            del node.input[-len(names) :]
            rename_inputs(node, dict(zip(names, renamed, strict=True)))
    del converted.graph.output[:]
    converted.graph.output.extend(outputs)
    already = in_float16(model.proto) - set(block_of)
    _compare(block_of, in_float16(converted) - already, "float16")
    _check_loads(converted, chosen, "float16")
    return converted


def _blocks(graph: Graph, names: Sequence[str]) -> list[Block]:
    return [graph.block(name) for name in dict.fromkeys(names)]


def _without_float_movement(graph: Graph, chosen: Sequence[Block]) -> list[Block]:
    """`chosen` without the movement blocks that move float values."""
    kept = {block.name for block in chosen}
    tensors = graph.tensor_map()
    for block in graph.blocks:
        if block.movement and block.inputs and tensors[block.inputs[0]].producer not in kept:
            kept.discard(block.name)
    return [block for block in chosen if block.name in kept]


def _in_memory(model: Model) -> Model:
    """The model with its weights in memory, where the tools expect them. Raises CannotQuantize if too large."""
    proto = weights.in_memory(model.proto)
    if weights.refers(proto):
        raise CannotQuantize(
            f"{model.name} has {weights.size_bytes(proto) / 1e9:.1f} GB of weights; ONNX Runtime's tools for this "
            "format take at most 2 GB: use a static scheme in the qdq format"
        )
    return replace(model, proto=proto)


def _names(proto: onnx.ModelProto) -> set[str]:
    names = {name for node in proto.graph.node for name in node.output}
    return names | {tensor.name for tensor in proto.graph.initializer} | {value.name for value in proto.graph.input}


def _own_weights(proto: onnx.ModelProto, operators: Collection[str]) -> onnx.ModelProto:
    """A copy in which none of `operators` shares a float constant with another operator.

    ONNX Runtime keeps one converted form per constant: a bias shared by two Convs would get the scale of the first,
    and a float block would read another block's int8 weights.
    """
    copy = deepcopy(proto)
    floats = {tensor.name: tensor for tensor in copy.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    uses = Counter(name for node in copy.graph.node for name in set(node_inputs(node)))
    uses.update(value.name for value in copy.graph.output)
    for node in copy.graph.node:
        for index, name in enumerate(node.input):
            if node.name in operators and name in floats and uses[name] > 1:
                own = copy.graph.initializer.add()
                own.CopyFrom(floats[name])
                own.name = node.input[index] = f"{name}/{node.name}/{index}"
    drop_unused_initializers(copy.graph)
    return copy


def _typed(proto: onnx.ModelProto, graph: Graph) -> onnx.ModelProto:
    """`proto`, with the float32 tensors between blocks declared where ONNX's inference does not know their type."""
    types = tensor_types(proto)
    tensors = graph.tensor_map()
    missing = [name for name, tensor in tensors.items() if name not in types and tensor.dtype == "float32"]
    proto.graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in missing)
    return proto


def _parameters(graph: Graph, ranges: Mapping[str, tuple[float, float]], scheme: Scheme) -> dict[str, TensorParameters]:
    """Scale and zero point by tensor; moved tensors take those of the tensor that first held the values."""
    low_high = dict(ranges)
    for flow in graph.flows:
        for tensor in flow.tensors:
            if flow.name in ranges:
                low_high[tensor] = ranges[flow.name]
    return {name: activation_parameters(*pair, scheme) for name, pair in low_high.items()}


def _refuse_qoperator(block: Block, nodes: Mapping[str, onnx.NodeProto], scheme: Scheme) -> None:
    if not block.quantizable:
        raise CannotQuantize(f"block {block.name} has no int8 form: {block.refusal}")
    for name in block.operators:
        kind = nodes[name].op_type
        if kind not in QLinearOpsRegistry:
            raise CannotQuantize(f"block {block.name}: QOperator has no int8 {kind}: use qdq for it")
        if kind == "Conv" and scheme.per_channel and not (scheme.weight == "s8" and scheme.weight_symmetric):
            # The tool always writes s8, and the kernel needs one zero point for all channels.
            raise CannotQuantize(
                f"block {block.name}: QOperator's per-channel Conv has symmetric s8 weights only, "
                f"but scheme {scheme} asks for others: write pt for per tensor, or use qdq"
            )


def _overrides(
    proto: onnx.ModelProto, block_of: Mapping[str, Block], parameters: Mapping[str, TensorParameters], scheme: Scheme
) -> dict[str, TensorParameters]:
    """Our parameters for every activation, and for constants that are added to, multiplied with or concatenated to
    one."""
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    overrides = dict(parameters)
    for node in proto.graph.node:
        if node.name in block_of and node.op_type in ("Add", "Mul", "Concat"):
            for name in node.input:
                if name in constants:
                    values = weights.values(constants[name])
                    overrides[name] = activation_parameters(float(values.min()), float(values.max()), scheme)
    return overrides


def _quantize(
    proto: onnx.ModelProto, block_of: Mapping[str, Block], scheme: Scheme, parameters: Mapping[str, TensorParameters]
) -> onnx.ModelProto:
    present = _names(proto)
    parameters = {name: value for name, value in parameters.items() if name in present}
    # The tool only needs the names here: every scale and zero point comes from the overrides.
    nothing = np.float32(0.0)
    tensors_range = TensorsData(
        CalibrationMethod.MinMax, {name: TensorData(lowest=nothing, highest=nothing) for name in parameters}
    )
    overrides = {
        name: [{"scale": np.array(value.scale), "zero_point": np.array(value.zero_point)}]
        for name, value in parameters.items()
    }
    with _tool("QOperator"):
        tool = ONNXQuantizer(
            proto,
            scheme.per_channel,
            scheme.reduced_range,
            QuantizationMode.QLinearOps,
            True,
            _TYPES[scheme.weight],
            _TYPES[scheme.activation],
            tensors_range,
            list(block_of),
            [],
            list(QLinearOpsRegistry),
            {"WeightSymmetric": scheme.weight_symmetric, "TensorQuantOverrides": overrides},
        )
        quantized: onnx.ModelProto = tool.quantize_model()
    return quantized


def _check_qoperator(
    quantized: onnx.ModelProto, block_of: Mapping[str, Block], nodes: Mapping[str, onnx.NodeProto], before: set[str]
) -> None:
    done = set()
    for node in quantized.graph.node:
        # A converted operator reads an int8 tensor, or a scale, that was not there before.
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear") and node.input and node.input[0] not in before:
            done.add(node.name.removesuffix("_quant"))
    present = {node.name for node in quantized.graph.node}
    done |= {name for name in block_of if nodes[name].op_type in _CLIPS and not present & {name, f"{name}_quant"}}
    _compare(block_of, done, "QOperator", "its input is float there: add the block before it, or use qdq")


def _keep_float(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], own: Collection[str]) -> None:
    nodes = list(proto.graph.node)
    initializers = {tensor.name: tensor for tensor in proto.graph.initializer}
    keep_float(nodes, initializers, shapes, own, [output.name for output in proto.graph.output])
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    stored = {tensor.name for tensor in proto.graph.initializer}
    proto.graph.initializer.extend(tensor for name, tensor in initializers.items() if name not in stored)
    import_domains(proto)


def _scales_last(proto: onnx.ModelProto) -> None:
    """Move the product of two scales, which the tool puts before the integer operator, to just before its reader.

    ONNX Runtime's OpenVINO provider leaves the integer operators to the CPU and groups the others in file order: it
    would group this product with operators behind the integer operator, and refuse the cycle.
    """
    products = {node.output[0]: node for node in proto.graph.node if node.name.endswith(_SCALES)}
    nodes = []
    for node in proto.graph.node:
        if node.output[0] not in products:
            nodes += [*(products[name] for name in node.input if name in products), node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def _never_dynamic(node: onnx.NodeProto, initializers: Mapping[str, onnx.TensorProto]) -> str:
    """Why no scheme makes this operator dynamic, or ""."""
    if node.op_type not in _DYNAMIC:
        return f"ONNX Runtime does {', '.join(sorted(_DYNAMIC))}, this is {node.op_type}"
    if node.input[1] not in initializers:
        return "its weights are computed at run time"
    if node.op_type == "Gemm" and scales(node):
        return "a Gemm with alpha or beta other than 1"
    if node.op_type == "Gemm" and integer(node, "transA"):
        return "a Gemm that transposes its input"
    return ""


def _integer(proto: onnx.ModelProto) -> set[str]:
    return {node.name.removesuffix("_quant") for node in proto.graph.node if node.op_type.endswith("Integer")}


def _compare(block_of: Mapping[str, Block], done: set[str], form: str, reason: str = "") -> None:
    """Raises CannotQuantize if a requested operator stayed float, or another was converted."""
    for name, block in block_of.items():
        if name not in done:
            why = f": {reason}" if reason else ""
            raise CannotQuantize(f"block {block.name}: ONNX Runtime did not convert operator {name} to {form}{why}")
    extra = sorted(done - set(block_of))
    if extra:
        raise CannotQuantize(
            f"{form}: ONNX Runtime also converted {extra[0]} ({plural(len(extra), 'operator')} not requested): use qdq"
        )


def _check_loads(proto: onnx.ModelProto, chosen: Sequence[Block], form: str) -> None:
    try:
        open_session(proto, SessionOptions(threads=1), label=form)
    except BadModel as error:
        names = ", ".join(block.name for block in chosen[:3]) + (", …" if len(chosen) > 3 else "")
        raise CannotQuantize(f"blocks {names} ({len(chosen)} in all): {error}") from None


@contextlib.contextmanager
def _tool(form: str) -> Iterator[None]:
    """Silence the advice that ONNX Runtime's tools log: taglio has already prepared the model. Whatever they raise
    (AssertionError, RuntimeError about a tensor that the tool itself renamed) becomes a CannotQuantize."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    except Exception as error:
        raise CannotQuantize(f"ONNX Runtime's {form} tool fails on these blocks: {one_line(error)}") from None
    finally:
        logging.disable(level)
