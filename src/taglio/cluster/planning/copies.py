"""How the copies of a value serve its readers in one place: which conversions they need, and what that costs."""

from typing import NamedTuple

import numpy as np

from taglio.cluster.planning.problem import Copies


class Changes(NamedTuple):
    """The conversions for the readers of one value in one place: whether it is quantised where it was written (once for
    all places), whether their place quantises its float copy (once for all of them), and how many dequantise."""

    quantized: np.ndarray
    quantized_there: np.ndarray
    dequantized: np.ndarray


def serve(whole: np.ndarray | bool, copies: np.ndarray | int, ints: np.ndarray, floats: np.ndarray) -> Changes:
    """The rule: `whole` values are written in int8, others in float; `copies` (`Copies` numbers) are at hand for so
    many readers in int8 and in float. Arrays broadcast."""
    copies = np.asarray(copies)
    quantized = np.logical_not(whole) & (copies >= Copies.INT8)
    return Changes(quantized, (ints > 0) & (copies == Copies.FLOAT), np.where(copies == Copies.INT8, floats, 0))


def at_home(whole: np.ndarray, ints: np.ndarray) -> np.ndarray:
    """The copies at hand where a value is written: an int8 copy of a float value, if any int8 reader is there."""
    return np.asarray(
        np.where(whole, int(Copies.INT8), np.where(ints > 0, int(Copies.FLOAT | Copies.INT8), int(Copies.FLOAT)))
    )


def ways(
    send_float: np.ndarray,
    send_int8: np.ndarray,
    quantize: np.ndarray,
    dequantize: np.ndarray,
    ints: np.ndarray,
    floats: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Cost of serving another place by a float copy and by an int8 copy, without making the int8 copy and without
    noise."""
    costs = []
    for copies, sent in ((Copies.FLOAT, send_float), (Copies.INT8, send_int8)):
        changes = serve(False, copies, ints, floats)
        costs.append(sent + changes.quantized_there * quantize + changes.dequantized * dequantize)
    by_float, by_int8 = costs
    return by_float, by_int8
