"""Settings for reading one sample's outputs, and finding the output that a task needs. Decodes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from taglio.errors import BadData

Outputs = Mapping[str, np.ndarray]  # of one sample, by name


@dataclass(frozen=True, slots=True)
class Setting:
    """How to read one sample: the task's `parameters`, whether labels (not the float model's answers) are the truth,
    the size of the image input (height, width), and the model's metadata."""

    parameters: Mapping[str, float] = field(default_factory=dict)
    labelled: bool = False
    image: tuple[int, int] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def image_size(sample: Mapping[str, np.ndarray]) -> tuple[int, int] | None:
    """Height and width of the first 4-D input, channels first or last; None if there is none."""
    for value in sample.values():
        if value.ndim == 4:
            return height_and_width(value.shape)
    return None


def inputs_in(sample: Mapping[str, np.ndarray]) -> int:
    """How many inputs a sample holds: the batch of its images, or of its token ids; 1 where the batch is not sure."""
    for value in sample.values():
        if value.ndim == 4 or (value.ndim == 2 and value.dtype.kind in "iu"):
            return int(value.shape[0])
    return 1


def one_by_one(outputs: Outputs, count: int) -> Sequence[Outputs]:
    """The outputs of each of `count` inputs, with a batch of 1. The batch is the first axis, or the second as in
    [steps, batch, classes]; outputs without it are the same for each. Raises BadData if none has it."""
    if count == 1:
        return [outputs]
    inputs: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
    divided = False
    for name, array in ((name, np.asarray(value)) for name, value in outputs.items()):
        axis = array.shape.index(count) if count in array.shape[: 2 if array.ndim == 3 else 1] else None
        divided |= axis is not None
        for index, own in enumerate(inputs):
            own[name] = array if axis is None else array.take([index], axis)
    if not divided:
        raise BadData(f"no output of {shapes(outputs)} has a batch of {count}, as the inputs do: give one input each")
    return inputs


def height_and_width(shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of images [N, C, H, W], or [N, H, W, C] if only the last axis can be channels."""
    last = shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4)
    return (shape[1], shape[2]) if last else (shape[2], shape[3])


def prototypes(outputs: Outputs, image: tuple[int, int] | None) -> int:
    """The number of mask prototypes, as YOLO writes them for instances: channels of a map smaller than the image beside
    rows of a box, a class and a coefficient for each; 0 if there are none."""
    arrays = [np.asarray(value) for value in outputs.values()]
    longest = max((min(array.shape[1:]) for array in arrays if array.ndim == 3), default=0)
    for array in arrays:
        if array.ndim == 4 and array.shape[2:] != image and array.shape[1] + 5 <= longest:
            return int(array.shape[1])
    return 0


def scores_of(outputs: Outputs, metric: str) -> np.ndarray:
    """The first float output that can hold classes: at least two dimensions, with two values in one besides the batch.
    Raises BadData if there is none."""
    for value in outputs.values():
        array = np.asarray(value)
        if array.dtype.kind == "f" and array.ndim >= 2 and max(array.shape[1:]) > 1:
            return array
    raise BadData(
        f"metric {metric}: no output of {shapes(outputs)} holds scores of classes: use relative-l2, or a function of "
        "your own"
    )


def vector_of(outputs: Outputs, metric: str) -> np.ndarray:
    """The float output with the fewest dimensions, flat; the last one if there are several, since exporters put a
    pooled embedding behind token states. Raises BadData if there is none."""
    floats = [np.asarray(value) for value in outputs.values() if np.asarray(value).dtype.kind == "f"]
    if not floats:
        raise BadData(f"metric {metric}: no output of {shapes(outputs)} is float: use a function of your own")
    fewest = min(array.ndim for array in floats)
    return np.asarray([array for array in floats if array.ndim == fewest][-1], np.float64).ravel()


def shapes(outputs: Outputs) -> str:
    """Names and shapes as text for error messages."""
    return ", ".join(f"{name} {list(np.shape(value))}" for name, value in outputs.items())


def class_axis(sample: np.ndarray) -> int:
    """The axis of classes: the last for up to three dimensions, else the second, as in [batch, classes, ...]."""
    return -1 if sample.ndim <= 3 else 1


def whole_numbers(label: np.ndarray) -> np.ndarray:
    """A label as class numbers, flat. Raises BadData for text and fractions."""
    if label.dtype.kind not in "iubf" or (label.dtype.kind == "f" and (label != np.floor(label)).any()):
        raise BadData(f"must be class numbers, not {label.dtype}")
    return label.astype(np.int64).ravel()
