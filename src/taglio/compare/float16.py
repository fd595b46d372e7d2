"""A model in float16, by ONNX Runtime's converter. Neither calibrates nor quantises.

The file is half as large. On a CPU without float16 arithmetic ONNX Runtime computes most of it in float32: it is not
faster there, and its answers do not show all that true float16 rounds. What float16 cannot hold is refused, by the
ranges of calibration; constants beyond its range, such as masks, become its largest number.
"""

from collections.abc import Mapping

import numpy as np
import onnx

from taglio import weights
from taglio.errors import BadModel, CannotQuantize
from taglio.model.load import Model
from taglio.runtimes.cuda import in_float16
from taglio.runtimes.onnxruntime import SessionOptions, open_session

LARGEST = float(np.finfo(np.float16).max)


def float16(model: Model, low_high: Mapping[str, tuple[float, float]]) -> onnx.ModelProto:
    """`model` in float16, with its inputs and outputs as they are. `low_high` are the calibrated ranges of activations.
    Raises CannotQuantize if one of them exceeds float16, and if ONNX Runtime does not convert or load the model."""
    for name, (low, high) in low_high.items():
        if (largest := max(-low, high)) > LARGEST:
            raise CannotQuantize(f"{model.name} cannot be float16: {name} reaches {largest:.3g}, beyond {LARGEST:.0f}")
    try:
        converted = in_float16(weights.in_memory(model.proto), model.name)
        open_session(converted, SessionOptions(1), label=model.name)
    except BadModel as error:
        raise CannotQuantize(str(error)) from None
    return converted
