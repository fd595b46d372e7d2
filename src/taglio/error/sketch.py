"""Sketches of output differences: short vectors that nearly preserve inner products. Pure.

A count sketch (Charikar, Chen, Farach-Colton 2002): every element is added, with a random sign, to one of `SIZE` sums.
Inner products of sketches are unbiased, with a standard deviation of at most ‖a‖‖b‖ · √(2 / SIZE). Norms are kept
separately and exactly. Without sketches the differences of 400 evaluations of a detector would fill gigabytes.
"""

from collections.abc import Sequence

import numpy as np

# 256 sums raise the median error of predictions from 0.68 to 0.90 % on a sentence encoder; 4,096 do not lower it.
SIZE = 1024


def add_differences(sketch: np.ndarray, sample: int, differences: Sequence[np.ndarray]) -> None:
    """Add one sample's differences by part (flat) to `sketch`, shape [parts, SIZE], in place. Equal numbers of sample,
    part and element always go to the same sum."""
    for part, difference in enumerate(differences):
        draws = np.random.default_rng((sample, part)).integers(0, 2 * SIZE, len(difference), dtype=np.uint16)
        signed = np.where(draws & 1, difference, -difference)
        sketch[part] += np.bincount(draws >> 1, weights=signed, minlength=SIZE)
