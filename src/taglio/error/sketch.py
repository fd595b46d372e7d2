"""Short images of long output differences, whose inner products are nearly those of the differences. Pure.

A count sketch (Charikar, Chen, Farach-Colton 2002): every element is added, with a random sign, to one of `size` sums.
Inner products of sketches are unbiased; their standard deviation is at most ‖a‖‖b‖ · √(2 / size). Norms are kept
exactly beside them. Without it the differences of 400 evaluations of a detector would fill gigabytes.
"""

from collections.abc import Sequence

import numpy as np

SIZE = 4096


class Sketcher:
    """Sums the differences of every sample into one sketch per part; the same element always goes the same way."""

    def __init__(self, lengths: Sequence[Sequence[int]], seed: int = 0, size: int = SIZE) -> None:
        """`lengths` [samples][parts]: elements of each part, which may differ from sample to sample."""
        self._seed, self.size = seed, size
        # Where each sample's elements begin in all of them, [samples + 1, parts].
        self._starts = np.cumsum([[0] * len(lengths[0]), *lengths], axis=0)
        self._ways: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}

    def add(self, sketch: np.ndarray, sample: int, differences: Sequence[np.ndarray]) -> None:
        """Add one sample's differences (flat, float32) to `sketch`, shape [parts, size]."""
        for part, difference in enumerate(differences):
            place, sign = self._way(sample, part, len(difference))
            sketch[part] += np.bincount(place, weights=difference * sign, minlength=self.size)

    def _way(self, sample: int, part: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        start, end = self._starts[sample : sample + 2, part]
        if self._starts[-1, part] <= self.size and length == end - start:  # short enough to be kept as it is
            return np.arange(start, end), np.ones(length, np.float32)
        key = sample, part, length  # lengths may differ from the float model's where they depend on values
        if key not in self._ways:
            rng = np.random.default_rng((self._seed, *key))
            place = rng.integers(0, self.size, length, dtype=np.int64)
            self._ways[key] = place, rng.integers(0, 2, length).astype(np.float32) * 2.0 - 1.0
        return self._ways[key]
