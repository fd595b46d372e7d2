"""The error that a runtime adds by itself, beside that of int8. Pure.

Where the float model differs from the reference by `base` (bfloat16, other kernels), the error of int8 adds to it as
vectors do: as the root of the sum of squares.
"""

from math import sqrt


def left_for_int8(limit: float, base: float) -> float:
    """The part of `limit` left for int8 in a runtime where the float model has the error `base`."""
    return sqrt(max(0.0, limit**2 - base**2)) if base else limit


def together(error: float, base: float) -> float:
    """The expected error of int8 with the error `error` in a runtime where the float model has the error `base`."""
    return sqrt(error**2 + base**2) if base else error
