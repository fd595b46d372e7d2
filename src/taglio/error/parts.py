"""The parts of a model's outputs, whose errors are measured separately. Extracts parts; movement.py finds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Labels = Mapping[tuple[int, ...], np.ndarray]


@dataclass(frozen=True, slots=True)
class Part:
    """The values of output number `output` with the label `label` (None: all of them)."""

    output: int
    name: str
    label: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OutputParts:
    """The parts of all outputs, in the order of the outputs; each value is in exactly one part.

    `labels` gives, by output index and then by the shape of the output, the label of every value. Axes along which
    labels do not change have length 1. `ranked` are the outputs whose rows are sorted by computed scores (ranking.py).
    """

    outputs: tuple[str, ...]
    parts: tuple[Part, ...]
    labels: Mapping[int, Labels] = field(default_factory=dict)
    ranked: frozenset[int] = frozenset()
    _chosen: dict[tuple[int, tuple[int, ...]], tuple[slice, ...] | np.ndarray] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts."""
        return tuple(part.name for part in self.parts)

    def take(self, index: int, value: np.ndarray) -> np.ndarray:
        """The values of part `index` in its whole output `value`, flat. If no labels fit the shape, the output's first
        part takes all values."""
        part = self.parts[index]
        if part.label is None:
            return value.ravel()
        key = index, value.shape
        if key not in self._chosen:
            self._chosen[key] = self._choose(part, part.label, value.shape)
        chosen = self._chosen[key]
        return value.ravel()[chosen] if isinstance(chosen, np.ndarray) else value[chosen].ravel()

    def fits(self, output: int, shape: tuple[int, ...]) -> bool:
        """Whether an output of this shape can be divided into its parts."""
        return output not in self.labels or fitting(self.labels[output], shape) is not None

    def _choose(self, part: Part, label: int, shape: tuple[int, ...]) -> tuple[slice, ...] | np.ndarray:
        labels = fitting(self.labels[part.output], shape)
        if labels is None:
            first = next(other for other in self.parts if other.output == part.output)
            return np.arange(np.prod(shape, dtype=np.int64) if part is first else 0)
        slices = box(labels == label)
        return slices if slices is not None else np.flatnonzero(np.broadcast_to(labels, shape) == label)


def whole(outputs: Sequence[str]) -> OutputParts:
    """Parts in which every output is one part."""
    return OutputParts(tuple(outputs), tuple(Part(index, name) for index, name in enumerate(outputs)))


def labelled(outputs: Sequence[str], labels: Mapping[int, Labels], sources: Sequence[str]) -> OutputParts:
    """Parts by `labels` (as in `OutputParts`), places in `sources`, which are the tensors that the values come from. An
    output with fewer than two labels is one part."""
    parts: list[Part] = []
    kept: dict[int, Labels] = {}
    for output, name in enumerate(outputs):
        own = sorted({int(label) for array in labels.get(output, {}).values() for label in np.unique(array)})
        if len(own) < 2:
            parts.append(Part(output, name))
            continue
        kept[output] = labels[output]
        names: list[str] = []
        for label in own:
            names.append(_named(name, label, kept[output], f"from {sources[label]}", names))
            parts.append(Part(output, names[-1], label))
    return OutputParts(tuple(outputs), tuple(parts), kept)


def reduced(labels: np.ndarray) -> np.ndarray:
    """`labels`, reduced to length 1 along every axis on which they do not change."""
    for axis, size in enumerate(labels.shape):
        first = labels.take([0], axis) if size else labels
        if (labels == first).all():
            labels = first
    return labels


def fitting(labels: Labels, shape: tuple[int, ...]) -> np.ndarray | None:
    """The labels of an output of this shape: its own in `labels`, or if all `labels` are equal and fit, these; else
    None."""
    if shape in labels:
        return labels[shape]
    first = next(iter(labels.values()))
    suits = first.ndim == len(shape) and all(a in (1, b) for a, b in zip(first.shape, shape, strict=True))
    return first if suits and alike(labels) else None


def alike(labels: Labels) -> bool:
    """Whether the labels do not depend on the shape."""
    first, *rest = labels.values()
    return all(np.array_equal(first, array) for array in rest)


def box(chosen: np.ndarray) -> tuple[slice, ...] | None:
    """The slices that select exactly the true entries of `chosen` (bool, any shape); None if no slices do. An axis of
    length 1 is taken whole."""
    if chosen.ndim == 0 or not chosen.any():
        return None
    slices = []
    for axis, size in enumerate(chosen.shape):
        hit = np.flatnonzero(chosen.any(axis=tuple(other for other in range(chosen.ndim) if other != axis)))
        slices.append(slice(None) if size == 1 else slice(int(hit[0]), int(hit[-1]) + 1))
    return tuple(slices) if chosen[tuple(slices)].all() else None


def _named(output: str, label: int, labels: Labels, source: str, names: Sequence[str]) -> str:
    """A unique name: output[slice] if the part is a slice, else output (source); numbered if it is one of `names`."""
    boxes = [box(array == label) for array in labels.values()]
    name, end = f"{output} ({source}", ")"
    if boxes[0] is not None and all(slices == boxes[0] for slices in boxes):
        name, end = f"{output}[{_words(boxes[0], next(iter(labels.values())).shape)}", "]"
    same = sum(other == name + end or other.startswith(f"{name}, part ") for other in names)
    return f"{name}, part {same + 1}{end}" if same else name + end


def _words(slices: Sequence[slice], shape: Sequence[int]) -> str:
    words = []
    for along, size in zip(slices, shape, strict=True):
        if along == slice(None):
            words.append(":")
        elif along.stop - along.start == 1:
            words.append(str(along.start))
        else:
            words.append(f"{along.start or ''}:{'' if along.stop == size else along.stop}")
    while len(words) > 1 and words[-1] == ":":
        words.pop()
    return ", ".join(words)
