"""Write the integer products of a model so that no sum of them saturates. Runs nothing.

x86 processors before VNNI add u8×s8 products in pairs of 16 bits, which hold two products only while weights stay
within ±64; u8×u8 products are widened first. So s8 weights beyond that become u8 ones, 128 larger, and so do their zero
points: the same products, summed exactly. ONNX Runtime does this in memory under `session.x64quantprecision`, where it
optimises the graph; a rewritten file needs neither. Products of s8 activations do not saturate there,
and weights that are computed while the model runs are left.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from taglio import weights
from taglio.model.captures import graphs, writers
from taglio.model.element_types import element_types
from taglio.model.quantized import listed

_LARGEST = 64  # 2 × 255 × 64 still fits in 16 bits
_SHIFT = 128


@dataclass(frozen=True, slots=True)
class _Weights:
    """Where an operator reads weights: the inputs that hold them, their scale (None: it has none) and their zero
    point, and the zero point of the activation (None: it is always u8)."""

    values: int
    scale: int | None
    zero: int
    activation_zero: int | None


_PRODUCTS: dict[str, tuple[_Weights, ...]] = {
    "MatMulInteger": (_Weights(1, None, 3, 2),),
    "ConvInteger": (_Weights(1, None, 3, 2),),
    "MatMulIntegerToFloat": (_Weights(1, 3, 5, 4),),
    "QLinearMatMul": (_Weights(3, 4, 5, 2),),
    "QLinearConv": (_Weights(3, 4, 5, 2),),
    "QGemm": (_Weights(3, 4, 5, 2),),
    "QAttention": (_Weights(1, 4, 7, 6),),
    "DynamicQuantizeMatMul": (_Weights(1, 2, 3, None),),
    "DynamicQuantizeLSTM": (_Weights(1, 8, 9, None), _Weights(2, 10, 11, None)),
}
# Operators that ONNX Runtime computes in int8 between dequantised activations and dequantised weights.
_FUSED = frozenset({"Conv", "MatMul", "Gemm"})
_DEQUANTIZED = _Weights(0, 1, 2, None)


def with_exact_sums(proto: onnx.ModelProto, *, fused: bool = False) -> onnx.ModelProto:
    """`proto` with u8 weights where sums of products with s8 ones may saturate; `proto` itself if there are none.

    `fused` includes the weights behind DequantizeLinear that ONNX Runtime computes with where it optimises the graph;
    without optimisations those products are float ones.
    """
    if not _products(proto, fused=fused):
        return proto
    rewritten = deepcopy(proto)
    types = element_types(rewritten)
    for graph in graphs(rewritten.graph):
        _rewrite(graph, _Scope(rewritten.graph, graph, types), fused)
    return rewritten


def saturating_products(proto: onnx.ModelProto) -> str:
    """The operators whose sums may saturate once ONNX Runtime has optimised the graph, counted by type, or ""."""
    return listed(Counter(node.op_type for node in _products(proto, fused=True)))


def _products(proto: onnx.ModelProto, *, fused: bool) -> list[onnx.NodeProto]:
    """The operators whose sums may saturate. Most models have no integer product, and are not looked at further."""
    kinds = {*_PRODUCTS, *(("DequantizeLinear",) if fused else ())}
    if not any(node.op_type in kinds for graph in graphs(proto.graph) for node in graph.node):
        return []
    types = element_types(proto)
    scopes = (_Scope(proto.graph, graph, types) for graph in graphs(proto.graph))
    return [product for scope in scopes for *_, product in scope.saturating(fused=fused)]


class _Scope:
    """The constants that a graph reads, its own and those of the whole model's graph, and the types of tensors."""

    def __init__(self, outer: onnx.GraphProto, graph: onnx.GraphProto, types: Mapping[str, int]) -> None:
        self._graph, self._types = graph, types
        self.constants = {tensor.name: tensor for tensor in (*outer.initializer, *graph.initializer)}
        for node in (*outer.node, *graph.node):
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t

    def saturating(self, *, fused: bool) -> Iterator[tuple[onnx.NodeProto, _Weights, onnx.NodeProto]]:
        """The operators that read weights whose products may saturate, where they read them, and the products."""
        producer = writers(self._graph.node)
        for node in self._graph.node:
            for place in _PRODUCTS.get(node.op_type, ()):
                signed = place.activation_zero is not None and self._signed(node, 0, place.activation_zero)
                if not signed and self._wide(node, place):
                    yield node, place, node
            if fused and node.op_type in _FUSED:
                activation, weight = (producer.get(name) for name in node.input[:2])
                if activation is None or weight is None or weight.op_type != "DequantizeLinear":
                    continue
                unsigned = activation.op_type == "DequantizeLinear" and not self._signed(activation, 0, 2)
                if unsigned and self._wide(weight, _DEQUANTIZED):
                    yield weight, _DEQUANTIZED, node

    def _signed(self, node: onnx.NodeProto, values: int, zero: int) -> bool:
        """Whether an operator reads s8 values."""
        names = (node.input[zero] if len(node.input) > zero else "", node.input[values])
        kinds = [self._type(name) for name in names if name]
        return TensorProto.INT8 in kinds

    def _type(self, name: str) -> int:
        return self.constants[name].data_type if name in self.constants else self._types.get(name, 0)

    def _wide(self, node: onnx.NodeProto, place: _Weights) -> bool:
        """Whether an operator reads constant s8 weights beyond ±64 there."""
        tensor, zero = self.constants.get(node.input[place.values]), (*node.input[place.zero :], "")[0]
        if tensor is None or tensor.data_type != TensorProto.INT8 or (zero and zero not in self.constants):
            return False
        return bool(np.abs(_as_int16(tensor)).max(initial=0) > _LARGEST)


def _as_int16(tensor: TensorProto) -> np.ndarray:
    return np.asarray(weights.values(tensor), np.int16)


def _rewrite(graph: onnx.GraphProto, scope: _Scope, fused: bool) -> None:
    """Make the weights of `graph` that may saturate u8, in place."""
    readers = {(id(node), place.values): (node, place) for node, place, _ in scope.saturating(fused=fused)}
    shifted_name: dict[str, str] = {}

    def shifted(name: str) -> str:
        if name not in shifted_name:
            shifted_name[name] = f"{name}:u8"
            values = (_as_int16(scope.constants[name]) + _SHIFT).astype(np.uint8)
            graph.initializer.append(numpy_helper.from_array(values, shifted_name[name]))
        return shifted_name[name]

    for node, place in readers.values():
        node.input.extend([""] * (place.zero + 1 - len(node.input)))
        if node.input[place.zero]:
            node.input[place.zero] = shifted(node.input[place.zero])
        else:
            scale = scope.constants.get(node.input[place.scale]) if place.scale is not None else None
            middle = np.full([] if scale is None else [*scale.dims], _SHIFT, np.uint8)
            node.input[place.zero] = f"{node.output[0]}:u8:{place.zero}"
            graph.initializer.append(numpy_helper.from_array(middle, node.input[place.zero]))
        node.input[place.values] = shifted(node.input[place.values])
