"""Insert QuantizeLinear/DequantizeLinear pairs for any assignment of precisions. Does not calibrate or choose.

A block in int8 reads its activations through a pair and, in its whole form, also writes them through one. A tensor
written by a float block is quantised for its int8 readers only: float readers get the original. A tensor written by an
int8 block is quantised for all readers. Movement operators keep the scale of what they move, so every tensor takes its
range from the tensor that first held its values.

OpenVINO fuses most activations into the int8 kernel before them. A pair between the two would keep it from that: the
kernel would write int8, and other kernels convert, shift and compute. So `fusing` builders put none there.
"""

from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from taglio import weights
from taglio.errors import CannotQuantize
from taglio.model.captures import node_inputs, rename_inputs, writers
from taglio.model.derived import with_nodes
from taglio.model.graph import Block, Graph
from taglio.model.load import Model
from taglio.model.observe import tensor_shapes
from taglio.model.operators import moves
from taglio.quantize.emitter import Emitter
from taglio.quantize.keep_apart import keep_apart
from taglio.quantize.keep_float import import_domains, keep_float
from taglio.quantize.parameters import (
    QuantizedWeight,
    TensorParameters,
    activation_parameters,
    own_parameters,
    quantize_values,
    quantize_weight,
)
from taglio.quantize.precision import BFLOAT16, FLOAT32, Assignment, Precision
from taglio.quantize.ranges import Ranges
from taglio.quantize.same_range import range_roots, share_ranges
from taglio.quantize.scheme import Scheme
from taglio.quantize.uncalibrated import emit_blockwise, emit_lstm, emit_product, quantize_matrix, transposed
from taglio.runtimes.openvino_marks import note_precision

# Activations that are free in int8 when the zero point is the type's minimum.
_FREE_TAILS = frozenset({"Relu", "Clip"})
_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
# Of so many inputs, OpenVINO 2026.4 rounds constants to bfloat16; also the bias behind a MatMul, but not that of a
# ConvTranspose (tests/quantize/test_bfloat16.py).
_ROUNDED_INPUTS = {"Conv": 3, "Gemm": 3, "MatMul": 2, "ConvTranspose": 2}
_INT32_BIAS_LIMIT = 2.0**30


