"""Bring two values of an output into a form that can be compared. Pure."""

from typing import Any

import numpy as np

# Larger values count as infinite: masks use them in place of −inf.
_INFINITE = 1e30
# Values whose binary exponents are at least this, and exceed those of all smaller values by at least this, are masks,
# such as −10⁴ and −10⁹ before a Softmax: about a thousand times larger.
_MASK_BITS = 10


def as_array(value: Any) -> np.ndarray:
    """A runtime's output as one array: a sequence or map is flattened and concatenated, a map in order of its keys."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list | tuple):
        members = [as_array(member).ravel() for member in value]
        return np.concatenate(members) if members else np.zeros(0, np.float32)
    return np.zeros(0, np.float32) if value is None else np.asarray(value)


def resized(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`value` cut or padded with zeros to `shape`, which has the same number of axes."""
    if value.shape == shape:
        return value
    padded = np.zeros(shape, value.dtype)
    common = tuple(slice(min(a, b)) for a, b in zip(value.shape, shape, strict=True))
    padded[common] = value[common]
    return padded


def union(reference: np.ndarray, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Both with the same number of axes (flat if they differ), and the smallest shape that holds both."""
    if reference.ndim != changed.ndim:
        reference, changed = reference.ravel(), changed.ravel()
    return reference, changed, tuple(max(a, b) for a, b in zip(reference.shape, changed.shape, strict=True))


def unequal(reference: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """Flat array of 1.0 where two values differ or one is missing, else 0.0."""
    reference, changed, shape = union(reference, changed)
    differs = np.ones(shape, np.float32)
    common = tuple(slice(min(a, b)) for a, b in zip(reference.shape, changed.shape, strict=True))
    differs[common] = np.asarray(reference[common] != changed[common], np.float32)
    return differs.ravel()


def comparable(reference: np.ndarray, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two flat float arrays as float32 (float64 if their squares need it), without values that would dominate a norm.

    An infinite or NaN value becomes 0 in both if both have it, and otherwise makes the difference infinite. Masks that
    are a thousand times larger than the other values are scaled to their size. Of others, such as -100 again and again
    beside logits, only the difference counts.
    """
    # float64 outputs are compared in float32 too: the differences are far above its rounding.
    a, b = np.asarray(reference, np.float32), np.asarray(changed, np.float32)
    size = np.abs(a)
    top = float(size.max(initial=0.0))
    if not top < _INFINITE:  # NaN too
        odd = ~(size < _INFINITE)
        same = (np.isnan(a) & np.isnan(b)) | ((np.sign(a) == np.sign(b)) & (np.abs(b) >= _INFINITE))
        a, b = np.where(odd, 0.0, a), np.where(odd, np.where(same, 0.0, np.inf), b)
        size = np.abs(a)
        top = float(size.max(initial=0.0))
    if top >= 2.0 ** (_MASK_BITS - 1):
        mask = _masks(size)
        if mask.any():
            level = np.sqrt(np.mean(size[~mask].astype(np.float64) ** 2))
            scale = np.where(mask, level / np.where(mask, size, 1.0), 1.0).astype(np.float32)
            a, b, top = a * scale, b * scale, level
            size = np.abs(a)
    # Values that occur again are masks too, if twice as large as any other and at least 10: an exact 1 may be a
    # probability.
    if top >= 10.0:
        extreme = a[size.argmax()]
        same = a == extreme
        next_largest = float(size[~same].max(initial=0.0))
        if np.count_nonzero(same) > 1 and 0.0 < 2.0 * next_largest <= abs(extreme):
            a, b, top = np.where(same, 0.0, a), np.where(same, b - extreme, b), next_largest
    # Squares of larger values, or of smaller ones, do not fit into float32.
    return (a, b) if 1e-15 < top < 1e15 else (a.astype(np.float64), b.astype(np.float64))


def _masks(size: np.ndarray) -> np.ndarray:
    """Which of the absolute values `size` are masks, bool."""
    exponents = np.frexp(size)[1]
    used = exponents[size > 0.0]
    lowest = int(used.min())
    levels = np.flatnonzero(np.bincount(used - lowest)) + lowest
    jumps = levels[1:][(np.diff(levels) >= _MASK_BITS) & (levels[1:] >= _MASK_BITS)]
    return exponents >= jumps[0] if len(jumps) else np.zeros(size.shape, bool)
