"""Keras with TensorFlow: ways to call a model; converts Keras or TFLite to ONNX."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf2onnx

from taglio.compare.request import KINDS, Request
from taglio.compare.row import WantedRow
from taglio.compare.workers.contract import Array, Opened, Refused, Run, one, reference
from taglio.compare.workers.keras_file import load_keras

OPSET = 17
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
        _name_operators_after_layers(model)
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

    def __init__(self, request: Request) -> None:
        """Raises Refused if the model is not a Keras model."""
        if request.kind != "keras":
            raise Refused(_NEEDS.format(KINDS[request.kind]))
        tf.config.threading.set_intra_op_parallelism_threads(request.threads)
        self._request = request
        self._model = load_keras(request.model)

    def open(self, wanted: WantedRow) -> Opened:
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


def _function(model: Any) -> Any:
    """The model as a TensorFlow function with one argument per input, named after the inputs in the graph."""
    if len(model.inputs) == 1:
        return tf.function(lambda input: model(input, training=False))
    return tf.function(lambda *inputs: model(list(inputs), training=False))


def _name_operators_after_layers(model: Any) -> None:
    """Run each layer of `model` in a name scope of its name: in a new graph Keras would number layers anew."""
    for layer in model.layers:

        def within(*args: Any, _name: str = layer.name, _call: Any = layer.call, **kwargs: Any) -> Any:
            with tf.name_scope(f"{_name}/"):  # the slash keeps TensorFlow from numbering the scope
                return _call(*args, **kwargs)

        layer.call = within


make = Keras
