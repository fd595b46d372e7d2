"""Keras with TensorFlow: ways to call a model, operations and seconds per layer; converts Keras or TFLite to ONNX."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import tensorflow as tf
import tf2onnx
from tensorflow.python.profiler import model_analyzer, option_builder

from taglio.compare.request import KINDS, Request
from taglio.compare.row import Layer, Wanted
from taglio.compare.workers.contract import Array, Data, Opened, Refused, Run, median_s, one, reference
from taglio.compare.workers.keras_file import load_keras

OPSET = 17
_RUNS = 10
_NEEDS = "Keras rows start from a Keras model, and this is {}: give the .keras or .h5 file"


def convert(request: Request) -> dict[str, str] | list[list[Array]]:
    """Convert a Keras, SavedModel or TFLite model to ONNX, or write its outputs on the held-out inputs."""
    if request.task == "reference":
        return reference(request, _runner(request))
    path = Path(request.folder) / "model.onnx"
    if request.kind == "tflite":
        tf2onnx.convert.from_tflite(request.model, opset=OPSET, output_path=str(path))
    elif request.kind == "savedmodel":
        call, specs = _signature(request.model)
        shape_of = dict(zip(request.inputs, request.shapes, strict=True))
        tensor_specs = [
            tf.TensorSpec(shape_of.get(name, spec.shape), spec.dtype, name=name) for name, spec in specs.items()
        ]
        function = tf.function(lambda *values: call(**dict(zip(specs, values, strict=True))))
        tf2onnx.convert.from_function(function, tensor_specs, opset=OPSET, output_path=str(path))
    else:
        model = load_keras(request.model)
        model_shapes = [tensor.shape for tensor in model.inputs]
        shapes = request.shapes if len(request.shapes) == len(model_shapes) else model_shapes
        signature = [
            tf.TensorSpec(shape, tensor.dtype, name=f"input_{i}" if i else "input")
            for i, (tensor, shape) in enumerate(zip(model.inputs, shapes, strict=True))
        ]
        # Operators are named after their layers, which Keras renumbers in a new graph; the trailing slash keeps
        # TensorFlow from numbering the scope.
        with _around_calls(model, lambda name: tf.name_scope(f"{name}/")):
            tf2onnx.convert.from_function(_function(model), signature, opset=OPSET, output_path=str(path))
    return {"path": str(path), "tool": f"tf2onnx {tf2onnx.__version__}"}


def _signature(path: str) -> tuple[Any, dict[str, Any]]:
    """A SavedModel's default serving function, and its inputs by name. Raises Refused if it has none."""
    loaded = tf.saved_model.load(path)
    if "serving_default" not in loaded.signatures:
        raise Refused(f"its signatures are {list(loaded.signatures)}: save it with one named serving_default")
    call = loaded.signatures["serving_default"]
    call.owner = loaded  # keeps its variables alive
    return call, dict(call.structured_input_signature[1])


def _runner(request: Request) -> Run:
    """The original model as a function from arrays to arrays."""
    if request.kind == "tflite":
        interpreter = tf.lite.Interpreter(request.model)
        indices = [detail["index"] for detail in interpreter.get_input_details()]

        def run_tflite(sample: Sequence[Array]) -> list[Array]:
            for index, array in zip(indices, sample, strict=True):
                interpreter.resize_tensor_input(index, array.shape)
            interpreter.allocate_tensors()
            for index, array in zip(indices, sample, strict=True):
                interpreter.set_tensor(index, array)
            interpreter.invoke()
            return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]

        return run_tflite
    if request.kind == "savedmodel":
        call, specs = _signature(request.model)

        def run_saved(sample: Sequence[Array]) -> list[Array]:
            values = {name: tf.constant(array) for name, array in zip(request.inputs, sample, strict=True)}
            outputs = call(**{name: values[name] for name in specs})
            return [np.asarray(outputs[name]) for name in sorted(outputs)]

        return run_saved
    model = load_keras(request.model)
    return lambda sample: [np.asarray(output) for output in tf.nest.flatten(model(one(sample), training=False))]


