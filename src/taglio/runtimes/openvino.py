"""OpenVINO on the CPU as a runtime for components: the same files, another engine. Does not time anything.

OpenVINO is an extra and is loaded when a session is opened. Its float parts compute in float32, as ONNX Runtime's do,
or in bfloat16 where the options name that place; which of them it would choose by itself depends on the processor.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taglio.errors import BadModel, BadOption
from taglio.runtimes.onnxruntime import SessionOptions

NAME = "openvino"
BF16 = "openvino-bf16"
_HINTS = {NAME: "f32", BF16: "bf16"}


@dataclass(frozen=True, slots=True)
class Part:
    """One node of a compiled graph: its kind, the names of the model's operators that it was made of, and the part
    that its first input comes from (empty: none)."""

    name: str
    kind: str
    originals: tuple[str, ...]
    source: str


class OpenVinoSession:
    """A compiled model behind the calls of a session."""

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
        """What float parts compute in, as the compiled model says it: f32, bf16 or f16. A hint is no promise."""
        return str(self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())

    def parts(self) -> list[Part]:
        """The compiled graph."""
        return [_part(node) for node in self._compiled.get_runtime_model().get_ordered_ops()]

    def seconds(self) -> dict[str, float]:
        """What the last run took, by part, where the session counts."""
        return {each.node_name: each.real_time.total_seconds() for each in self._request.profiling_info}


def version() -> str:
    """OpenVINO's version string. Raises BadOption where it is not installed."""
    return str(_openvino().__version__).partition("-")[0]


def open_session(path: Path, options: SessionOptions, *, counters: bool = False) -> OpenVinoSession:
    """Compile the model at `path` for the CPU with `options.threads`; with `counters` runs are timed part by part.

    OpenVINO has no optimisation levels and does not spin: those options do not apply. Raises BadOption where OpenVINO
    is not installed, BadModel where it refuses the model.
    """
    openvino = _openvino()
    settings = {
        **properties(options.runtime),
        "INFERENCE_NUM_THREADS": options.threads,
        "PERF_COUNT": counters,
    }
    try:
        return OpenVinoSession(openvino.Core().compile_model(str(path), "CPU", settings))
    except Exception as error:  # OpenVINO raises bare RuntimeErrors from C++
        text = " ".join(str(error).split())
        raise BadModel(f"{path.name}: OpenVINO cannot load it: {text[-500:]}") from None


def properties(place: str) -> dict[str, str]:
    """OpenVINO's own names and values for what a place fixes; threads are the caller's."""
    return {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": _HINTS.get(place, "f32")}


def capabilities() -> list[str]:
    """What OpenVINO says that this processor computes in, such as FP32, BF16, INT8."""
    return [str(each) for each in _openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")]


def _openvino() -> Any:
    try:
        return importlib.import_module("openvino")
    except ImportError:
        raise BadOption("OpenVINO is not installed here: pip install 'taglio[openvino]'") from None


def _part(node: Any) -> Part:
    info, inputs = node.get_rt_info(), node.inputs()
    source = inputs[0].get_source_output().get_node().get_friendly_name() if inputs else ""
    originals = tuple(name for name in _text(info, "originalLayersNames").split(",") if name)
    return Part(str(node.get_friendly_name()), _text(info, "layerType"), originals, str(source))


def _text(info: Any, key: str) -> str:
    return str(info[key].astype(str)) if key in info else ""
