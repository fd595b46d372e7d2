"""Read a .tflite file: its operators, their tensors and operation counts; extract single operators as models.

Uses LiteRT's own flatbuffer schema. The Python package has no profile per operator, so an operator is timed as a model
of one operator.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_BYTES = {
    schema.TensorType.FLOAT32: 4, schema.TensorType.FLOAT16: 2, schema.TensorType.INT8: 1, schema.TensorType.UINT8: 1,
    schema.TensorType.INT16: 2, schema.TensorType.INT32: 4, schema.TensorType.INT64: 8, schema.TensorType.BOOL: 1,
}  # fmt: skip
_NAMES = {value: name for name, value in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
_TYPES = {value: name.lower() for name, value in vars(schema.TensorType).items() if not name.startswith("_")}


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
        self._model: Any = schema.ModelT.InitFromPackedBuf(data, 0)
        self._graph: Any = self._model.subgraphs[0]
        for buffer in self._model.buffers:  # ai-edge-quantizer stores large constants after the flatbuffer
            if buffer.offset > 1:
                buffer.data = np.frombuffer(data, np.uint8, buffer.size, buffer.offset)
                buffer.offset = buffer.size = 0

    def operators(self) -> list[Operator]:
        """The operators in execution order."""
        found = []
        for index, operator in enumerate(self._graph.operators):
            output = self._graph.tensors[operator.outputs[0]]
            inputs = [self._graph.tensors[each] for each in operator.inputs if each >= 0]
            shape = tuple(int(size) for size in (output.shape if output.shape is not None else ()))
            found.append(
                Operator(
                    index,
                    output.name.decode(),
                    self._kind(operator),
                    tuple(_TYPES.get(tensor.type, "?") for tensor in inputs),
                    prod(shape) * _BYTES.get(output.type, 4),
                    self._flops(operator, shape),
                )
            )
        return found

    def alone(self, index: int) -> bytes:
        """A model of operator `index` alone: its constants stay, its other inputs become the model's inputs."""
        source = self._graph.operators[index]
        model, graph = schema.ModelT(), schema.SubGraphT()
        model.version, model.description = self._model.version, "taglio"
        code = self._model.operatorCodes[source.opcodeIndex]
        empty = schema.BufferT()
        model.operatorCodes, model.buffers, model.subgraphs = [code], [empty], [graph]
        graph.tensors, graph.inputs, graph.outputs, graph.name = [], [], [], b"main"
        places: dict[int, int] = {}
        for tensor in dict.fromkeys([*source.inputs, *source.outputs]):
            if tensor < 0:
                continue
            copy = _shallow(self._graph.tensors[tensor])
            buffer = self._model.buffers[copy.buffer]
            constant = buffer.data is not None and len(buffer.data) > 0
            if constant:
                model.buffers.append(buffer)
            copy.buffer = len(model.buffers) - 1 if constant else 0
            places[int(tensor)] = len(graph.tensors)
            if tensor in source.outputs:
                graph.outputs.append(places[int(tensor)])
            elif not constant:
                graph.inputs.append(places[int(tensor)])
            graph.tensors.append(copy)
        operator = _shallow(source)
        operator.opcodeIndex = 0
        operator.inputs = [places.get(int(each), -1) for each in source.inputs]
        operator.outputs = [places[int(each)] for each in source.outputs]
        graph.operators = [operator]
        builder = _Aligned(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _kind(self, operator: Any) -> str:
        code = self._model.operatorCodes[operator.opcodeIndex]
        return str(_NAMES.get(max(code.builtinCode, code.deprecatedBuiltinCode), "?"))

    def _flops(self, operator: Any, shape: tuple[int, ...]) -> int:
        """Operations, counted as in `taglio.model.flops`: two per multiply-add, one per bias or elementwise result."""
        kind, size = self._kind(operator), prod(shape)
        second = self._graph.tensors[operator.inputs[1]].shape if len(operator.inputs) > 1 else None
        weight: list[int] = [] if second is None else list(second)
        bias = int(len(operator.inputs) > 2 and operator.inputs[2] >= 0)
        match kind:
            case "CONV_2D" | "FULLY_CONNECTED":
                return int(size * (2 * prod(int(each) for each in weight[1:]) + bias))
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
