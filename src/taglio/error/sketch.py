"""Sketches of output differences: short vectors that nearly preserve inner products. Pure.

A count sketch (Charikar, Chen, Farach-Colton 2002): every element is added, with a random sign, to one of `size` sums.
Inner products of sketches are unbiased, with a standard deviation of at most ‖a‖‖b‖ · √(2 / size). Norms are kept
separately and exactly. Without sketches the differences of 400 evaluations of a detector would fill gigabytes.
"""

from collections.abc import Sequence

import numpy as np

SIZE = 4096
_AT_ONCE = 2**20


class Sketcher:
    """Sums the differences of all samples into one sketch per part; an element always goes to the same place.

    The place and sign of every element of a part are drawn once, two bytes each. The sums of each sample are then
    rotated by a different offset and get a random sign, so the bound above holds as if places had been drawn for each
    sample.
    """

    def __init__(self, lengths: Sequence[Sequence[int]], size: int = SIZE) -> None:
        """`lengths` [samples][parts]: elements of each part, which may differ between samples."""
        self.size = size
        # Offset of each sample's elements among those of all samples, [samples + 1, parts].
        self._starts = np.cumsum([[0] * len(lengths[0]), *lengths], axis=0)
        self._ways: dict[tuple[int, int], np.ndarray] = {}
        rng = np.random.default_rng(0)
        self._moves = np.resize(rng.permutation(size), len(lengths))
        self._signs = rng.integers(0, 2, len(lengths)) * 2.0 - 1.0

    def add(self, sketch: np.ndarray, sample: int, differences: Sequence[np.ndarray]) -> None:
        """Add one sample's differences (flat, float32) to `sketch`, shape [parts, size]."""
        for part, difference in enumerate(differences):
            start, end = self._starts[sample : sample + 2, part]
            if self._starts[-1, part] <= self.size and len(difference) == end - start:  # short: kept exactly
                sketch[part, start:end] += difference
                continue
            sums = np.zeros(self.size)
            way = self._way(part, len(difference))
            for begin in range(0, len(difference), _AT_ONCE):
                codes, values = way[begin : begin + _AT_ONCE], difference[begin : begin + _AT_ONCE]
                sums += np.bincount(codes >> 1, weights=np.where(codes & 1, values, -values), minlength=self.size)
            sketch[part] += self._signs[sample] * np.roll(sums, self._moves[sample])

    def _way(self, part: int, length: int) -> np.ndarray:
        """For each element, its place times two, plus one if it is added rather than subtracted."""
        key = part, length  # lengths may differ from the float model's where they depend on values
        if key not in self._ways:
            rng = np.random.default_rng((0, *key))
            self._ways[key] = rng.integers(0, 2 * self.size, length, dtype=np.uint16)
        return self._ways[key]
