"""Match a back end's outputs and their layout with the original's. Pure functions.

Converters reorder outputs and move channels last, without recording it in the file. So the float row's values decide:
each output of the original is matched with the nearest output and order of axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from taglio.compare.workers.contract import Array


@dataclass(frozen=True, slots=True)
class Binding:
    """For each output of the original: the back end's output, and the order of its axes."""

    sources: tuple[tuple[int, tuple[int, ...]], ...]

    def __call__(self, outputs: Sequence[Array]) -> tuple[Array, ...]:
        """The back end's outputs in the original's order and layout."""
        return tuple(np.transpose(outputs[index], axes) for index, axes in self.sources)

    def note(self) -> str:
        """What was moved; "" if nothing."""
        if any(axes != tuple(range(len(axes))) for _, axes in self.sources):
            return "outputs transposed to the original's layout"
        if [index for index, _ in self.sources] != list(range(len(self.sources))):
            return "outputs put in the original's order"
        return ""


def bind(reference: Sequence[Array], outputs: Sequence[Array]) -> Binding:
    """Match every output of `reference`. Raises ValueError, with the shapes, for an output without a match."""
    free = list(range(len(outputs)))
    sources: list[tuple[int, tuple[int, ...]]] = []
    for position, wanted in enumerate(reference):
        candidates = [
            (_distance(wanted, np.transpose(outputs[index], axes)), axes != tuple(range(wanted.ndim)), index, axes)
            for index in free
            if np.ndim(outputs[index]) == wanted.ndim
            for axes in permutations(range(wanted.ndim))
            if tuple(np.shape(outputs[index])[axis] for axis in axes) == wanted.shape
        ]
        if not candidates:
            shapes = ", ".join(str(list(np.shape(output))) for output in outputs)
            raise ValueError(f"no output fits output {position} of the original, {list(wanted.shape)}: found {shapes}")
        _, _, index, axes = min(candidates)
        sources.append((index, axes))
        free.remove(index)
    return Binding(tuple(sources))


def arrange(sample: Sequence[Array], shapes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The order of axes that brings each input to the shape that a back end takes.

    Only the shape distinguishes channels first from channels last; if both fit, the input stays unchanged. Raises
    ValueError for a shape that neither gives.
    """
    moves: list[tuple[int, ...]] = []
    for array, shape in zip(sample, shapes, strict=True):
        first, inner = range(array.ndim)[:1], range(array.ndim)[1:]
        options = ((*first, *inner), (*first, *inner[1:], *inner[:1]), (*first, *inner[-1:], *inner[:-1]))
        fits = [axes for axes in options if array.transpose(axes).shape == tuple(shape)]
        if not fits:
            raise ValueError(f"takes an input of {list(shape)}, the data has {list(array.shape)}")
        moves.append(fits[0])
    return tuple(moves)


def _distance(wanted: Array, output: Array) -> float:
    a, b = np.asarray(wanted, np.float64), np.asarray(output, np.float64)
    distance = float(np.linalg.norm((a - b).ravel()) / max(float(np.linalg.norm(a.ravel())), 1e-30))
    return distance if np.isfinite(distance) else float("inf")
