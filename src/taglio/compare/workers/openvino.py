"""OpenVINO on the rows' ONNX files, and what its compiled graph runs."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from taglio.compare.request import Request
from taglio.compare.row import WantedRow
from taglio.compare.workers.contract import Array, Opened, Refused, file_bytes
from taglio.runtimes.openvino_fusions import read_fused
from taglio.runtimes.openvino_parts import parts_of
from taglio.runtimes.openvino_words import complaint

_HINTS = {"bfloat16": "bf16", "float16": "f16"}
_INT8 = frozenset({"i8", "u8"})
# Parts of a compiled graph that hold or move values.
_STILL = frozenset(
    {"Input", "Output", "Const", "Constant", "Convert", "Parameter", "Result", "Reorder", "FakeQuantize", "Reference"}
)


class OpenVino:
    """Compiled models on the CPU device."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._core = ov.Core()

    def open(self, wanted: WantedRow) -> Opened:
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

    def _compile(self, path: Path, hint: str) -> Any:
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": self._request.threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": hint,
        }
        return self._core.compile_model(read_fused(self._core, str(path)), "CPU", options)


make = OpenVino
