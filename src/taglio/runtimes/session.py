"""The interface of a loaded model in any runtime, the table of runtimes, and export from each. Times nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from taglio import weights
from taglio.errors import BadOption, one_line
from taglio.runtimes import onnxruntime, onnxruntime_words, openvino, openvino_words
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.way import Way


class Session(Protocol):
    """A loaded model. ONNX Runtime's own sessions have this interface."""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Values of the outputs named (None: of all) for one feed by input name."""


Open = Callable[[Path, SessionOptions], Session]


def _open_onnxruntime(path: Path, options: SessionOptions) -> Session:
    session: Session = onnxruntime.open_session(path, options, label=path.name)
    return session


# Place -> how it opens a model. A place is a runtime, named as its package.
RUNTIMES: dict[str, Open] = {onnxruntime.NAME: _open_onnxruntime, openvino.NAME: openvino.open_session}


def opener(runtime: str) -> Open:
    """The function that opens a model in `runtime`. Raises BadOption for an unknown runtime."""
    if runtime not in RUNTIMES:
        raise BadOption(f"no runtime {runtime}: choose {' or '.join(RUNTIMES)}")
    return RUNTIMES[runtime]


def why_failed(error: object, limit: int = 300) -> str:
    """Why a runtime failed, on one line: without source files, signatures and checks."""
    return one_line(openvino_words.without_sources(onnxruntime_words.without_sources(error)), limit)


def in_way(package: str, settings: Mapping[str, Any], way: Way) -> dict[str, Any]:
    """The `settings` of a delivered component, under the names of its runtime's `package`, for a run in `way`."""
    if package == openvino.NAME:
        return {**settings, **openvino.streams(way.threads, way.at_once)}
    return {**settings, **onnxruntime.in_way(way, settings["config_entries"])}


def runtime_version(runtime: str) -> str:
    """The version of a runtime. Raises BadOption if it is unknown or not installed."""
    opener(runtime)
    return openvino.version() if runtime == openvino.NAME else onnxruntime.version()


@dataclass(frozen=True, slots=True)
class Exported:
    """A model as anybody opens it without taglio: the Python package of the runtime, the model's file, all files, and
    the settings, under the runtime's own names, for the file `settings_file`."""

    package: str
    model: Path
    files: tuple[Path, ...]
    settings_file: str
    settings: dict[str, Any]


def export(path: Path, folder: Path, options: SessionOptions) -> Exported:
    """Write the model at `path` to `folder` in the format that the runtime of `options.runtime` opens fastest.

    Raises BadModel for a model that the runtime refuses.
    """
    if options.runtime == onnxruntime.NAME:
        data = path.with_name(f"{path.name}.data")
        copies = [folder / file.name for file in (path, data) if file.exists()]
        for copy in copies:
            weights.link(path.with_name(copy.name), copy)
        return Exported("onnxruntime", copies[0], tuple(copies), "session.json", onnxruntime.settings(options))
    files, settings = openvino.export(path, folder, path.stem, options)
    return Exported("openvino", files[0], files, "properties.json", settings)
