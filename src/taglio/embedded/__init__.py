"""Paths of the embedded digits model and its held-out images. Reads neither, and trains nothing."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["digits_data", "digits_model"]


def digits_model() -> Path:
    """Path of the ONNX model: `image` float32 [1, 1, 32, 32] to `logits` float32 [1, 10]."""
    return Path(str(files(__name__) / "digits.onnx"))


def digits_data() -> Path:
    """Path of the held-out data: `image` float32 [400, 1, 32, 32] in 0..1, `label` int64 [400]."""
    return Path(str(files(__name__) / "digits.npz"))