class QdqBuilder:
    """Builds quantised models of one float model; quantised weights are reused between builds."""

    def __init__(self, model: Model, graph: Graph, ranges: Ranges | None = None) -> None:
        """`ranges` are those of activations; None is enough for forms without calibration."""
        self.model, self.graph = model, graph
        self._initializers = model.initializers()
        self._arrays: dict[str, np.ndarray] = {}
        # Quantised weights of a model with weights in files are in files too, shared by all builders.
        self._weights: dict[object, QuantizedWeight] = {} if model.store is None else model.store.made
        self._parameters: dict[tuple[str, Scheme], TensorParameters] = {}
        self._nodes = model.nodes()
        self._roots = range_roots(model.proto)
        self._low_high = {} if ranges is None else share_ranges(model.proto, ranges.low_high)
        self._without = {} if ranges is None else ranges.without
        shapes = tensor_shapes(model.proto)
        # Whether a size is known only while the model runs.
        self.dynamic = any(name and name not in shapes for node in self._nodes.values() for name in node.output)
        self._floats = {tensor.name for tensor in graph.tensors if tensor.dtype == "float32"}
        self._own = own_parameters(model.proto, self._initializers)
        self._producers = writers(model.proto.graph.node)
        self.fuses = False

    def fusing(self, *, fuses: bool = True) -> "QdqBuilder":
        """A builder of the same models. If it `fuses`, without pairs between an anchor and an activation that is not
        free in int8, for runtimes that fuse the two."""
        other = copy(self)
        other.fuses = fuses
        return other

    def build(self, assignment: Assignment, wire: Mapping[tuple[str, str], Scheme] | None = None) -> onnx.ModelProto:
        """The model with each block in its assigned precision, that of blocks in bfloat16 as a note for OpenVINO.
        Raises CannotQuantize for a form that a block does not have, BadOption for an unknown block.

        `wire` maps (tensor, reading block) to the scheme in which a float tensor travels to that block; "" is the
        caller. These blocks read the tensor through a pair, as it arrives.
        """
        for name in assignment:
            self.graph.block(name)  # refuses an unknown one
        emitter = self.emitter(wire)
        for block in self.graph.blocks:
            precision = assignment.get(block.name, FLOAT32)
            self.emit(emitter, block, FLOAT32 if precision == BFLOAT16 else precision)
        self._restore_outputs(emitter)
        keep_float(emitter.nodes, self._nodes.keys(), self.model.outputs)
        proto = with_nodes(self.model.proto, emitter.nodes, emitter.initializers.values())
        import_domains(proto)
        if self.fuses:
            keep_apart(proto.graph, dynamic=self.dynamic)
        note_precision(proto, self._float32(assignment) if BFLOAT16 in assignment.values() else None)
        return proto

    def _float32(self, assignment: Assignment) -> list[str]:
        """The tensors that are computed in float32 where some blocks are in bfloat16: those of float blocks, and of
        movement of them. A quantised block reads and writes either."""
        low = set[str]()
        for block in self.graph.blocks:  # producers first
            form = assignment.get(block.name, FLOAT32)
            if block.movement:
                is_low = low.issuperset(name for name in block.inputs if name in self._floats)
            else:
                is_low = form != FLOAT32
            if is_low:
                low.update(block.outputs)
        operators = (name for block in self.graph.blocks if low.isdisjoint(block.outputs) for name in block.operators)
        return [tensor for name in operators for tensor in self._nodes[name].output if tensor]

    def emitter(self, wire: Mapping[tuple[str, str], Scheme] | None = None) -> Emitter:
        """An empty graph, for `emit`; `wire` as for `build`."""
        return Emitter(wire=wire or {}, store=self.model.store)

    def emit(self, emitter: Emitter, block: Block, precision: Precision) -> None:
        """Append one block in `precision`. Raises CannotQuantize if the block does not have that form."""
        if not precision.fits(block):
            raise CannotQuantize(f"block {block.name} has no {precision.name} form: {precision.misfit(block)}")
        if precision == BFLOAT16:
            self._emit_bfloat16(emitter, block)
        elif precision.uncalibrated:
            self._emit_uncalibrated(emitter, block, precision)
        else:
            self._emit_static(emitter, block, precision)

    def _emit_static(self, emitter: Emitter, block: Block, precision: Precision) -> None:
        scheme, whole, last = precision.scheme, precision.int8_output, len(block.operators) - 1
        fused = self.fuses and block.soft_tail
        for position, name in enumerate(block.operators):
            source = self._nodes[name]
            node = deepcopy(source)
            if scheme is None or (position > 0 and not whole):
                self._read_float_inputs(emitter, node, block.name)
                emitter.nodes.append(node)
                continue
            if position == 0 or not (fused or self._free(block, position, scheme)):
                self._read_int8_inputs(emitter, source, node, scheme)
            emitter.nodes.append(node)
            if position == last or not (fused or self._free(block, position + 1, scheme)):
                emitter.written |= dict.fromkeys(filter(None, source.output), scheme)

    def _emit_uncalibrated(self, emitter: Emitter, block: Block, precision: Precision) -> None:
        for position, name in enumerate(block.operators):
            node = deepcopy(self._nodes[name])
            self._read_float_inputs(emitter, node, block.name)
            if position:
                emitter.nodes.append(node)
            elif block.recurrent:
                weights = [self._quantized_matrix(matrix, True, precision) for matrix in node.input[1:3]]
                emit_lstm(emitter, node, weights)
            elif block.blockwise_bits:
                emit_blockwise(emitter, node)
            else:
                matrix, turned = node.input[1], transposed(node)
                weight = self._quantized_matrix(matrix, turned, precision)
                emit_product(emitter, node, matrix, self._array(matrix).shape[turned], weight, precision)

    def _emit_bfloat16(self, emitter: Emitter, block: Block) -> None:
        """The block as OpenVINO computes it in bfloat16: on rounded operands, weights and biases, with sums and what is
        fused behind them in float32, and rounded again where it is written."""
        written = [name for name in block.outputs if name in self._floats]
        for position, name in enumerate(block.operators):
            node = deepcopy(self._nodes[name])
            self._read_float_inputs(emitter, node, block.name)
            read = dict[str, str]()
            for tensor in node.input:
                if tensor in block.inputs and tensor in self._floats:
                    read[tensor] = emitter.rounded(tensor, f"{tensor}/bfloat16", TensorProto.BFLOAT16)
            rounded = 2 if position and node.op_type == "Add" else _ROUNDED_INPUTS.get(node.op_type, 0)
            for tensor in node.input[:rounded]:
                constant = self._initializers.get(tensor)
                if constant is not None and constant.data_type == TensorProto.FLOAT:
                    read[tensor] = emitter.constant(f"{tensor}/bfloat16", in_bfloat16(self._array(tensor)))
            node.input[:] = [read.get(tensor, tensor) for tensor in node.input]
            node.output[:] = [f"{tensor}/exact" if tensor in written else tensor for tensor in node.output]
            emitter.nodes.append(node)
        for name in written:
            emitter.rounded(f"{name}/exact", name, TensorProto.BFLOAT16)

    def _quantized_matrix(self, matrix: str, turned: bool, precision: Precision) -> QuantizedWeight:
        """`matrix` [..., rows, columns], if `turned` [..., columns, rows], for the kernel of `precision`."""
        key = (matrix, turned, precision)
        if key not in self._weights:
            values = self._array(matrix)
            values = values.swapaxes(-1, -2) if turned else values
            self._weights[key] = self._kept(quantize_matrix(values, precision))
        return self._weights[key]

    def parameters(self, tensor: str, scheme: Scheme) -> TensorParameters:
        """Scale and zero point of an activation under `scheme`; the source model's if it already quantises the tensor.
        Raises CannotQuantize for a tensor without a range."""
        key = (tensor, scheme)
        if key not in self._parameters:
            root = self._roots.get(tensor, tensor)
            if root in self._own:
                return self._own[root]
            if root not in self._low_high:
                reason = self._without.get(root, "was not calibrated: calibrate again")
                raise CannotQuantize(f"tensor {root} has no calibrated range: it {reason}")
            self._parameters[key] = activation_parameters(*self._low_high[root], scheme)
        return self._parameters[key]

    def _free(self, block: Block, position: int, scheme: Scheme) -> bool:
        """Whether no pair is needed between the operator at `position` and the one before it."""
        node = self._nodes[block.operators[position]]
        if node.op_type in _FREE_TAILS:
            return self.parameters(node.output[0], scheme).at_minimum
        return position == 1 and node.op_type == "Add"  # MatMul + bias: the sum is float in ONNX Runtime's kernel

    def read_float(self, emitter: Emitter, tensor: str, wire: Scheme | None = None) -> str:
        """The name under which a float operator reads `tensor`: dequantised if int8 wrote it or it travels in the
        scheme `wire`."""
        scheme = emitter.written.get(tensor, wire)
        return self._pair(emitter, tensor, scheme) if scheme is not None else tensor

    def _read_float_inputs(self, emitter: Emitter, node: onnx.NodeProto, reader: str) -> None:
        """Make `node` and its subgraphs read each tensor as it was written: dequantised or float."""
        names = {
            tensor: self.read_float(emitter, tensor, emitter.wire.get((tensor, reader)))
            for tensor in dict.fromkeys(node_inputs(node))
        }
        if node.op_type == "QuantizeLinear" and names[node.input[0]] != node.input[0]:
            names[node.input[0]] = _copy(emitter, names[node.input[0]], f"{node.output[0]}/apart")
        rename_inputs(node, names)

    def _pair(self, emitter: Emitter, tensor: str, scheme: Scheme) -> str:
        """The name of `tensor` dequantised after a quantise/dequantise pair, which is added if it is new."""
        name = f"{tensor}/dequantized"
        if name in emitter.made:
            return name
        parameters = self.parameters(tensor, scheme)
        source, before = tensor, self._producers.get(tensor)
        if before is not None and before.op_type == "DequantizeLinear":
            source = _copy(emitter, tensor, f"{tensor}/kept")
        scale = emitter.constant(f"{tensor}/scale", np.asarray(parameters.scale))
        zero = emitter.constant(f"{tensor}/zero_point", np.asarray(parameters.zero_point))
        stored = emitter.once("QuantizeLinear", [source, scale, zero], f"{tensor}/int8", f"{tensor}/quantize")
        return emitter.once("DequantizeLinear", [stored, scale, zero], name, f"{tensor}/dequantize")

    def _read_int8_inputs(self, emitter: Emitter, source: onnx.NodeProto, node: onnx.NodeProto, scheme: Scheme) -> None:
        first: str | None = None
        for index, tensor in enumerate(source.input):
            if not tensor or (index and moves(source)):
                continue  # a shape or an index, constant or computed
            constant = self._initializers.get(tensor)
            if constant is None:
                node.input[index] = self._pair(emitter, tensor, scheme)
                first = first or tensor
            elif source.op_type in _WEIGHTED:
                assert first is not None, "weights come after the activation"
                part = self._bias if index == 2 else self._weight
                node.input[index] = part(emitter, source, first, scheme)
            elif constant.data_type == TensorProto.FLOAT and source.op_type in ("Add", "Mul", "Concat"):
                node.input[index] = self._constant(emitter, tensor, scheme)

    def _constant(self, emitter: Emitter, tensor: str, scheme: Scheme) -> str:
        values = self._array(tensor)
        parameters = activation_parameters(float(values.min()), float(values.max()), scheme)
        scale, zero = np.asarray(parameters.scale), np.asarray(parameters.zero_point)
        stored = QuantizedWeight(quantize_values(values, parameters), scale, zero, None)
        return self._dequantize(emitter, tensor, f"{scheme}-activation", stored)

    def _weight(self, emitter: Emitter, node: onnx.NodeProto, activation: str, scheme: Scheme) -> str:
        weight = self.quantized_weight(node, activation, scheme)
        return self._dequantize(emitter, node.input[1], str(scheme), weight)

    def _bias(self, emitter: Emitter, node: onnx.NodeProto, activation: str, scheme: Scheme) -> str:
        """The bias of a Conv, ConvTranspose or Gemm that reads `activation` and has one."""
        tensor = _bias_name(node)
        if node.op_type == "ConvTranspose":  # its kernel is float, so the bias may be float
            return tensor
        scale_in = float(self.parameters(activation, scheme).scale)
        weight = self.quantized_weight(node, activation, scheme)
        scale = (weight.scale.astype(np.float64) * scale_in).astype(np.float32)
        info = np.iinfo(np.int32)
        bias = np.clip(np.rint(self._bias_values(node) / scale), info.min, info.max).astype(np.int32)
        # Two readers of one bias may have inputs of different scale, so the name includes the node's.
        stored = QuantizedWeight(bias, scale, np.zeros(scale.shape, np.int32), bias.ndim - 1 if scale.ndim else None)
        return self._dequantize(emitter, tensor, f"{scheme}-{node.name}", stored)

    def _bias_values(self, node: onnx.NodeProto) -> np.ndarray:
        """The bias, float64; a scalar 0 if there is none."""
        name = _bias_name(node)
        return self._array(name).astype(np.float64) if name else np.zeros(())

    def quantized_weight(self, node: onnx.NodeProto, activation: str, scheme: Scheme) -> QuantizedWeight:
        """The weight of a Conv, ConvTranspose, Gemm or MatMul that reads `activation`."""
        tensor = node.input[1]
        axis = channel_axis(node, self._initializers[tensor])
        floor: np.ndarray | float = 0.0
        if node.op_type in ("Conv", "Gemm"):
            # An int32 bias has scale scale_in × scale_weight; if it would overflow, the weight scale is enlarged.
            scale_in = float(self.parameters(activation, scheme).scale)
            need = np.abs(self._bias_values(node)) / (scale_in * _INT32_BIAS_LIMIT)
            floor = need if axis is not None and need.ndim == 1 else float(need.max(initial=0.0))
        key = (tensor, axis, scheme.reduced_range)
        weight = self._weights.get(key)
        if weight is None:
            weight = self._weights[key] = self._kept(quantize_weight(self._array(tensor), scheme, axis))
        if np.any(weight.scale < floor):
            return quantize_weight(self._array(tensor), scheme, axis, floor)
        return weight

    def _dequantize(self, emitter: Emitter, tensor: str, suffix: str, stored: QuantizedWeight) -> str:
        """The name of the constant `tensor` dequantised from `stored`, which is added if it is new."""
        kind = "int32" if stored.values.dtype == np.int32 else "int8"
        inputs = [
            emitter.constant(f"{tensor}/{kind}-{suffix}", stored.values),
            emitter.constant(f"{tensor}/scale-{suffix}", stored.scale),
            emitter.constant(f"{tensor}/zero_point-{suffix}", stored.zero_point),
        ]
        output, name = f"{tensor}/dequantized-{suffix}", f"{tensor}/dequantize-{suffix}"
        axis = {} if stored.axis is None else {"axis": stored.axis}
        return emitter.once("DequantizeLinear", inputs, output, name, **axis)

    def _kept(self, weight: QuantizedWeight) -> QuantizedWeight:
        store = self.model.store
        return weight if store is None else replace(weight, values=store.keep(weight.values))

    def _array(self, tensor: str) -> np.ndarray:
        if weights.in_file(self._initializers[tensor]):
            return weights.values(self._initializers[tensor])
        if tensor not in self._arrays:
            self._arrays[tensor] = weights.values(self._initializers[tensor])
        return self._arrays[tensor]

    def _restore_outputs(self, emitter: Emitter) -> None:
        """Give dequantised tensors the names of the model's outputs: an output that int8 wrote, or that travels as
        int8, is then written by the pair, with which the kernel before it can fuse."""
        renamed: dict[str, str] = {}
        for name in self.model.outputs:
            scheme = emitter.written.get(name) or emitter.wire.get((name, ""))
            if scheme is not None:
                renamed |= {name: f"{name}/float", self._pair(emitter, name, scheme): name}
        for node in emitter.nodes if renamed else ():
            rename_inputs(node, renamed)
            node.output[:] = [renamed.get(tensor, tensor) for tensor in node.output]


def _copy(emitter: Emitter, source: str, name: str) -> str:
    """Copy `source` to `name` between two pairs, which ONNX Runtime would merge into one with a third scale."""
    return emitter.once("Max", [source], name, name)


def _bias_name(node: onnx.NodeProto) -> str:
    """The bias of a Conv, ConvTranspose or Gemm, "" without one."""
    return node.input[2] if len(node.input) > 2 else ""


def in_bfloat16(values: np.ndarray) -> np.ndarray:
    """`values` (float32) rounded to the nearest bfloat16, ties to even."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def channel_axis(node: onnx.NodeProto, weight: onnx.TensorProto) -> int | None:
    """The axis of output channels if ONNX Runtime's kernels take a scale per channel; otherwise None."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":  # [input channels, output channels per group, ...]: groups share scales
        return 1
    if node.op_type == "MatMul":
        return 1 if len(weight.dims) == 2 else None
    return 0 if transposed(node) else 1
