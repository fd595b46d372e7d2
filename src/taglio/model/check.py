"""Refuse models that no later stage can handle, before anything runs. What ONNX Runtime checks is left to it."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import onnx

from taglio import weights
from taglio.errors import BadModel, one_line
from taglio.memory import machine_bytes
from taglio.model.captures import graphs

_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}
_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE})
# One NaN or infinite weight of these spoils all their outputs. A bias of minus infinity (a class that is never
# chosen) or a mask is legitimate.
_MULTIPLIES = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


def refuse_damage(path: Path, proto: onnx.ModelProto) -> None:
    """Raises BadModel for names that are not UTF-8, an output listed twice, unknown element types, and inputs larger
    than the memory."""
    if not all(isinstance(name, str) for graph in graphs(proto.graph) for name in _names(graph)):
        # protobuf gives bytes where UTF-8 fails
        raise BadModel(f"{path}: holds a name that is not text, so the file is damaged: export it again")
    outputs = [value.name for value in proto.graph.output]
    for name in outputs:
        if (times := outputs.count(name)) > 1:  # ONNX Runtime takes it; answers by name would be fewer than outputs
            raise BadModel(f"{path}: lists the output {name} {times} times: export it with each output listed once")
    for what, name, kind in _element_types(proto.graph):
        if kind not in _TYPES:
            raise BadModel(f"{path}: {what} {name} has the element type {kind}, unknown to ONNX: export it again")
    memory_bytes = machine_bytes()
    for value in proto.graph.input:
        elements = prod(max(1, dim.dim_value) for dim in value.type.tensor_type.shape.dim)
        if elements > memory_bytes:
            raise BadModel(
                f"{path}: input {value.name} has {elements:,} elements; this machine has {memory_bytes:,} bytes of "
                "memory: export it with real sizes"
            )


def _names(graph: onnx.GraphProto) -> Iterator[object]:
    yield graph.name
    for named in (graph.input, graph.output, graph.initializer, graph.value_info):
        for value in named:
            yield value.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _element_types(graph: onnx.GraphProto) -> Iterator[tuple[str, str, int]]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            yield "tensor", value.name, value.type.tensor_type.elem_type
    for tensor in graph.initializer:
        yield "weight", tensor.name, tensor.data_type


def refuse_bad_weights(path: Path, proto: onnx.ModelProto) -> None:
    """Raises BadModel for a weight of a convolution or matrix product that is damaged, NaN or infinite."""
    initializers = {tensor.name: tensor for tensor in proto.graph.initializer if tensor.data_type in _FLOATS}
    for node in proto.graph.node:
        if node.op_type not in _MULTIPLIES:
            continue
        for index, name in enumerate(node.input):
            if name not in initializers:
                continue
            values = constant(path, initializers[name])
            bad = ~np.isfinite(values) if index < 2 else np.isnan(values)
            if bad.any():
                raise BadModel(
                    f"{path}: weight {name} of {node.op_type} {node.name or node.output[0]} has {int(bad.sum())} "
                    f"NaN or Inf among {values.size:,} values: export the model from a healthy checkpoint"
                )


def constant(path: Path, tensor: onnx.TensorProto) -> np.ndarray:
    """The values of an initialiser. Raises BadModel if they do not match its shape and type."""
    try:
        return weights.values(tensor)
    except (OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise BadModel(f"{path}: weight {tensor.name} is damaged ({one_line(error)}): export it again") from None


def name_unknown_operators(path: Path, proto: onnx.ModelProto) -> str:
    """An error message that names the first operator of a custom domain, or "" if there is none.

    Custom is what is neither ONNX's, nor ONNX Runtime's, nor a function of the model.
    """
    local = {(function.domain, function.name) for function in proto.functions}
    for node in proto.graph.node:
        if node.domain not in _DOMAINS and (node.domain, node.op_type) not in local:
            return (
                f"{path}: operator {node.op_type} ({node.name or node.output[0]}) has the custom domain "
                f'"{node.domain}", which ONNX Runtime does not know: replace it with standard operators'
            )
    return ""
