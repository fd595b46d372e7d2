"""Load a Keras file with Keras 3 or, for Keras 2 files that Keras 3 refuses, with tf_keras. Runs no model."""

import importlib
from typing import Any

import keras

from taglio.compare.workers.contract import Refused
from taglio.errors import one_line


def load_keras(path: str) -> Any:
    """The model of a .keras or .h5 file. Raises Refused, with Keras' message, if neither can read it."""
    try:
        return keras.saving.load_model(path, compile=False)
    except (TypeError, ValueError, KeyError, AttributeError, OSError) as error:
        first = error
    try:
        return importlib.import_module("tf_keras").models.load_model(path, compile=False)
    except (TypeError, ValueError, KeyError, AttributeError, OSError, ImportError):
        words = one_line(first, 300)
        raise Refused(f"neither Keras {keras.__version__} nor tf_keras can read it: {words}", "failed") from first
