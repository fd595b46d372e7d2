"""OpenVINO sessions on the CPU, opening the same files as ONNX Runtime. Times nothing.

OpenVINO is an optional extra, imported when a session is opened. Float parts compute in float32, as in ONNX Runtime, or
in bfloat16 if the options name that place; OpenVINO's own default depends on the processor.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from taglio.errors import BadModel
from taglio.optional import optional
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.openvino_fusions import read_fused
from taglio.runtimes.openvino_marks import MarkedModel
from taglio.runtimes.openvino_parts import Part, parts_of
from taglio.runtimes.openvino_words import complaint, without_sources
from taglio.scratch import scratch

NAME = "openvino"
BF16 = "openvino-bf16"
# Some float parts compute in bfloat16, the others in float32.
MIXED = "openvino-mixed"


class OpenVinoSession:
    """A compiled model with the interface of a session."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._ports = {name: port for port in compiled.outputs for name in port.get_names()}
        self._order = list(compiled.outputs)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Values of the outputs named (None: of all) for one feed by input name."""
        results = self._request.infer(dict(input_feed), share_inputs=True)
        ports = self._order if output_names is None else [self._ports[name] for name in output_names]
        return [np.array(results[port]) for port in ports]

    @property
    def precision(self) -> str:
        """The precision of float parts as the compiled model reports it: f32, bf16 or f16. It may differ from the
        hint."""
        return str(self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())

    def parts(self) -> list[Part]:
        """The nodes of the compiled graph, in execution order."""
        return parts_of(self._compiled)

    def seconds(self) -> dict[str, float]:
        """What the last run took, by part, where the session counts."""
        return {each.node_name: each.real_time.total_seconds() for each in self._request.profiling_info}


def version() -> str:
    """OpenVINO's version string. Raises BadOption if it is not installed."""
    return str(_openvino().__version__).partition("-")[0]


def open_session(path: Path, options: SessionOptions, *, counters: bool = False) -> OpenVinoSession:
    """Compile the model at `path` for the CPU with `options.threads`; with `counters`, runs are timed part by part. In
    the place MIXED only the tensors `options.bfloat16` are computed in bfloat16.

    OpenVINO has no optimisation levels and does not spin: those options do not apply. Raises BadOption if OpenVINO is
    not installed, BadModel if it refuses the model.
    """
    _openvino()
    try:
        if options.runtime != MIXED:
            return compiled(str(path), options, counters=counters)
        with scratch() as folder:
            return compiled(marked(path, folder).read(options.bfloat16), options, counters=counters)
    except Exception as error:  # OpenVINO raises bare RuntimeErrors from C++
        said = complaint(error) or f"OpenVINO cannot load it: {without_sources(error)[-500:]}"
        raise BadModel(f"{path.name}: {said}") from None


def marked(path: Path, folder: Path) -> MarkedModel:
    """The model at `path` in OpenVINO's format, written to `folder`, to be read with any tensors in bfloat16."""
    return MarkedModel(_core(), path, folder)


def compiled(model: Any, options: SessionOptions, *, counters: bool = False) -> OpenVinoSession:
    """A session of an openvino.Model, or of the file at a path, in the place `options.runtime`."""
    settings = properties(options.runtime) | {"INFERENCE_NUM_THREADS": options.threads, "PERF_COUNT": counters}
    model = read_fused(_core(), model) if isinstance(model, str) else model
    return OpenVinoSession(_core().compile_model(model, "CPU", settings))


def properties(place: str) -> dict[str, str]:
    """The OpenVINO properties that a place fixes, by name. The caller adds the threads."""
    precision = "bf16" if place in (BF16, MIXED) else "f32"
    return {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": precision}


def capabilities() -> list[str]:
    """The number types that OpenVINO reports for this processor, such as FP32, BF16, INT8."""
    return [str(each) for each in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")]


@cache
def _core() -> Any:
    """The only openvino.Core of this process. On processors with AMX each brings a stack for signal handlers. If two
    end in the order in which they began, the last restores the first one's, which is gone: the next signal, such as
    Ctrl-C, then crashes the process."""
    return _openvino().Core()


def _openvino() -> Any:
    return optional("openvino", "OpenVINO is not installed here: pip install 'taglio[openvino]'")
