"""LiteRT: its interpreter with XNNPACK, and its CompiledModel."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.compiled_model import CompiledModel, HardwareAccelerator
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from taglio.compare.request import Request
from taglio.compare.row import WantedRow
from taglio.compare.workers.binding import arrange
from taglio.compare.workers.contract import Array, Opened, Run
from taglio.compare.workers.tflite_forms import TfliteFiles
from taglio.errors import plural

_CONVERSIONS = frozenset({"QUANTIZE", "DEQUANTIZE", "CAST", "DENSIFY"})


class LiteRt:
    """Interpreters for the forms of one model."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._forms = TfliteFiles(request)

    def open(self, wanted: WantedRow) -> Opened:
        """The row's file, opened in an interpreter."""
        path = self._forms.path(wanted)
        counts, int8 = _operators(self._interpreter(path, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES))
        notes: tuple[str, ...] = ()
        if wanted.engine == "CompiledModel CPU":
            run = self._compiled(path)
        else:
            interpreter = self._interpreter(path, OpResolverType.AUTO)
            parts = sum(detail["op_name"] == "DELEGATE" for detail in interpreter._get_ops_details())  # noqa: SLF001
            notes = (f"XNNPACK took the graph in {plural(parts, 'part')}",) if parts else ()
            run = self._runner(interpreter)
        return Opened(run, path.stat().st_size, dict(counts), dict(int8), notes, str(path))

    def _interpreter(self, path: Path, kernels: OpResolverType) -> Any:
        interpreter = Interpreter(str(path), num_threads=self._request.threads, experimental_op_resolver_type=kernels)
        interpreter.allocate_tensors()
        return interpreter

    def _runner(self, interpreter: Any) -> Run:
        """A function that feeds a sample, quantising int8 inputs and dequantising int8 outputs: both are timed, because
        the caller pays for them."""
        inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
        moves = arrange(self._request.held_out[0], _shapes(inputs))

        def run(sample: Sequence[Array]) -> list[Array]:
            for detail, array, axes in zip(inputs, sample, moves, strict=True):
                interpreter.set_tensor(detail["index"], _stored(array.transpose(axes), detail))
            interpreter.invoke()
            return [_real(interpreter.get_tensor(detail["index"]), detail) for detail in outputs]

        return run

    def _compiled(self, path: Path) -> Run:
        """LiteRT's newer interface, on the CPU."""
        model = CompiledModel.from_file(str(path), hardware_accel=HardwareAccelerator.CPU)
        inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
        interpreter = self._interpreter(path, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
        details, shapes = interpreter.get_output_details(), _shapes(interpreter.get_input_details())
        moves = arrange(self._request.held_out[0], shapes)

        def run(sample: Sequence[Array]) -> list[Array]:
            for buffer, array, axes in zip(inputs, sample, moves, strict=True):
                buffer.write(np.ascontiguousarray(array.transpose(axes)))
            model.run_by_index(0, inputs, outputs)
            return [
                np.asarray(buffer.read(int(np.prod(detail["shape"])), detail["dtype"])).reshape(detail["shape"])
                for buffer, detail in zip(outputs, details, strict=True)
            ]

        return run


def _shapes(details: Sequence[dict[str, Any]]) -> list[tuple[int, ...]]:
    return [tuple(detail["shape"]) for detail in details]


def _operators(interpreter: Any) -> tuple[Counter[str], Counter[str]]:
    """Counts by kind of the operators that compute, and of those that read int8 weights or activations; of an
    interpreter without delegates, which would hide the operators that they take."""
    dtypes = {detail["index"]: detail["dtype"] for detail in interpreter.get_tensor_details()}
    counts, int8 = Counter[str](), Counter[str]()
    for operator in interpreter._get_ops_details():  # noqa: SLF001
        kind = operator["op_name"]
        if kind not in _CONVERSIONS:
            counts[kind] += 1
            int8[kind] += any(dtypes[index] in (np.int8, np.uint8) for index in operator["inputs"] if index >= 0)
    return counts, +int8


def _stored(array: Array, detail: dict[str, Any]) -> Array:
    dtype = np.dtype(detail["dtype"])
    scale, zero_point = detail["quantization"]
    if dtype == array.dtype or dtype.kind == "f" or not scale:
        return array.astype(dtype, copy=False)
    info = np.iinfo(dtype)
    stored: Array = np.clip(np.rint(array / scale) + zero_point, info.min, info.max).astype(dtype)
    return stored


def _real(array: Array, detail: dict[str, Any]) -> Array:
    scale, zero_point = detail["quantization"]
    if array.dtype.kind == "f" or not scale:
        return array
    real: Array = (array.astype(np.float32) - np.float32(zero_point)) * np.float32(scale)
    return real


make = LiteRt
