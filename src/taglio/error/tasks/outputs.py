"""What reading one sample's outputs depends on, and how a task finds the output that it is about. Decodes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from taglio.errors import BadData

Outputs = Mapping[str, np.ndarray]  # of one sample, by name


@dataclass(frozen=True, slots=True)
class Setting:
    """What reading one sample depends on: the task's `parameters`, whether labels are the truth instead of the float
    model's answers, the size of the image input (height, width), and the model's own metadata."""

    parameters: Mapping[str, float] = field(default_factory=dict)
    labelled: bool = False
    image: tuple[int, int] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def image_size(sample: Mapping[str, np.ndarray]) -> tuple[int, int] | None:
    """Height and width of the first input that is an image, channels first or last; None where there is none."""
    for value in sample.values():
        if value.ndim == 4:
            return height_and_width(value.shape)
    return None


def height_and_width(shape: tuple[int, ...]) -> tuple[int, int]:
    """Of images [N, C, H, W], or [N, H, W, C] where only the last can be channels."""
    last = shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4)
    return (shape[1], shape[2]) if last else (shape[2], shape[3])


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


def floats_of(outputs: Outputs, what: str) -> np.ndarray:
    """Every float number of one sample in one row. Raises BadData where there is none."""
    rows = [np.asarray(value, np.float64).ravel() for value in outputs.values() if np.asarray(value).dtype.kind == "f"]
    if not rows:
        raise BadData(f"metric {what}: no output is float")
    return np.concatenate(rows)


def whole_numbers(label: np.ndarray) -> np.ndarray:
    """A label as classes, flat. Raises BadData for text and fractions."""
    if label.dtype.kind not in "iubf" or (label.dtype.kind == "f" and (label != np.floor(label)).any()):
        raise BadData(f"must be numbers of classes, not {label.dtype}")
    return label.astype(np.int64).ravel()
