"""How much two answers of a model differ. Pure."""

from math import inf
from typing import Any

import numpy as np


def difference(left: Any, right: Any) -> float:
    """Relative L2 distance of two float outputs, leaving out infinities and NaN that both have in the same places; for
    other types the share of values that differ. A sequence counts by its worst member. Infinite if lengths, shapes,
    types, infinities or NaN differ."""
    if isinstance(left, (list, tuple)):
        if not isinstance(right, (list, tuple)) or len(left) != len(right):
            return inf
        return max((difference(a, b) for a, b in zip(left, right, strict=True)), default=0.0)
    if left is None or isinstance(left, dict):
        return float(left != right)
    a, b = np.asarray(left), np.asarray(right)
    if a.shape != b.shape or a.dtype != b.dtype:
        return inf
    if np.array_equal(a, b):  # most answers, and ten times as fast as what follows
        return 0.0
    if a.dtype.kind not in "fV" or a.dtype == object:
        return float(np.mean(a != b)) if a.size else 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return inf
    return _norm(a[finite] - b[finite]) / max(_norm(a[finite]), 1e-30)


def _norm(values: np.ndarray) -> float:
    """The L2 norm. NumPy's own hands it to OpenBLAS, whose threads then spin for milliseconds: every answer of a
    cluster is compared, and on half a core the next request waited for them four times as long as it ran."""
    return float(np.sqrt(np.sum(np.square(values))))
