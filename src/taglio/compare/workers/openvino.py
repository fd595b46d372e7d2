"""OpenVINO on the rows' ONNX files: what its compiled graph runs, and how long each part takes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import openvino as ov

from taglio.compare.request import Request
from taglio.compare.row import Layer, Wanted
from taglio.compare.workers.contract import Array, Data, Opened, Refused, file_bytes
from taglio.runtimes.openvino_fusions import read_fused
from taglio.runtimes.openvino_parts import parts_of
from taglio.runtimes.openvino_words import complaint

_HINTS = {"bfloat16": "bf16", "float16": "f16"}
_INT8 = frozenset({"i8", "u8"})
# Parts of a compiled graph that hold or move values.
_STILL = frozenset(
    {"Input", "Output", "Const", "Constant", "Convert", "Parameter", "Result", "Reorder", "FakeQuantize", "Reference"}
)
_RUNS = 10
_LAYER_FORM = "qdq-u8s8-sym-pc"
_CONVERSIONS = "(between layers)"


class OpenVino:
    """Compiled models on the CPU device."""

    def __init__(self, request: Request, data: Data) -> None:
        self._request, self._data = request, data
        self._core = ov.Core()

    def open(self, wanted: Wanted) -> Opened:
        """Compile `wanted.file`; the float parts of an int8 model compute in float32 unless the engine says bf16."""
        hint = _HINTS.get(wanted.method, "bf16" if wanted.engine.endswith("bf16") else "f32")
        try:
            compiled = self._compile(Path(wanted.file), hint)
        except RuntimeError as error:
            if message := complaint(error):
                raise Refused(message, "failed") from error
            raise
        request = compiled.create_infer_request()

        def run(sample: Sequence[Array]) -> list[Array]:
            results = request.infer(list(sample), share_inputs=True, share_outputs=True)
            return [results[port] for port in compiled.outputs]

        parts = [part for part in parts_of(compiled) if part.kind not in _STILL]
        counts = Counter(part.kind for part in parts)
        int8 = Counter(part.kind for part in parts if part.precision in _INT8)
        notes = []
        if hint != "f32" and not any(part.precision == hint for part in parts):
            ran = ", ".join(
                f"{count} in {precision}" for precision, count in Counter(part.precision for part in parts).items()
            )
            notes.append(f"{hint} was requested, but no part of the compiled graph uses it: {ran}")
        return Opened(run, file_bytes(Path(wanted.file)), dict(counts), dict(int8), tuple(notes), wanted.file)

    def layers(self) -> Iterator[Layer]:
        """The times of the ONNX form's blocks, float and int8: of the compiled parts that carry their operators' names.
        Their errors are those of the same files in ONNX Runtime."""
        float_file = next((row.file for row in self._request.rows if row.baseline), self._request.onnx)
        int8_file = next((row.file for row in self._request.rows if row.id == f"openvino/{_LAYER_FORM}"), "")
        if not int8_file:
            raise Refused(f"the form {_LAYER_FORM}, whose parts would be timed, could not be written")
        in_float, in_int8 = self._seconds(Path(float_file)), self._seconds(Path(int8_file))
        for name in dict.fromkeys((*self._request.owners.values(), _CONVERSIONS)):
            float_s, int8_s = in_float.get(name), in_int8.get(name)
            note = "in int8 compiled into a neighbour" if int8_s is None else ""
            note = "compiled into a neighbour" if float_s is None else note
            yield Layer("openvino", name, "", None, None, None, float_s, int8_s, None, note)

    def _compile(self, path: Path, hint: str, *, counters: bool = False) -> Any:
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": self._request.threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": hint,
            "PERF_COUNT": counters,
        }
        return self._core.compile_model(read_fused(self._core, str(path)), "CPU", options)

    def _seconds(self, path: Path) -> dict[str, float]:
        """Median seconds of each block's compiled parts; parts without an operator's name count as conversion."""
        compiled = self._compile(path, "f32", counters=True)
        owner = self._request.owners
        originals = {part.name: part.originals for part in parts_of(compiled)}
        request = compiled.create_infer_request()
        runs: list[dict[str, float]] = []
        for index in range(_RUNS + 1):
            request.infer(list(self._data.held_out[0]))
            if index == 0:
                continue
            seconds_of: dict[str, float] = {}
            for info in request.profiling_info:
                names = [owner[name] for name in originals.get(info.node_name, ()) if name in owner]
                still = info.node_type in _STILL
                key = names[0] if names and not still else _CONVERSIONS
                seconds_of[key] = seconds_of.get(key, 0.0) + info.real_time.total_seconds()
            runs.append(seconds_of)
        return {name: median(run.get(name, 0.0) for run in runs) for name in runs[0]}


make = OpenVino
