"""OpenVINO on the CPU as a runtime for components: the same files, another engine. Does not time anything.

OpenVINO is an extra and is loaded when a session is opened. Its float parts compute in float32, as ONNX Runtime's do,
where it would by itself choose bfloat16 on processors that have it.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taglio.errors import BadModel, BadOption
from taglio.runtimes.onnxruntime import SessionOptions

NAME = "openvino"


class OpenVinoSession:
    """A compiled model behind the calls of a session."""

    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()
        self._ports = {name: port for port in compiled.outputs for name in port.get_names()}
        self._order = list(compiled.outputs)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Values of the outputs named (None: of all) for one feed by input name."""
        results = self._request.infer(dict(input_feed), share_inputs=True)
        ports = self._order if output_names is None else [self._ports[name] for name in output_names]
        return [np.array(results[port]) for port in ports]


def open_session(path: Path, options: SessionOptions) -> OpenVinoSession:
    """Compile the model at `path` for the CPU with `options.threads`.

    OpenVINO has no optimisation levels and does not spin: those options do not apply. Raises BadOption where OpenVINO
    is not installed, BadModel where it refuses the model.
    """
    try:
        openvino = importlib.import_module("openvino")
    except ImportError:
        raise BadOption("runtime openvino is not installed here: pip install 'taglio[openvino]'") from None
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": options.threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    try:
        return OpenVinoSession(openvino.Core().compile_model(str(path), "CPU", settings))
    except Exception as error:  # OpenVINO raises bare RuntimeErrors from C++
        text = " ".join(str(error).split())
        raise BadModel(f"{path.name}: OpenVINO cannot load it: {text[-500:]}") from None
