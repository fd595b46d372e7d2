"""ONNX Runtime sessions on an NVIDIA GPU, opening the same files as on the CPU. Times nothing.

Three places differ in the precision of their products: float32, TensorFloat-32 (10 bits of mantissa) and float16, for
which the model is converted when it is opened. Launching the kernels of a small network one by one takes longer than
computing them, so a session captures a CUDA graph for each combination of input shapes, where ONNX Runtime can.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from taglio.errors import BadModel, one_line
from taglio.runtimes import onnxruntime
from taglio.runtimes.onnxruntime import CUDA, SessionOptions

NAME = "onnxruntime-cuda"
TF32 = "onnxruntime-cuda-tf32"
F16 = "onnxruntime-cuda-f16"
PLACES = (NAME, TF32, F16)

Feed = Mapping[str, np.ndarray]
Run = Callable[[Sequence[str] | None, Feed], list[np.ndarray]]

# A graph keeps its buffers: this many combinations of input shapes are captured, others run kernel by kernel.
_MOST_SHAPES = 16
# ONNX Runtime's key for the graph of a run; -1 is for a run without one.
_GRAPH, _NO_GRAPH = "gpu_graph_id", -1


class CudaSession:
    """A model on a device, with the interface of a session.

    `open_session` opens the model, with its argument True for a session that captures graphs. `device` is ONNX
    Runtime's name for where inputs and outputs are kept. `captures` says whether runs replay captured graphs.
    """

    def __init__(self, open_session: Callable[[bool], ort.InferenceSession], device: str = "cuda") -> None:
        self._open, self._device = open_session, device
        self._lock = threading.Lock()  # a graph has one set of buffers
        # Runs of the graph for a combination of shapes, on inputs and outputs that stay on the device.
        self._replays: dict[tuple[object, ...], Run | None] = {}
        try:
            self._session = open_session(True)
            # An input that is read on the CPU, such as a size, would keep the value that it had when captured.
            self.captures = all(info.name.lower() == device for info in self._session.get_input_memory_infos())
        except BadModel:  # operators that run on the CPU, or control flow
            self.captures = False
        if not self.captures:
            self._give_up()

    def run(self, output_names: Sequence[str] | None, input_feed: Feed) -> list[np.ndarray]:
        """Values of the outputs named (None: of all) for one feed by input name."""
        with self._lock:
            replay = self._replay(input_feed) if self.captures else None
            try:
                if replay is not None:
                    return replay(output_names, input_feed)
            except Exception:  # ONNX Runtime's exceptions share no useful base class
                self._give_up()
        return self._plain(output_names, input_feed)

    def _plain(self, names: Sequence[str] | None, feed: Feed) -> list[np.ndarray]:
        outputs: list[np.ndarray] = self._session.run(list(names) if names else None, dict(feed), _in_graph(_NO_GRAPH))
        return outputs

    def _replay(self, feed: Feed) -> Run | None:
        """What runs the graph for the shapes of `feed`, and captures it in its first run; None if there is none: beyond
        _MOST_SHAPES, or for what is empty or no tensor of numbers."""
        key = tuple((name, np.shape(value), np.asarray(value).dtype.str) for name, value in feed.items())
        if key not in self._replays and len(self._replays) < _MOST_SHAPES:
            outputs = self._plain(None, feed)
            arrays: list[Any] = [*feed.values(), *outputs]
            fits = all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" and array.size for array in arrays)
            self._replays[key] = self._bound(feed, outputs) if fits else None
        return self._replays.get(key)

    def _bound(self, feed: Feed, outputs: Sequence[np.ndarray]) -> Run:
        """What runs one graph, whose inputs and outputs have the shapes of these."""
        session, binding, options = self._session, self._session.io_binding(), _in_graph(1 + len(self._replays))

        def there(array: np.ndarray) -> Any:
            return ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type, self._device, 0)

        read = {name: there(array) for name, array in feed.items()}
        written = {info.name: there(array) for info, array in zip(session.get_outputs(), outputs, strict=True)}
        for name, value in read.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in written.items():
            binding.bind_ortvalue_output(name, value)

        def replay(names: Sequence[str] | None, feed: Feed) -> list[np.ndarray]:
            for name, value in read.items():
                value.update_inplace(np.ascontiguousarray(feed[name]))
            session.run_with_iobinding(binding, options)
            return [np.array(written[name].numpy()) for name in names or written]

        return replay

    def _give_up(self) -> None:
        """From now on, run kernel by kernel, in a new session: a capture that failed may leave a stream unusable."""
        self.captures = False
        self._replays.clear()
        self._session = self._open(False)


def refusal() -> str:
    """Why no model can be opened on a GPU here, or ""."""
    if CUDA in ort.get_available_providers():
        return ""
    return (
        "this ONNX Runtime was not built for CUDA: pip uninstall onnxruntime, then pip install "
        "'onnxruntime-gpu[cuda,cudnn]'"
    )


def open_session(path: Path, options: SessionOptions) -> CudaSession:
    """Open the model at `path` on the GPU, in the place `options.runtime`; operators that have no kernel there run on
    the CPU, with `options.threads`. Raises BadModel if ONNX Runtime refuses the model or cannot start CUDA."""
    ort.set_default_logger_severity(4)  # else it warns about plug-ins at every session
    ort.preload_dlls()  # the dynamic loader does not find CUDA and cuDNN installed as Python packages
    model = _converted(path) if options.runtime == F16 else path

    def open_(captures: bool) -> ort.InferenceSession:
        settings = (("use_tf32", str(int(options.runtime == TF32))), ("enable_cuda_graph", str(int(captures))))
        session = onnxruntime.open_session(model, replace(options, cuda=settings), label=path.name)
        if session.get_providers()[0] != CUDA:
            raise BadModel(f"{path.name}: ONNX Runtime could not start CUDA here: check the GPU, its driver and cuDNN")
        return session

    return CudaSession(open_)


def _converted(path: Path) -> onnx.ModelProto:
    """The model in float16, with inputs and outputs as before."""
    converter = import_module("onnxruntime.transformers.float16")  # slow to import
    try:
        proto: onnx.ModelProto = converter.convert_float_to_float16(onnx.load(path), keep_io_types=True)
    except Exception as error:  # the converter fails in many ways
        raise BadModel(f"{path.name}: cannot be converted to float16: {one_line(error, 200)}") from None
    return proto


def _in_graph(number: int) -> ort.RunOptions:
    options = ort.RunOptions()
    options.add_run_config_entry(_GRAPH, str(number))
    return options
