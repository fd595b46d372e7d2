"""QKeras: a trained Keras model with its layers replaced by QKeras'.

QKeras' own `model_quantize` cannot read back what it writes, so layers are replaced here one by one. Uses the older
tf_keras, which QKeras requires.
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from qkeras import QActivation, QConv2D, QDense, QDepthwiseConv2D, quantized_bits, quantized_relu

from taglio.compare.request import KINDS, Request
from taglio.compare.row import WantedRow
from taglio.compare.workers.contract import Array, Opened, Refused, one
from taglio.errors import one_line

_NEEDS = "QKeras replaces the layers of a Keras model, and this is {}: give the .keras or .h5 file"
_QUANTIZED = {"Conv2D": QConv2D, "Dense": QDense, "DepthwiseConv2D": QDepthwiseConv2D}


class QKeras:
    """One Keras model and its quantised forms."""

    def __init__(self, request: Request) -> None:
        """Raises Refused if the model is not a Keras model."""
        if request.kind != "keras":
            raise Refused(_NEEDS.format(KINDS[request.kind]))
        tf.config.threading.set_intra_op_parallelism_threads(request.threads)
        self._request = request
        try:
            self._model = tf_keras.models.load_model(request.model, compile=False)
        except (ValueError, TypeError, OSError) as error:
            raise Refused(
                f"tf_keras, which QKeras needs, cannot read the model: {one_line(error, 200)}", "failed"
            ) from error

    def open(self, wanted: WantedRow) -> Opened:
        """The row's model: `types` gives the bits."""
        if wanted.method == "float32":
            model = self._model
        else:
            bits = int(wanted.types[1 : wanted.types.index("s")])
            model = self._quantized(bits)
        counts = Counter(type(layer).__name__ for layer in model.layers)
        quantized = {name: count for name, count in counts.items() if name.startswith("Q")}
        path = Path(self._request.folder) / "model.h5"
        model.save(path)
        function = tf.function(lambda x: model(x, training=False))

        def call(sample: Sequence[Array]) -> list[Array]:
            return [np.asarray(output) for output in tf.nest.flatten(function(one(sample)))]

        notes = ("QKeras computes on floats rounded to its grid: no int8 kernel runs",) if quantized else ()
        return Opened(call, path.stat().st_size, dict(counts), {}, notes)

    def _quantized(self, bits: int) -> Any:
        """The model with QKeras' layers; activation ranges come from the calibration samples."""
        highest = self._highest()

        def replace(layer: Any) -> Any:
            config = layer.get_config()
            kind = type(layer)
            weights = {
                "kernel_quantizer": quantized_bits(bits, 0, 1, alpha="auto"),
                "bias_quantizer": quantized_bits(max(bits, 16), 4, 1, alpha=1.0),
            }
            relu = quantized_relu(bits, _integer_bits(highest[layer.name]))
            if kind.__name__ == "ReLU" or (
                kind.__name__ == "Activation" and layer.activation is tf_keras.activations.relu
            ):
                return QActivation(relu, name=layer.name)
            if kind.__name__ not in _QUANTIZED:
                return kind.from_config(config)
            if config.get("activation") == "relu":
                config["activation"] = relu
            if kind.__name__ == "DepthwiseConv2D":
                weights["depthwise_quantizer"] = weights.pop("kernel_quantizer")
            quantized = _QUANTIZED[kind.__name__]
            return quantized.from_config(_known(quantized, config) | weights)

        clone = tf_keras.models.clone_model(self._model, clone_function=replace)
        for source, target in zip(self._model.layers, clone.layers, strict=True):
            arrays = source.get_weights()
            if len(target.get_weights()) != len(arrays):
                raise Refused(f"QKeras' {type(target).__name__} has weights unlike layer {source.name}", "failed")
            target.set_weights(arrays)
        return clone

    def _highest(self) -> dict[str, float]:
        """The highest output of each layer over the calibration samples."""
        names = [layer.name for layer in self._model.layers]
        probe = tf_keras.Model(self._model.inputs, [layer.output for layer in self._model.layers])
        highest = dict.fromkeys(names, 0.0)
        for sample in self._request.calibration:
            for name, value in zip(names, probe(one(sample), training=False), strict=True):
                highest[name] = max(highest[name], float(np.max(np.asarray(value))))
        return highest


def _integer_bits(highest: float) -> int:
    """Integer bits needed for `highest`."""
    return max(0, ceil(log2(max(highest, 2.0**-8))))


def _known(kind: Any, config: dict[str, Any]) -> dict[str, Any]:
    """The part of a layer's configuration that QKeras' layer accepts: it does not support groups."""
    if config.get("groups", 1) != 1:
        raise Refused(f"{kind.__name__} has no groups, but layer {config['name']} has {config['groups']}", "failed")
    return {key: value for key, value in config.items() if key != "groups"}


make = QKeras
