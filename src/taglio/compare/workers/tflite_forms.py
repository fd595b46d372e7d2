"""Make a row's .tflite file: by TensorFlow's converter from Keras or a SavedModel, or by ai-edge-quantizer from the
float file. Runs only calibration."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from ai_edge_quantizer import qtyping, quantizer
from ai_edge_quantizer.algorithm_manager import AlgorithmName

from taglio.compare.request import Request
from taglio.compare.row import WantedRow
from taglio.compare.workers.binding import arrange
from taglio.compare.workers.contract import Array, Refused, one
from taglio.compare.workers.keras_file import load_keras

QUANTIZER = "ai-edge-quantizer"
_OPERATIONS = qtyping.TFLOperationName


class TfliteFiles:
    """The files of one model, made on demand and kept in the folder."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._folder = Path(request.folder)
        self._calibration: Any = None
        self.float_path = self._folder / "float32.tflite"
        if request.kind == "tflite":
            self.float_path.write_bytes(Path(request.model).read_bytes())
        elif not self.float_path.exists():
            self.float_path.write_bytes(self._converter().convert())

    def path(self, wanted: WantedRow) -> Path:
        """The file of a row."""
        if wanted.method == "float32":
            return self.float_path
        words = f"{wanted.method} {wanted.format} {wanted.types} {wanted.per_channel}"
        target = self._folder / (re.sub(r"[^\w.+-]", "_", words) + ".tflite")
        if not target.exists():
            target.write_bytes(self._quantized(wanted) if wanted.format == QUANTIZER else self._converted(wanted))
        return target

    def _quantized(self, wanted: WantedRow) -> bytes:
        """The float file with all supported operators quantised."""
        tool, operators = quantizer.Quantizer(str(self.float_path)), _OPERATIONS.ALL_SUPPORTED
        granularity = qtyping.QuantGranularity.TENSORWISE
        if wanted.per_channel:
            granularity = qtyping.QuantGranularity.CHANNELWISE
        if wanted.method == "dynamic":
            tool.add_dynamic_config(".*", operators, 8, granularity)
        elif wanted.method == "weights only":
            tool.add_weight_only_config(".*", operators, 8, granularity)
        else:
            tool.add_static_config(".*", operators, 16 if wanted.method == "int16x8" else 8, 8, granularity)
        for edge in (_OPERATIONS.INPUT, _OPERATIONS.OUTPUT):  # the caller's tensors stay float
            tool.update_quantization_recipe(".*", edge, algorithm_key=AlgorithmName.NO_QUANTIZE)
        calibration = self._statistics() if tool.need_calibration else None
        return bytes(tool.quantize(calibration, enable_progress_report=False).quantized_model)

    def _statistics(self) -> Any:
        """Range of every tensor over the calibration samples."""
        if self._calibration is None:
            tool = quantizer.Quantizer(str(self.float_path))
            tool.add_static_config(".*", _OPERATIONS.ALL_SUPPORTED, 8, 8)
            samples = {_signature(self.float_path): list(self._named())}
            self._calibration = tool.calibrate(samples, num_threads=self._request.threads)
        return self._calibration

    def _converter(self) -> Any:
        request = self._request
        if request.kind == "keras":
            saved = self._folder / "saved_model"
            if not saved.exists():
                model = load_keras(request.model)
                if isinstance(model, keras.Model):  # from a function, the converter would keep its variables unfused
                    archive = keras.export.ExportArchive()
                    archive.track(model)
                    archive.add_endpoint("serving_default", _function(model), input_signature=_signatures(request))
                    archive.write_out(str(saved), verbose=False)
                else:  # of tf_keras
                    function = tf.function(_function(model), input_signature=_signatures(request))
                    tf.saved_model.save(model, str(saved), signatures=function.get_concrete_function())
            return tf.lite.TFLiteConverter.from_saved_model(str(saved))
        if request.kind == "tflite":
            raise Refused("the converter needs Keras or a SavedModel, but this model is already a .tflite file")
        return tf.lite.TFLiteConverter.from_saved_model(str(Path(request.converted)))

    def _converted(self, wanted: WantedRow) -> bytes:
        converter = self._converter()
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if not wanted.per_channel:
            converter._experimental_disable_per_channel = True  # noqa: SLF001
        if wanted.method == "float16":
            converter.target_spec.supported_types = [tf.float16]
        elif wanted.method in ("static", "int16x8"):
            converter.representative_dataset = self._representative
            sets = tf.lite.OpsSet
            operator_set = sets.TFLITE_BUILTINS_INT8
            if wanted.method == "int16x8":
                operator_set = sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
            converter.target_spec.supported_ops = [operator_set]
            if wanted.format.endswith("int8 in and out"):
                converter.inference_input_type = converter.inference_output_type = tf.int8
        return bytes(converter.convert())

    def _representative(self) -> Iterator[list[Array]]:
        """Calibration samples in the layout that the float file takes."""
        details = tf.lite.Interpreter(str(self.float_path)).get_input_details()
        shapes = [tuple(detail["shape"]) for detail in details]
        for sample in self._request.calibration:
            yield [array.transpose(axes) for array, axes in zip(sample, arrange(sample, shapes), strict=True)]

    def _named(self) -> Iterator[dict[str, Array]]:
        interpreter = tf.lite.Interpreter(str(self.float_path))
        signature = interpreter.get_signature_list()[_signature(self.float_path)]["inputs"]
        for sample in self._representative():
            yield dict(zip(signature, sample, strict=True))


def _signature(path: Path) -> str:
    names = list(tf.lite.Interpreter(str(path)).get_signature_list())
    if not names:
        raise Refused("ai-edge-quantizer calibrates by signature, and the file has none: convert it again")
    return str(names[0])


def _function(model: Any) -> Callable[..., Any]:
    """The model as a function with one argument per input."""
    return lambda *inputs: model(one(inputs), training=False)


def _signatures(request: Request) -> list[Any]:
    return [tf.TensorSpec(shape, tf.float32, name=f"input_{i}") for i, shape in enumerate(request.shapes)]
