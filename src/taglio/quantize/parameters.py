"""Scales, zero points and quantised weights, by ONNX Runtime's formulas. Changes no graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from taglio import weights
from taglio.quantize.scheme import Scheme

# Largest integer of symmetric s8 values, as in ONNX Runtime, and of weights in reduced range.
_LARGEST, _LARGEST_REDUCED = 127, 64
# Smallest scale that still multiplies and divides safely in float32.
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class TensorParameters:
    """One scale and zero point: value = scale × (stored − zero_point)."""

    scale: np.float32
    zero_point: np.integer[Any]

    @property
    def at_minimum(self) -> bool:
        """Whether the zero point is the type's lowest value, so that quantising also clips at zero (a free Relu)."""
        return int(self.zero_point) == int(np.iinfo(self.zero_point.dtype).min)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """`values` in 8 bits, or 32 of a bias; `scale` and `zero_point` scalar, or one per entry of `axis`."""

    values: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None


def activation_parameters(low: float, high: float, scheme: Scheme) -> TensorParameters:
    """Scale and zero point of an activation whose values lie in [low, high], as ONNX Runtime's `compute_scale_zp` gives
    them. That is not called: in versions 1.25 and 1.26 its package needs sympy, which does not come with it."""
    low, high = min(0.0, float(np.float32(low))), max(0.0, float(np.float32(high)))
    scale = max(-low, high) / _LARGEST if scheme.signed else (high - low) / 255
    zero = np.int8(0) if scheme.signed else np.uint8(0)
    if scale < _TINY:
        return TensorParameters(np.float32(1.0), zero)
    return TensorParameters(np.float32(scale), zero if scheme.signed else np.uint8(np.round(-low / scale)))


def quantize_weight(
    values: np.ndarray, scheme: Scheme, axis: int | None, minimum_scale: np.ndarray | float = 0.0
) -> QuantizedWeight:
    """Quantise a float weight per tensor (`axis` None) or per entry of `axis`.

    `minimum_scale` (scalar or one per entry) widens scales that would overflow an int32 bias.
    """
    largest = _LARGEST_REDUCED if scheme.reduced_range else _LARGEST
    over = tuple(i for i in range(values.ndim) if i != axis) if axis is not None else None
    extent = np.maximum(-values.min(axis=over), values.max(axis=over)).astype(np.float64)
    scale = np.maximum(extent / largest, minimum_scale)
    scale = np.where(scale < _TINY, 1.0, scale)
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    scale32 = scale.astype(np.float32)
    # In place and in float32: weights can be hundreds of megabytes.
    stored = values / scale32.reshape(shape)
    np.rint(stored, out=stored)
    np.clip(stored, -largest, largest, out=stored)
    return QuantizedWeight(stored.astype(np.int8), scale32, np.zeros(scale32.shape, np.int8), axis)


def quantize_values(values: np.ndarray, parameters: TensorParameters) -> np.ndarray:
    """Quantise a constant with an activation's parameters."""
    info = np.iinfo(parameters.zero_point.dtype)
    with np.errstate(over="ignore"):  # overflow is clipped, like every value beyond the range
        stored = np.rint(values / parameters.scale) + float(parameters.zero_point)
    return np.clip(stored, info.min, info.max).astype(info.dtype)


def own_parameters(proto: onnx.ModelProto, initializers: Mapping[str, onnx.TensorProto]) -> dict[str, TensorParameters]:
    """Scale and zero point, to be kept, of every activation that the source model itself quantises to, or dequantises
    from, 8 bits."""
    parameters_of: dict[str, TensorParameters] = {}
    for node in proto.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.input[0] in initializers:
            continue
        tensor = node.input[0] if node.op_type == "QuantizeLinear" else node.output[0]
        if tensor not in parameters_of and (parameters := _constants(node, initializers)):
            parameters_of[tensor] = parameters
    return parameters_of


def _constants(node: onnx.NodeProto, initializers: Mapping[str, onnx.TensorProto]) -> TensorParameters | None:
    """The node's parameters if they are constants: one scale and one 8-bit zero point for the whole tensor."""
    if any(name not in initializers for name in node.input[1:] if name) or len(node.input) < 3 or not node.input[2]:
        return None
    scale, zero_point = (weights.values(initializers[name]) for name in node.input[1:3])
    if scale.size != 1 or scale.dtype != np.float32 or zero_point.dtype not in (np.uint8, np.int8):
        return None
    return TensorParameters(scale.reshape(-1)[0], zero_point.reshape(-1)[0])
