"""Scales, zero points and quantised weights, by ONNX Runtime's formulas. Changes no graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from taglio import weights
from taglio.quantize.scheme import ActivationType, Scheme

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
    info = np.iinfo(_dtype(scheme.activation))
    is_symmetric = scheme.activation_symmetry == "symmetric"
    least, most = (-127 if is_symmetric and scheme.activation == "s8" else info.min), info.max
    low, high = min(0.0, float(np.float32(low))), max(0.0, float(np.float32(high)))
    if is_symmetric:
        high = max(-low, high)
        low = -high
    scale = (high - low) / (most - least)
    if scale < _TINY:
        return TensorParameters(np.float32(1.0), info.dtype.type(0))
    zero_point = np.round((least + most) / 2.0 if is_symmetric else least - low / scale)
    return TensorParameters(np.float32(scale), info.dtype.type(int(zero_point)))


def quantize_weight(
    values: np.ndarray, scheme: Scheme, axis: int | None, minimum_scale: np.ndarray | float = 0.0
) -> QuantizedWeight:
    """Quantise a float weight per tensor (`axis` None) or per entry of `axis`.

    `minimum_scale` (scalar or one per entry) widens scales that would overflow an int32 bias.
    """
    low_q, high_q = weight_limits(scheme)
    dtype = _dtype(scheme.weight)
    over = tuple(i for i in range(values.ndim) if i != axis) if axis is not None else None
    low = np.minimum(values.min(axis=over), 0.0).astype(np.float64)
    high = np.maximum(values.max(axis=over), 0.0).astype(np.float64)
    if scheme.weight_symmetric:
        high = np.maximum(-low, high)
        low = -high
    scale = np.maximum((high - low) / (high_q - low_q), minimum_scale)
    flat = scale < _TINY
    scale = np.where(flat, 1.0, scale)
    middle = np.round((low_q + high_q) / 2.0) if scheme.weight_symmetric else np.round(low_q - low / scale)
    zero_point = np.where(flat, 0.0, middle)
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    scale32 = scale.astype(np.float32)
    # In place and in float32: weights can be hundreds of megabytes.
    stored = values / scale32.reshape(shape)
    np.rint(stored, out=stored)
    stored += zero_point.astype(np.float32).reshape(shape)
    np.clip(stored, low_q, high_q, out=stored)
    return QuantizedWeight(stored.astype(dtype), scale32, zero_point.astype(dtype), axis)


def quantize_values(values: np.ndarray, parameters: TensorParameters) -> np.ndarray:
    """Quantise a constant with an activation's parameters."""
    info = np.iinfo(parameters.zero_point.dtype)
    with np.errstate(over="ignore"):  # overflow is clipped, like every value beyond the range
        stored = np.rint(values / parameters.scale) + float(parameters.zero_point)
    return np.clip(stored, info.min, info.max).astype(info.dtype)


def _dtype(kind: ActivationType) -> np.dtype[Any]:
    return np.dtype(np.uint8 if kind == "u8" else np.int8)


def weight_limits(scheme: Scheme) -> tuple[int, int]:
    """Lowest and highest integer of weights, as in ONNX Runtime: symmetric s8 omits −128, reduced range halves it."""
    if scheme.weight == "u8":
        return (0, 127) if scheme.reduced_range else (0, 255)
    if scheme.reduced_range:
        return (-64, 64)
    return (-127, 127) if scheme.weight_symmetric else (-128, 127)


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
