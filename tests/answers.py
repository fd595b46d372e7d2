"""What a model answers in ONNX Runtime, and how far answers are apart."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from taglio.runtimes.onnxruntime import SessionOptions, open_session

ONE_THREAD = SessionOptions(threads=1)


def answers(
    model: onnx.ModelProto | Path, feed: Mapping[str, np.ndarray], options: SessionOptions = ONE_THREAD
) -> list[np.ndarray]:
    """All outputs."""
    outputs: list[np.ndarray] = open_session(model, options).run(None, dict(feed))
    return outputs


def distance(reference: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> float:
    """The largest relative L2 distance over outputs."""
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(a)) for a, b in zip(reference, others, strict=True))
