"""Histograms of the values of one tensor, of a fixed size whatever the values: logarithmic bins for percentiles, equal
ones for the entropy method. Runs no model."""

import numpy as np
from onnxruntime.quantization.calibrate import HistogramCollector

from taglio.errors import MeasurementFailed, with_kind

# Bits of the mantissa that select a bin, beside sign and exponent: a bin is at most 1/64 of its values wide.
_MANTISSA_BITS = 6
_DROPPED_BITS = 23 - _MANTISSA_BITS
_BINS = 1 << (9 + _MANTISSA_BITS)
_SIGN = np.uint32(1 << 31)
# ONNX Runtime's search tries every range from this many bins up to all: 50 ms for twice as many, 200 ms for four times.
_QUANTIZED_BINS, _EQUAL_BINS = 128, 256
# Bytes of a histogram of either kind, at most.
HISTOGRAM_BYTES = 8 * _BINS


class Logarithmic:
    """Counts of float32 values by sign, exponent and first bits of the mantissa.

    All finite values have a bin, so a later sample may be any number of times as large as the first.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)

    def add(self, values: np.ndarray) -> None:
        """Count the finite ones of `values`."""
        bits = np.ascontiguousarray(values[np.isfinite(values)], np.float32).view(np.uint32)
        # Of negative numbers a larger pattern is a smaller number.
        order = np.where(bits & _SIGN, ~bits, bits | _SIGN)
        self._counts += np.bincount(order >> np.uint32(_DROPPED_BITS), minlength=_BINS)

    def central_range(self, percent: float) -> tuple[float, float]:
        """The range of the middle `percent` of all values, rounded outwards to ends of bins; (0, 0) without values."""
        passed = np.cumsum(self._counts)
        if not passed[-1]:
            return 0.0, 0.0
        beyond = passed[-1] * (100.0 - percent) / 200.0
        first = int(np.searchsorted(passed, beyond, side="right"))
        last = int(np.searchsorted(passed, passed[-1] - beyond))
        ends = np.array([first << _DROPPED_BITS, ((last + 1) << _DROPPED_BITS) - 1], np.uint32)
        low, high = np.where(ends & _SIGN, ends & ~_SIGN, ~ends).view(np.float32)
        return float(low), float(high)


class Equal:
    """Counts of values in equal bins over −`largest` to `largest`."""

    def __init__(self, largest: float) -> None:
        self._largest = largest
        self._counts = np.zeros(_EQUAL_BINS, np.int64)

    def add(self, values: np.ndarray) -> None:
        """Count the finite ones of `values`."""
        ends = (-self._largest, self._largest)
        self._counts += np.histogram(values[np.isfinite(values)].astype(np.float64), _EQUAL_BINS, ends)[0]

    def least_divergence(self, name: str) -> tuple[float, float]:
        """The range whose 8-bit values have the distribution most like all values', by ONNX Runtime's search (Migacz,
        GTC 2017). Raises MeasurementFailed, naming the tensor, if it fails."""
        ends = np.array([-self._largest, self._largest], np.float32)
        edges = np.linspace(-self._largest, self._largest, _EQUAL_BINS + 1).astype(np.float32)
        search = HistogramCollector("entropy", False, _EQUAL_BINS, _QUANTIZED_BINS, 0.0, "same")
        try:
            low, high = search.get_entropy_threshold((self._counts, edges, *ends), _QUANTIZED_BINS)
        except Exception as error:  # of any kind: it is a library's
            raise MeasurementFailed(
                f"tensor {name}: ONNX Runtime's entropy method failed ({with_kind(error)}): use a scheme with minmax "
                "or percentile"
            ) from None
        return float(low), float(high)
