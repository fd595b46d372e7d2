"""Read a .tflite file: its operators, their tensors and operation counts; extract single operators as models.

LiteRT's own tools read the flatbuffer. The Python package has no profile per operator, so an operator is timed as a
model of one operator.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

_BYTES = {
    schema.TensorType.FLOAT32: 4, schema.TensorType.FLOAT16: 2, schema.TensorType.INT8: 1, schema.TensorType.UINT8: 1,
    schema.TensorType.INT16: 2, schema.TensorType.INT32: 4, schema.TensorType.INT64: 8, schema.TensorType.BOOL: 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: the name of its output tensor, its kind, its inputs' types, its output's bytes, its operations."""

    index: int
    name: str
    kind: str
    types: tuple[str, ...]
    output_bytes: int
    flops: int


class TfliteGraph:
    """The first subgraph of a model."""

    def __init__(self, data: bytes) -> None:
        self._model: Any = flatbuffer_utils.read_model_from_bytearray(data)
        self._graph: Any = self._model.subgraphs[0]

    def operators(self) -> list[Operator]:
        """The operators in execution order."""
        operators = []
        for index, operator in enumerate(self._graph.operators):
            output = self._graph.tensors[operator.outputs[0]]
            inputs = [self._graph.tensors[number] for number in operator.inputs if number >= 0]
            shape = tuple(int(size) for size in (output.shape if output.shape is not None else ()))
            operators.append(
                Operator(
                    index,
                    output.name.decode(),
                    self._kind(operator),
                    tuple(flatbuffer_utils.type_to_name(tensor.type).lower() for tensor in inputs),
                    prod(shape) * _BYTES.get(output.type, 4),
                    self._flops(operator, shape),
                )
            )
        return operators

    def alone(self, index: int) -> bytes:
        """A model of operator `index` alone: its constants stay, its other inputs become the model's inputs."""
        source, tensors, buffers = self._graph.operators[index], self._graph.tensors, self._model.buffers
        used = {tensors[tensor].buffer for tensor in (*source.inputs, *source.outputs) if tensor >= 0}
        model, graph, empty = _shallow(self._model), _shallow(self._graph), schema.BufferT()
        model.subgraphs, model.signatureDefs, model.metadata = [graph], None, None
        model.buffers = [buffer if number in used else empty for number, buffer in enumerate(buffers)]
        constants = {number for number in used if buffers[number].data is not None and len(buffers[number].data)}
        graph.operators, graph.outputs = [source], source.outputs
        inputs = [tensor for tensor in source.inputs if tensor >= 0 and tensors[tensor].buffer not in constants]
        graph.inputs = list(dict.fromkeys(inputs))
        builder = _Aligned(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _kind(self, operator: Any) -> str:
        return flatbuffer_utils.opcode_to_name(self._model, operator.opcodeIndex) or "?"

    def _flops(self, operator: Any, shape: tuple[int, ...]) -> int:
        """Operations, counted as in `taglio.model.flops`: two per multiply-add, one per bias or elementwise result."""
        kind, size = self._kind(operator), prod(shape)
        second = self._graph.tensors[operator.inputs[1]].shape if len(operator.inputs) > 1 else None
        weight: list[int] = [] if second is None else list(second)
        bias = int(len(operator.inputs) > 2 and operator.inputs[2] >= 0)
        match kind:
            case "CONV_2D" | "FULLY_CONNECTED":
                return int(size * (2 * prod(int(dimension) for dimension in weight[1:]) + bias))
            case "DEPTHWISE_CONV_2D":
                return int(size * (2 * int(weight[1]) * int(weight[2]) + bias))
            case "BATCH_MATMUL":
                return int(2 * size * int(self._graph.tensors[operator.inputs[0]].shape[-1]))
            case "ADD" | "MUL" | "SUB" | "DIV" | "RELU" | "RELU6" | "MAXIMUM" | "MINIMUM" | "NEG" | "EXP" | "SQRT":
                return size
            case "LOGISTIC":
                return 4 * size
            case "SOFTMAX":
                return 5 * size
            case _:
                return 0


class _Aligned(flatbuffers.Builder):
    """Aligns constants: LiteRT copies unaligned ones, and XNNPACK then leaves the operator to slower kernels."""

    def StartVector(self, elemSize: int, numElems: int, alignment: int) -> Any:  # noqa: N802, N803
        return super().StartVector(elemSize, numElems, max(alignment, 16))


def _shallow(value: Any) -> Any:
    copy = type(value)()
    copy.__dict__.update(value.__dict__)
    return copy


def random_inputs(details: list[dict[str, Any]], seed: int) -> list[np.ndarray]:
    """Inputs for a model of one operator: normally distributed floats, or integers over the full 8-bit range."""
    rng = np.random.default_rng(seed)
    values = []
    for detail in details:
        dtype, shape = np.dtype(detail["dtype"]), tuple(detail["shape"])
        if dtype.kind == "f":
            values.append(rng.standard_normal(shape).astype(dtype))
        elif dtype.itemsize <= 2:
            info = np.iinfo(dtype)
            values.append(rng.integers(info.min, info.max, shape, dtype, endpoint=True))
        else:
            values.append(rng.integers(0, 2, shape).astype(dtype))
    return values
