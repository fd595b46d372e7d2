"""OpenVINO sessions on the CPU, opening the same files as ONNX Runtime. Times nothing.

OpenVINO is an optional extra, imported when a session is opened. Float parts compute in float32, as in ONNX Runtime, or
in bfloat16 where a note in the file says so (openvino_marks.py); OpenVINO's own default depends on the processor.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np

from taglio.errors import BadModel, TaglioError, one_line
from taglio.optional import optional
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.openvino_fusions import read_fused
from taglio.runtimes.openvino_marks import MarkedModel, noted_float32
from taglio.runtimes.openvino_parts import CompiledPart, parts_of
from taglio.runtimes.openvino_words import complaint, without_sources
from taglio.scratch import scratch

NAME = "openvino"
_ONE_CORE = Lock()


class OpenVinoSession:
    """A compiled model with the interface of a session. Runs from several threads take turns if they are more than
    `at_once`."""

    def __init__(self, compiled: Any, at_once: int = 1) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._free: SimpleQueue[Any] = SimpleQueue()
        for request in [self._request, *(compiled.create_infer_request() for _ in range(at_once - 1))]:
            self._free.put(request)
        self._positions = {name: index for index, port in enumerate(compiled.outputs) for name in port.get_names()}

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Values of the outputs named (None: of all) for one feed by input name."""
        request = self._free.get()
        try:
            values = request.infer(dict(input_feed), share_inputs=True).to_tuple()  # copies, not views
        finally:
            self._free.put(request)
        return list(values) if output_names is None else [values[self._positions[name]] for name in output_names]

    def parts(self) -> list[CompiledPart]:
        """The nodes of the compiled graph, in execution order."""
        return parts_of(self._compiled)

    def seconds(self) -> dict[str, float]:
        """Seconds of the last run by part, if the session counts."""
        return {info.node_name: info.real_time.total_seconds() for info in self._request.profiling_info}


def version() -> str:
    """OpenVINO's version string. Raises BadOption if it is not installed."""
    return str(_openvino().__version__).partition("-")[0]


def open_session(path: Path, options: SessionOptions, *, counters: bool = False) -> OpenVinoSession:
    """Compile the model at `path` for the CPU with `options.threads`; with `counters`, runs are timed part by part.

    OpenVINO has no optimisation levels and does not spin: those options do not apply. Raises BadOption if OpenVINO is
    not installed, BadModel if it refuses the model.
    """
    with _complaining(path), scratch() as folder:
        model = _read(path, folder)
        applied: dict[str, Any] = _settings(model, options) | {"PERF_COUNT": counters}
        if options.kernel_cache is not None:  # a property that OpenVINO sets and does not list
            applied["CPU_RUNTIME_CACHE_CAPACITY"] = options.kernel_cache
        return OpenVinoSession(_core().compile_model(model, "CPU", applied), options.at_once)


def export(path: Path, folder: Path, name: str, options: SessionOptions) -> tuple[tuple[Path, Path], dict[str, Any]]:
    """Write the model at `path` to `folder` in OpenVINO's format, as `open_session` reads it: NAME.xml and NAME.bin.
    Returns them, and the properties with which anybody gets the same answers at the same speed, as compiled models
    report them. Weights keep their types; a model that mixes precisions keeps its marks. Raises as `open_session`."""
    files = folder / f"{name}.xml", folder / f"{name}.bin"
    with _complaining(path), scratch() as temporary:
        model = _read(path, temporary)
        _openvino().serialize(model, *map(str, files))
    return files, _settings(model, options)


def export_float32(path: Path, folder: Path, name: str) -> tuple[Path, Path]:
    """Write the model at `path` to `folder` with the mark on every layer that keeps it in float32 whatever precision it
    is opened with: NAME.xml and NAME.bin. openvino_marks.unkept says where that fails. Raises as `open_session`."""
    files = folder / f"{name}.xml", folder / f"{name}.bin"
    with _complaining(path), scratch() as temporary:
        _openvino().serialize(MarkedModel(_core(), path, temporary).read(), *map(str, files))
    return files


def read_ir(path: Path) -> Any:
    """The openvino.Model of a file in OpenVINO's format. Raises BadModel if OpenVINO refuses it."""
    with _complaining(path):
        return _core().read_model(path)


def _settings(model: Any, options: SessionOptions) -> dict[str, Any]:
    """The properties with which an openvino.Model is compiled."""
    precision = "f32" if noted_float32(model) is None else "bf16"
    return {"INFERENCE_PRECISION_HINT": precision} | streams(options.threads, options.at_once)


def streams(threads: int, at_once: int) -> dict[str, str]:
    """The properties for runs of `threads` threads, `at_once` at a time: a stream for each run, and the number of
    threads of all streams together."""
    hint = "LATENCY" if at_once == 1 else "THROUGHPUT"
    return {
        "PERFORMANCE_HINT": hint,
        "NUM_STREAMS": str(at_once),
        "INFERENCE_NUM_THREADS": str(threads * at_once),
    }


def _read(path: Path, folder: Path) -> Any:
    """The openvino.Model of the file at `path` in the precisions of its note; `folder` takes temporary files."""
    model = read_fused(_core(), str(path))
    float32 = noted_float32(model)
    return MarkedModel(_core(), path, folder).read(float32) if float32 else model


@contextmanager
def _complaining(path: Path) -> Iterator[None]:
    """Turn OpenVINO's errors about a model into a BadModel of one line."""
    try:
        yield
    except TaglioError:
        raise
    except Exception as error:  # OpenVINO raises bare RuntimeErrors from C++
        complained = complaint(error) or f"OpenVINO cannot load it: {one_line(without_sources(error), 500)}"
        raise BadModel(f"{path.name}: {complained}") from None


def capabilities() -> list[str]:
    """The number types that OpenVINO reports for this processor, such as FP32, BF16, INT8."""
    return [str(capability) for capability in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")]


def _core() -> Any:
    """The openvino.Core of this process, whichever thread asks first."""
    with _ONE_CORE:
        return _made_core()


@cache
def _made_core() -> Any:
    """The only openvino.Core of this process. On processors with AMX each brings a stack for signal handlers. If two
    end in the order in which they began, the last restores the first one's, which is gone: the next signal, such as
    Ctrl-C, then crashes the process.

    The first array that OpenVINO is given initialises its bindings. Two threads that do so at once wait for each other
    for ever (OpenVINO 2026.4), so it is given one here.
    """
    package = _openvino()
    package.Tensor(np.zeros(1, np.float32))
    return package.Core()


def _openvino() -> Any:
    return optional("openvino", "OpenVINO is not installed here: pip install 'taglio[openvino]'")
