"""MatMul, Gemm and LSTM with quantised matrices, in forms that need no calibration: kernels quantise the other operand
while they run. Chooses nothing.

* `int8-weights` and `int4-weights`: ONNX Runtime's MatMulNBits, with a scale per 32 weights of a column. The other
  operand becomes int8, 32 values at a time, so an outlier widens the range of its neighbours alone: on a sentence
  encoder all products in 8 bits change the output by 1.5 %, where static int8 changes it by 9 %. A MatMulNBits of the
  source that multiplies in float32 keeps its weights in that form.
* `int8-dynamic`: ONNX Runtime's DynamicQuantizeMatMul, with a scale per column. The other operand becomes u8 with one
  scale. It is the fastest in ONNX Runtime, and 7 % off there. An LSTM becomes DynamicQuantizeLSTM, which has one scale
  for all steps of the input, and one for the hidden state of each step. There is no such kernel for GRU. Where sums of
  u8×s8 products saturate (runtimes/processor.py), its weights have 7 bits.

OpenVINO reads these operators, and keeps the weights of products compressed too.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from taglio.model.graph import INT8_PRODUCTS
from taglio.model.operators import integer, set_attribute
from taglio.quantize.emitter import Emitter
from taglio.quantize.keep_float import MICROSOFT
from taglio.quantize.parameters import QuantizedWeight
from taglio.quantize.precision import Precision

BLOCK = 32


def transposed(node: onnx.NodeProto) -> bool:
    """Whether a Gemm's matrix is stored as [columns, rows]."""
    return bool(integer(node, "transB"))


def quantize_matrix(matrix: np.ndarray, precision: Precision) -> QuantizedWeight:
    """`matrix` [rows, columns] as the operator of `precision` stores it; for an LSTM [directions, rows, columns]."""
    if precision.name == "int8-dynamic":
        return _columns(matrix, 64 if precision.reduced_range else 127)
    return _blocks(matrix, precision.weight_bits)


def _columns(matrix: np.ndarray, largest: int) -> QuantizedWeight:
    """Values int8 [..., rows, columns], from −`largest` to `largest`, and scales [..., columns], symmetric about 0."""
    scale = _not_zero(np.abs(matrix).max(axis=-2) / largest)
    values = np.rint(matrix / scale[..., None, :]).astype(np.int8)
    return QuantizedWeight(values, scale, np.zeros(scale.shape, np.int8), matrix.ndim - 1)


def _blocks(matrix: np.ndarray, bits: int) -> QuantizedWeight:
    """Values uint8 [columns, blocks, 32 · bits / 8], of which two share a byte at 4 bits (the lower half first), and
    scales [columns · blocks]; symmetric about 2^(bits − 1).

    With 4 bits the scale is the value of largest magnitude / −8, so that all 16 levels are used.
    """
    rows, columns = matrix.shape
    blocks = -(-rows // BLOCK)
    padded = np.zeros((columns, blocks * BLOCK), np.float32)
    padded[:, :rows] = matrix.T
    groups = padded.reshape(columns, blocks, BLOCK)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=-1)[..., None], axis=-1)[..., 0]
    middle = 1 << (bits - 1)
    scale = _not_zero(np.abs(largest) / (middle - 1) if bits == 8 else largest / -middle)
    stored = np.clip(np.rint(groups / scale[..., None]) + middle, 0, 2 * middle - 1).astype(np.uint8)
    if bits == 4:
        stored = stored[..., 0::2] | (stored[..., 1::2] << 4)
    return QuantizedWeight(stored, scale.reshape(-1), np.asarray(middle, np.uint8), None)


def _not_zero(scale: np.ndarray) -> np.ndarray:
    return np.where(scale == 0.0, 1.0, scale).astype(np.float32)


def emit_product(
    emitter: Emitter, node: onnx.NodeProto, matrix: str, rows: int, weight: QuantizedWeight, precision: Precision
) -> None:
    """Append `node`, a MatMul or Gemm that reads float, with `weight` in place of its `matrix` of `rows` rows."""
    suffix = precision.name + "-transposed" * transposed(node)
    stored = emitter.constant(f"{matrix}/{suffix}", weight.values)
    scales = emitter.constant(f"{matrix}/scale-{suffix}", weight.scale)
    (output,) = node.output
    added = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else ""
    inputs, outputs = [node.input[0], stored, scales], [f"{output}/product" if added else output]
    if precision.name == "int8-dynamic":
        inputs.append(emitter.constant(f"{matrix}/zero_point-{suffix}", weight.zero_point))
        product = helper.make_node("DynamicQuantizeMatMul", inputs, outputs, name=node.name, domain=MICROSOFT)
    else:
        product = helper.make_node(
            "MatMulNBits",
            inputs,
            outputs,
            name=node.name,
            domain=MICROSOFT,
            K=rows,
            N=weight.values.shape[0],
            bits=precision.weight_bits,
            block_size=BLOCK,
            accuracy_level=INT8_PRODUCTS,
        )
    emitter.nodes.append(product)
    if added:
        emitter.nodes.append(helper.make_node("Add", [*outputs, added], [output], name=f"{node.name}/add"))


def emit_blockwise(emitter: Emitter, node: onnx.NodeProto) -> None:
    """Append `node`, a MatMulNBits of the source, with its own weights and products in int8."""
    set_attribute(node, "accuracy_level", INT8_PRODUCTS)
    emitter.nodes.append(node)


def emit_lstm(emitter: Emitter, node: onnx.NodeProto, weights: Sequence[QuantizedWeight]) -> None:
    """Append `node`, an LSTM that reads float, with `weights` [directions, rows, columns] in place of its matrices."""
    stored, parameters = [], []
    for matrix, weight in zip(node.input[1:3], weights, strict=True):
        stored.append(emitter.constant(f"{matrix}/int8-dynamic-lstm", weight.values))
        parameters.append(emitter.constant(f"{matrix}/scale-int8-dynamic-lstm", weight.scale))
        parameters.append(emitter.constant(f"{matrix}/zero_point-int8-dynamic-lstm", weight.zero_point))
    biases_and_states = [*node.input[3:], *[""] * 5][:5]
    inputs = [node.input[0], *stored, *biases_and_states, *parameters]
    lstm = helper.make_node("DynamicQuantizeLSTM", inputs, node.output, name=node.name, domain=MICROSOFT)
    lstm.attribute.extend(
        attribute for attribute in node.attribute if attribute.name != "layout"
    )  # 0: no kernel has another
    emitter.nodes.append(lstm)
