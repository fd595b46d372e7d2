"""Whether a rewritten model answers as the original. Rewrites nothing."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from taglio.errors import BadData, BadModel, one_line
from taglio.model.inputs import Feed
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

# Rewrites reorder float sums; beyond this relative distance the simplified model is not the user's model.
SIMPLIFY_TOLERANCE = 1e-3


def refuse_difference(
    path: Path, original: onnx.ModelProto, simple: onnx.ModelProto, feeds: Sequence[Feed], from_user: bool
) -> None:
    """Raises BadModel for a rewrite that changes the answers: every later proof would be about another model.

    Raises BadData where the original cannot run feeds `from_user`; random ones that it cannot run say nothing.
    """
    if not feeds:
        return
    options = SessionOptions(threads=os.cpu_count() or 1, optimization=Optimization.BASIC)
    first, second = (open_session(each, options, label=str(path)) for each in (original, simple))
    names = [value.name for value in simple.graph.output]
    for feed in feeds:
        try:
            before = first.run(names, dict(feed))
        except Exception as error:  # ONNX Runtime's exceptions share no useful base class
            if not from_user:
                return
            raise BadData(f"{path}: ONNX Runtime cannot run the model on the data ({one_line(error)})") from None
        try:
            after = second.run(names, dict(feed))
        except Exception as error:
            raise BadModel(f"{path}: simplified, it cannot run ({one_line(error)})") from None
        for name, left, right in zip(names, before, after, strict=True):
            distance = difference(left, right)
            if not distance <= SIMPLIFY_TOLERANCE:
                raise BadModel(
                    f"{path}: simplified, its output {name} differs by {distance:.2%} (limit {SIMPLIFY_TOLERANCE:.1%}):"
                    " export it with constant folding and without training-mode operators"
                )


def difference(left: Any, right: Any) -> float:
    """Relative L2 distance of two float outputs, with infinities and NaN at the same places left out; of others the
    share that differs. Sequences count by their worst member."""
    if isinstance(left, (list, tuple)):
        if not isinstance(right, (list, tuple)) or len(left) != len(right):
            return 1.0
        return max((difference(a, b) for a, b in zip(left, right, strict=True)), default=0.0)
    if left is None or isinstance(left, dict):
        return float(left != right)
    a, b = np.asarray(left), np.asarray(right)
    if a.shape != b.shape or a.dtype != b.dtype:
        return 1.0
    if a.dtype.kind not in "fV" or a.dtype == object:
        return float(np.mean(a != b)) if a.size else 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    odd = ~np.isfinite(a)
    if not np.array_equal(a[odd], b[odd], equal_nan=True):
        return 1.0
    return float(np.linalg.norm(a[~odd] - b[~odd]) / max(float(np.linalg.norm(a[~odd])), 1e-30))