class Keras:
    """One Keras model."""

    def __init__(self, request: Request, data: Data) -> None:
        """Raises Refused if the model is not a Keras model."""
        if request.kind != "keras":
            raise Refused(_NEEDS.format(KINDS[request.kind]))
        tf.config.threading.set_intra_op_parallelism_threads(request.threads)
        self._request, self._data = request, data
        self._model = load_keras(request.model)

    def open(self, wanted: Wanted) -> Opened:
        """The model, called in the row's way."""
        model, size = self._model, Path(self._request.model).stat().st_size
        calls: dict[str, Callable[[Any], Any]] = {
            "tf.function": tf.function(lambda x: model(x, training=False)),
            "XLA": tf.function(lambda x: model(x, training=False), jit_compile=True),
            "call": lambda x: model(x, training=False),
            "predict": lambda x: model.predict(x, verbose=0),
        }
        call = calls[wanted.engine]

        def run(sample: Sequence[Array]) -> list[Array]:
            return [np.asarray(output) for output in tf.nest.flatten(call(one(sample)))]

        return Opened(run, size, dict(Counter(type(layer).__name__ for layer in model.layers)))

    def layers(self) -> Iterator[Layer]:
        """Operations by TensorFlow's profiler, seconds by wrapping calls in one inference. The note has the seconds of
        the layer alone as a sub-model."""
        wrapped = self._wrapped()
        for layer in self._model.layers:
            if type(layer).__name__ == "InputLayer":
                continue
            elements = prod(int(size or 1) for size in tf.nest.flatten(layer.output)[0].shape)
            yield Layer(
                backend="keras",
                name=layer.name,
                kind=type(layer).__name__,
                flops=self._flops(layer),
                float_bytes=4 * elements,
                int8_bytes=None,
                float_s=wrapped.get(layer.name),
                int8_s=None,
                error=None,
                note=f"alone as a sub-model {self._alone(layer) * 1e3:.3f} ms",
            )

    def _wrapped(self) -> dict[str, float]:
        """Median seconds of each layer's call inside one inference, measured as in the research notes."""
        seconds_of: dict[str, list[float]] = {}

        @contextmanager
        def timing(name: str) -> Iterator[None]:
            start = perf_counter()
            yield
            seconds_of.setdefault(name, []).append(perf_counter() - start)

        with _around_calls(self._model, timing):
            for _ in range(_RUNS + 1):
                self._model(one(self._data.held_out[0]), training=False)
        return {name: median(values[1:]) for name, values in seconds_of.items() if len(values) > 1}

    def _alone(self, layer: Any) -> float:
        """Median seconds of a layer as a separate model, on normally distributed inputs of its shapes."""
        rng = np.random.default_rng(self._request.seed)
        inputs = [
            tf.constant(rng.standard_normal([int(size or 1) for size in tensor.shape]).astype(np.float32))
            for tensor in tf.nest.flatten(layer.input)
        ]
        function = tf.function(lambda *values: layer(one(values)))
        return median_s(lambda: function(*inputs))

    def _flops(self, layer: Any) -> int:
        """Operations of a layer summed by TensorFlow's profiler, with a fixed batch.

        The layer is traced alone: in the whole model's graph Keras renumbers scopes, so names do not identify layers.
        """
        inputs = tf.nest.flatten(layer.input)
        signature = [tf.TensorSpec([int(size or 1) for size in tensor.shape], tensor.dtype) for tensor in inputs]
        function = tf.function(lambda *values: layer(one(values)))
        options = option_builder.ProfileOptionBuilder(option_builder.ProfileOptionBuilder.float_operation())
        graph = function.get_concrete_function(*signature).graph
        profile = model_analyzer.profile(graph, options=options.with_empty_output().build())
        return int(profile.total_float_ops) if profile is not None else 0


def _function(model: Any) -> Any:
    """The model as a TensorFlow function with one argument per input, named after the inputs in the graph."""
    if len(model.inputs) == 1:
        return tf.function(lambda input: model(input, training=False))
    return tf.function(lambda *inputs: model(list(inputs), training=False))


@contextmanager
def _around_calls(model: Any, context: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    """Call every layer within `context` of its name while this context lasts."""
    originals = {layer: layer.call for layer in model.layers}
    for layer, call in originals.items():

        def within(*args: Any, _name: str = layer.name, _call: Any = call, **kwargs: Any) -> Any:
            with context(_name):
                return _call(*args, **kwargs)

        layer.call = within
    try:
        yield
    finally:
        for layer, call in originals.items():
            layer.call = call


make = Keras
