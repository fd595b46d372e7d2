"""ONNX Runtime sessions on an NVIDIA GPU, opening the same files as on the CPU. Times nothing.

Three places differ in the precision of their products: float32, TensorFloat-32 (10 bits of mantissa) and float16, for
which the model is converted when it is opened. Launching the kernels of a small network one by one takes longer than
computing them, so a session captures a CUDA graph for each combination of input shapes, where ONNX Runtime can.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from taglio.errors import BadModel, one_line
from taglio.runtimes import onnxruntime
from taglio.runtimes.onnxruntime import CUDA, PROVIDERS, SessionOptions

NAME = "onnxruntime-cuda"
TF32 = "onnxruntime-cuda-tf32"
F16 = "onnxruntime-cuda-f16"
PLACES = (NAME, TF32, F16)

# A graph keeps its buffers: this many combinations of input shapes are captured, others run kernel by kernel.
_MOST_SHAPES = 16
# The runs with the same shapes that are computed kernel by kernel: the first shows the shapes of the outputs, the next
# two are compared with the captured graph, which must follow inputs that change.
_CHECKED = 3
# The relative L2 distance that another order of sums explains.
_ROUNDING = 1e-3
# ONNX Runtime's key for the graph of a run; -1 is for a run without one.
_GRAPH, _NO_GRAPH = "gpu_graph_id", -1


class CudaSession:
    """A model on a device, with the interface of a session.

    `open_session` opens the model, with its argument True for a session that captures graphs. `device` is ONNX
    Runtime's name for where inputs and outputs are kept.
    """

    def __init__(self, open_session: Callable[[bool], ort.InferenceSession], device: str = "cuda") -> None:
        self._open, self._device = open_session, device
        self._lock = threading.Lock()  # a graph has one set of buffers
        self._bound: dict[tuple[object, ...], _Bound | None] = {}
        try:
            self._session, self._captures = open_session(True), True
        except BadModel:  # operators that run on the CPU, or control flow
            self._session, self._captures = open_session(False), False
        # An input that is read on the CPU, such as a size, would keep the value that it had when captured.
        read_on = [info.name.lower() for info in self._session.get_input_memory_infos()]
        if self._captures and any(location != device for location in read_on):
            self._give_up()

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs."""
        return [info.name for info in self._session.get_inputs()]

    @property
    def captures(self) -> bool:
        """Whether runs replay a captured graph."""
        return self._captures

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Values of the outputs named (None: of all) for one feed by input name."""
        if not self._captures:
            return self._plain(output_names, input_feed)
        with self._lock:
            return self._replayed(output_names, input_feed)

    def on_cpu(self) -> Counter[str]:
        """The numbers of operators by type that run on the CPU, as ONNX Runtime reports its assignment."""
        parts = self._session.get_provider_graph_assignment_info()
        return Counter(node.op_type for part in parts if part.ep_name != CUDA for node in part.get_nodes())

    def resident(self, feed: Mapping[str, np.ndarray]) -> Callable[[], None]:
        """A run whose inputs are on the device already and whose outputs stay there. Raises BadModel for a model whose
        outputs have no fixed shapes."""
        for _ in range(_CHECKED + 1):
            outputs = self.run(None, feed)
        bound = self._bound.get(_shapes(feed)) or _Bound.of(self._session, feed, outputs, self._device, _NO_GRAPH)
        if bound is None:
            raise BadModel("its outputs are not tensors of numbers")
        return bound.run

    def _plain(self, names: Sequence[str] | None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        outputs: list[np.ndarray] = self._session.run(list(names) if names else None, dict(feed), _in_graph(_NO_GRAPH))
        return outputs

    def _replayed(self, names: Sequence[str] | None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        key = _shapes(feed)
        bound = self._bound.get(key)
        if bound is not None and bound.checked == _CHECKED:
            bound.put(feed)
            bound.run()
            return bound.outputs(names)
        outputs = self._plain(None, feed)
        if key not in self._bound and len(self._bound) < _MOST_SHAPES:
            self._bound[key] = _Bound.of(self._session, feed, outputs, self._device, len(self._bound) + 1)
        elif bound is not None:
            try:
                bound.put(feed)
                bound.run()
                same = all(map(_alike, bound.outputs(None), outputs))
            except Exception:  # ONNX Runtime's exceptions share no useful base class
                same = False
            if not same:
                self._give_up()
        if bound is not None:
            bound.checked += 1
        if names is None:
            return outputs
        by_name = dict(zip((info.name for info in self._session.get_outputs()), outputs, strict=True))
        return [by_name[name] for name in names]

    def _give_up(self) -> None:
        """From now on, run kernel by kernel, in a new session: a capture that failed may leave a stream unusable."""
        self._captures = False
        self._bound.clear()
        self._session = self._open(False)


@dataclass(slots=True, eq=False)
class _Bound:
    """Inputs and outputs of one combination of shapes, kept on the device, and how a session runs on them. `checked`
    counts the runs computed kernel by kernel."""

    session: ort.InferenceSession
    binding: Any
    options: ort.RunOptions
    device_inputs: dict[str, Any]
    device_outputs: dict[str, Any]
    checked: int = 1

    @classmethod
    def of(
        cls,
        session: ort.InferenceSession,
        feed: Mapping[str, np.ndarray],
        outputs: Sequence[Any],
        device: str,
        graph: int,
    ) -> "_Bound | None":
        """Room for a feed and its outputs; None if any is not a tensor of numbers or is empty."""
        if not all(
            isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in (*feed.values(), *outputs)
        ):
            return None
        if not all(array.size for array in (*feed.values(), *outputs)):
            return None

        def room(values: Iterable[tuple[str, np.ndarray]]) -> dict[str, Any]:
            make = ort.OrtValue.ortvalue_from_shape_and_type
            return {name: make(array.shape, array.dtype.type, device, 0) for name, array in values}

        binding, options = session.io_binding(), _in_graph(graph)
        names = [info.name for info in session.get_outputs()]
        bound = cls(session, binding, options, room(feed.items()), room(zip(names, outputs, strict=True)))
        for name, value in bound.device_inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in bound.device_outputs.items():
            binding.bind_ortvalue_output(name, value)
        bound.put(feed)
        return bound

    def put(self, feed: Mapping[str, np.ndarray]) -> None:
        """Copy a feed to the device."""
        for name, value in self.device_inputs.items():
            value.update_inplace(np.ascontiguousarray(feed[name]))

    def run(self) -> None:
        """Run on the inputs that are on the device."""
        self.session.run_with_iobinding(self.binding, self.options)

    def outputs(self, names: Sequence[str] | None) -> list[np.ndarray]:
        """The outputs named (None: all), copied from the device."""
        return [np.array(self.device_outputs[name].numpy()) for name in names or self.device_outputs]


def properties(place: str) -> dict[str, str]:
    """The settings that a place fixes, by name: the provider, its option, and whether the model is made float16."""
    return {"provider": CUDA, "use_tf32": str(int(place == TF32)), "float16": str(int(place == F16))}


def offered() -> bool:
    """Whether this ONNX Runtime was built for CUDA."""
    return CUDA in ort.get_available_providers()


def refusal() -> str:
    """Why no model can be opened on a GPU here, or ""."""
    if offered():
        return ""
    return (
        "this ONNX Runtime was not built for CUDA: pip uninstall onnxruntime, then pip install "
        "'onnxruntime-gpu[cuda,cudnn]'"
    )


def open_session(path: Path, options: SessionOptions) -> CudaSession:
    """Open the model at `path` on the GPU, in the place `options.runtime`; operators that have no kernel there run on
    the CPU, with `options.threads`. Raises BadModel if ONNX Runtime refuses the model or cannot start CUDA."""
    ort.set_default_logger_severity(4)  # else it warns about plug-ins at every session
    if hasattr(ort, "preload_dlls"):  # the dynamic loader does not find CUDA and cuDNN installed as Python packages
        ort.preload_dlls()
    model = _converted(path) if options.runtime == F16 else path

    def open_(captures: bool) -> ort.InferenceSession:
        settings = (("use_tf32", properties(options.runtime)["use_tf32"]), ("enable_cuda_graph", str(int(captures))))
        on_gpu = replace(options, providers=(CUDA, *PROVIDERS), provider=settings)
        session = onnxruntime.open_session(model, on_gpu, label=path.name)
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
    written_names, unique_nodes = set[str](), []
    for node in proto.graph.node:  # ONNX Runtime 1.31 casts a constant for each of its readers, always under one name
        if not written_names.issuperset(node.output):
            unique_nodes.append(node)
        written_names.update(node.output)
    del proto.graph.node[:]
    proto.graph.node.extend(unique_nodes)
    return proto


def _in_graph(number: int) -> ort.RunOptions:
    options = ort.RunOptions()
    options.add_run_config_entry(_GRAPH, str(number))
    return options


def _shapes(feed: Mapping[str, np.ndarray]) -> tuple[object, ...]:
    return tuple((name, np.shape(value), np.asarray(value).dtype.str) for name, value in feed.items())


def _alike(replayed: np.ndarray, wanted: np.ndarray) -> bool:
    if replayed.dtype.kind != "f":
        return bool(np.array_equal(replayed, wanted))
    if not np.array_equal(np.isfinite(replayed), np.isfinite(wanted)):
        return False
    left, right = (np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0) for array in (replayed, wanted))
    return bool(np.linalg.norm(left - right) <= _ROUNDING * np.linalg.norm(right))
