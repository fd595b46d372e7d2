"""What a model that is ready to run offers, whichever runtime holds it; which runtimes there are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from taglio.errors import BadOption
from taglio.runtimes import onnxruntime, openvino
from taglio.runtimes.onnxruntime import SessionOptions


class Session(Protocol):
    """A loaded model. ONNX Runtime's own sessions are of this form."""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Values of the outputs named (None: of all) for one feed by input name."""


Open = Callable[[Path, SessionOptions], Session]


def _open_onnxruntime(path: Path, options: SessionOptions) -> Session:
    session: Session = onnxruntime.open_session(path, options, label=path.name)
    return session


def _open_openvino(place: str, path: Path, options: SessionOptions) -> Session:
    return openvino.open_session(path, replace(options, runtime=place))


# By the name of a place: a runtime, with what its float parts compute in where that is not float32.
RUNTIMES: dict[str, Open] = {
    onnxruntime.NAME: _open_onnxruntime,
    openvino.NAME: partial(_open_openvino, openvino.NAME),
    openvino.BF16: partial(_open_openvino, openvino.BF16),
    openvino.MIXED: partial(_open_openvino, openvino.MIXED),
}


def opener(runtime: str) -> Open:
    """How `runtime` opens a model. Raises BadOption for one that taglio does not know."""
    if runtime not in RUNTIMES:
        raise BadOption(f"no runtime {runtime}: choose {' or '.join(RUNTIMES)}")
    return RUNTIMES[runtime]


def package(runtime: str) -> str:
    """The package that `runtime` is of."""
    return openvino.NAME if runtime.startswith(openvino.NAME) else runtime


def runtime_version(runtime: str) -> str:
    """Version of a runtime. Raises BadOption for one that is unknown or not installed."""
    opener(runtime)
    return onnxruntime.version() if runtime == onnxruntime.NAME else openvino.version()
