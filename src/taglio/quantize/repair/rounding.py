"""Weights rounded to the integers that change each product least (GPTQ: Frantar et al., ICLR 2023).

The nearest integers are best only if inputs are uncorrelated. For one output's weights w and inputs with second moments
H = E[x xᵀ] = Rᵀ R, integers q change the product by ‖R (w − q)‖². So columns are rounded one after the other, starting
with the last, each compensating for those already rounded (Babai's nearest plane, of which GPTQ is one form: Chen et
al. 2025):

    q[j] = round( w[j] + Σ_{k>j} R[j, k] (w[k] − q[k]) / R[j, j] )

1. Rounded are the weights of a Conv, and of a MatMul or Gemm with a constant matrix, unless another operator reads them
   too. Each is treated alone, with float inputs, so the result does not depend on which other blocks are in int8.
   Scales stay.
2. The inputs of a Conv are patches drawn at random; each of its groups has its own H.
3. Quantising the inputs adds the noise of one uniform step to the diagonal of H.
4. With few rows of inputs H is uncertain: its off-diagonal is multiplied by rows / (rows + columns).
5. Half of the time is for running samples. Small products come first; those for which time or memory runs out keep the
   nearest integers.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view

from taglio import weights
from taglio.errors import BadData, BadModel, CannotQuantize
from taglio.memory import groups_within
from taglio.model.load import Model
from taglio.model.observe import tensor_values
from taglio.model.operators import integer, integers, text
from taglio.progress import Progress
from taglio.quantize.parameters import QuantizedWeight, weight_limits
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import Scheme
from taglio.quantize.uncalibrated import transposed

# Rows of inputs per column, and their least and greatest number.
_PER_COLUMN, _FEWEST_ROWS, _MOST_ROWS = 4, 2048, 16_384
_FEWEST_SAMPLES = 2
# Columns that are rounded before their error is propagated to the others.
_TOGETHER = 128
_DAMPING = 1e-3
# Speed of matrix products on a slow processor, to skip products for which there is no time.
_FLOPS_PER_S = 2e10


@dataclass(frozen=True, slots=True, eq=False)
class _Product:
    """An operator with its float weights as `matrix` [groups, outputs per group, columns]; `shape` is their shape in
    the operator, `step` the quantisation step of its inputs."""

    node: onnx.NodeProto
    matrix: np.ndarray
    shape: tuple[int, ...]
    weight: QuantizedWeight
    step: float

    @property
    def hessian_bytes(self) -> int:
        groups, _, columns = self.matrix.shape
        return int(4 * groups * columns**2)

    @property
    def rows(self) -> int:
        """Number of input rows to use."""
        return min(_MOST_ROWS, max(_FEWEST_ROWS, _PER_COLUMN * int(self.matrix.shape[2])))

    @property
    def seconds(self) -> float:
        """Estimated seconds to round it."""
        groups, outputs, columns = self.matrix.shape
        return float(groups * columns**2 * (2.0 * self.rows + columns + 2.0 * outputs) / _FLOPS_PER_S)


def rounded_weights(
    builder: QdqBuilder,
    scheme: Scheme,
    samples: Sequence[Mapping[str, np.ndarray]],
    *,
    budget_s: float,
    room_bytes: float | None = None,
    progress: Progress | None = None,
) -> dict[str, bytes]:
    """Operator -> its rounded weights under `scheme`, as bytes in the order of its float weights.

    Stops after `budget_s` seconds. Operators are processed in groups whose H fit into `room_bytes` (None: no limit);
    the inputs of one sample are held at a time.
    """
    end = time.perf_counter() + budget_s
    products = sorted(_products(builder, scheme), key=lambda each: each.seconds)
    room, left_s, affordable = room_bytes or np.inf, budget_s, list[_Product]()
    for each in products:
        left_s -= each.seconds
        if left_s > 0.0 and each.hessian_bytes <= room:
            affordable.append(each)
    found: dict[str, bytes] = {}
    done = 0
    for group in groups_within(affordable, lambda each: each.hessian_bytes, room):
        try:
            now = time.perf_counter()
            moments = _moments(builder.model, group, samples, now + (end - now) / 2.0)
        except (BadModel, BadData):
            return found
        for each in group:
            if time.perf_counter() > end:
                return found
            hessian, rows = moments.pop(each.node.name)
            stored = _rounded(each, _conditioned(hessian, rows, each.step), scheme)
            if stored is not None:
                found[each.node.name] = stored
            done += 1
            if progress:
                progress("rounding of weights", done, len(affordable))
    return found


def _products(builder: QdqBuilder, scheme: Scheme) -> Iterator[_Product]:
    """The operators to round by rule 1."""
    model, constants = builder.model, builder.model.initializers()
    readers = Counter(name for node in model.proto.graph.node for name in node.input)
    nodes = model.nodes()
    for block in builder.graph.candidates():
        node = nodes[block.operators[0]]
        if len(node.input) < 2 or node.input[0] in constants or node.input[1] not in constants:
            continue
        if readers[node.input[1]] > 1 or not _understood(node, constants[node.input[1]]):
            continue
        try:
            step = float(builder.parameters(node.input[0], scheme).scale)
            weight = builder.quantized_weight(node, node.input[0], scheme)
        except CannotQuantize:
            continue
        values = weights.values(constants[node.input[1]])
        matrix = values if _outputs_first(node) else values.T
        groups = integer(node, "group", 1)
        yield _Product(node, matrix.reshape(groups, matrix.shape[0] // groups, -1), values.shape, weight, step)


def _understood(node: onnx.NodeProto, weight: onnx.TensorProto) -> bool:
    if node.op_type == "Conv":
        return text(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return node.op_type in ("MatMul", "Gemm") and len(weight.dims) == 2 and not integer(node, "transA")


def _outputs_first(node: onnx.NodeProto) -> bool:
    return node.op_type == "Conv" or transposed(node)


def _moments(
    model: Model, products: Sequence[_Product], samples: Sequence[Mapping[str, np.ndarray]], until: float
) -> dict[str, tuple[np.ndarray, int]]:
    """Operator -> Σ x xᵀ over its inputs, float32 [groups, columns, columns], and the number of rows. Stops at the time
    `until` after a few samples."""
    read = [*dict.fromkeys(each.node.input[0] for each in products)]
    rng = np.random.default_rng(0)
    total: dict[str, tuple[np.ndarray, int]] = {}
    for index, values in enumerate(tensor_values(model, read, samples, "the calibration data")):
        if index >= _FEWEST_SAMPLES and time.perf_counter() > until:
            break
        for each in products:
            rows = _rows(each, np.asarray(values[each.node.input[0]], np.float32), -(-each.rows // len(samples)), rng)
            square, count = np.matmul(rows.transpose(0, 2, 1), rows), rows.shape[1]
            before, known = total.get(each.node.name, (0.0, 0))
            total[each.node.name] = (before + square, known + count)
    return total


def _rows(product: _Product, values: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """At most `count` input rows of one sample, drawn at random, [groups, rows, columns]."""
    groups, _, columns = product.matrix.shape
    if product.node.op_type != "Conv":
        rows = values.reshape(-1, columns)
        if len(rows) > count:
            rows = rows[rng.choice(len(rows), count, replace=False)]
        return rows[None]
    kernel = product.shape[2:]
    rank = len(kernel)
    pads = integers(product.node, "pads") or (0,) * (2 * rank)
    strides, dilations = (integers(product.node, name) or (1,) * rank for name in ("strides", "dilations"))
    padded = np.pad(values, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    windows = sliding_window_view(padded, spans, axis=tuple(range(2, 2 + rank)))
    windows = windows[tuple(np.s_[::each] for each in (1, 1, *strides, *dilations))]
    places = (windows.shape[0], *windows.shape[2 : 2 + rank])
    total = int(np.prod(places))
    picked = np.arange(total) if total <= count else rng.choice(total, count, replace=False)
    batch, *where = np.unravel_index(picked, places)
    patches = np.moveaxis(windows, 1, -1)[(batch, *where)]  # [rows, kernel..., channels]
    patches = np.moveaxis(patches, -1, 1)
    return np.ascontiguousarray(patches.reshape(len(picked), groups, columns).transpose(1, 0, 2))


def _conditioned(hessian: np.ndarray, rows: int, step: float) -> np.ndarray:
    """E[x xᵀ] by rules 3 and 4, with a little damping on the diagonal."""
    columns = hessian.shape[1]
    moments = hessian / rows
    diagonal = np.einsum("gii->gi", moments)
    lifted = diagonal + step**2 / 12.0 + _DAMPING * diagonal.mean(axis=1, keepdims=True)
    moments *= rows / (rows + columns)
    np.einsum("gii->gi", moments)[:] = lifted
    return moments


def _rounded(product: _Product, hessian: np.ndarray, scheme: Scheme) -> bytes | None:
    """The rounded integers of `product` as bytes; None if H is not positive definite."""
    groups, outputs, columns = product.matrix.shape
    scale, zero = (
        np.broadcast_to(each.astype(np.float32), groups * outputs).reshape(groups, outputs)
        for each in (product.weight.scale, product.weight.zero_point)
    )
    # Columns with large inputs come last, so they are rounded first and the others can compensate.
    order = np.argsort(np.einsum("gii->gi", hessian), axis=1)
    hessian = np.take_along_axis(np.take_along_axis(hessian, order[:, :, None], 1), order[:, None, :], 2)
    wanted = np.take_along_axis(product.matrix, order[:, None, :], 2)
    try:
        root = np.linalg.cholesky(hessian).transpose(0, 2, 1)
    except np.linalg.LinAlgError:
        return None
    low, high = weight_limits(scheme)
    stored = np.empty(wanted.shape, product.weight.values.dtype)
    missing = np.zeros_like(wanted)  # w − q
    for last in range(columns, 0, -_TOGETHER):
        first = max(0, last - _TOGETHER)
        owed = np.matmul(missing[:, :, last:], root[:, first:last, last:].transpose(0, 2, 1))
        for column in range(last - 1, first - 1, -1):
            aim = wanted[:, :, column] + owed[:, :, column - first] / root[:, None, column, column]
            value = np.clip(np.rint(aim / scale) + zero, low, high)
            stored[:, :, column] = value
            missing[:, :, column] = wanted[:, :, column] - (value - zero) * scale
            owed += missing[:, :, column, None] * root[:, None, first:last, column]
    stored = np.take_along_axis(stored, np.argsort(order, axis=1)[:, None, :], 2).reshape(groups * outputs, columns)
    if not _outputs_first(product.node):
        stored = stored.T
    return np.ascontiguousarray(stored).tobytes()
