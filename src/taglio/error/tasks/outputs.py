"""What a task is scored on, and how it finds the output that it is about. Decodes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from taglio.errors import BadData

Outputs = Mapping[str, np.ndarray]  # of one sample, by name


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Outputs of all samples, of a changed model and of the float model; `labels` [samples, ...] take the float model's
    place as the truth. `parameters` are the task's; decoding may need the image input's size (height, width) and the
    model's own metadata."""

    changed: Sequence[Outputs]
    reference: Sequence[Outputs]
    labels: np.ndarray | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    image: tuple[int, int] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def scores_of(outputs: Outputs, what: str) -> np.ndarray:
    """The first float output that has classes: at least two dimensions, and two values in one of them. Raises BadData
    where there is none."""
    for value in outputs.values():
        array = np.asarray(value)
        if array.dtype.kind == "f" and array.ndim >= 2 and max(array.shape[1:]) > 1:
            return array
    raise BadData(f"metric {what}: no output of {shapes(outputs)} holds scores of classes")


def vector_of(outputs: Outputs, what: str) -> np.ndarray:
    """The float output with fewest dimensions above one sample, pooled to one vector: the last such, as exporters put a
    pooled embedding behind token states. Raises BadData where there is none."""
    floats = [np.asarray(value) for value in outputs.values() if np.asarray(value).dtype.kind == "f"]
    if not floats:
        raise BadData(f"metric {what}: no output of {shapes(outputs)} is float")
    fewest = min(array.ndim for array in floats)
    return np.asarray([array for array in floats if array.ndim == fewest][-1], np.float64).ravel()


def shapes(outputs: Outputs) -> str:
    """Names and shapes in a refusal."""
    return ", ".join(f"{name} {list(np.shape(value))}" for name, value in outputs.items())


def class_axis(sample: np.ndarray) -> int:
    """The axis of classes of [batch, ..., classes] or [batch, classes, ...]: the last for up to three dimensions, else
    the second, where images have their channels."""
    return -1 if sample.ndim <= 3 else 1


def all_floats(samples: Sequence[Outputs], what: str) -> np.ndarray:
    """Every float number of all samples in one row. Raises BadData where there is none."""
    rows = [
        np.asarray(value, np.float64).ravel()
        for outputs in samples
        for value in outputs.values()
        if np.asarray(value).dtype.kind == "f"
    ]
    if not rows:
        raise BadData(f"metric {what}: no output is float")
    return np.concatenate(rows)
