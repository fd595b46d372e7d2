"""A saved Hugging Face dataset → samples, from the columns that match the model's inputs. Downloads nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from taglio.data.dataset import LABEL_KEYS, Dataset, one_array
from taglio.data.images import from_images
from taglio.data.items import SampleRequest, SourceItems, left_out
from taglio.data.preprocess import in_layout
from taglio.data.processor import Beside, class_numbers, preprocess_of
from taglio.data.sounds import from_sounds
from taglio.data.spec import Array
from taglio.data.texts import TEXT_KEYS, from_texts
from taglio.data.values import from_values
from taglio.errors import BadData, one_line
from taglio.notes import Kind, Note
from taglio.optional import optional

_ONE, _SPLITS = "state.json", "dataset_dict.json"


def is_saved(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk` of `datasets`."""
    return (path / _ONE).is_file() or (path / _SPLITS).is_file()


def from_saved(path: Path, request: SampleRequest) -> Dataset:
    """Samples from the columns with the names of the model's inputs, or else from the only column of images, sounds or
    texts that suits the model's first input; labels from `label` or `labels`.

    Raises BadData if there is no such column, or several; BadOption if `datasets` is not installed.
    """
    inputs = request.inputs
    dataset = _opened(path)
    features = dict(dataset.features)
    wanted = [spec.name for spec in inputs]
    label = next((key for key in LABEL_KEYS if key in features and key not in wanted), None)
    if all(name in features for name in wanted):
        request.unprocessed("arrays")
        columns = dataset.select_columns([*wanted, *([label] if label else [])])
        return from_values(columns, inputs, request.limit, None, str(path), request.room_bytes)
    dims, integer = len(inputs[0].shape or ()), inputs[0].numpy_dtype().kind in "iu"
    kind = "Image" if dims == 4 else "string" if integer else "Audio"
    columns_of_kind = [name for name, feature in features.items() if _kind(feature) == kind and name != label]
    if kind == "string" and len(columns_of_kind) > 1:
        columns_of_kind = [name for name in columns_of_kind if name in TEXT_KEYS]
    if len(columns_of_kind) != 1:
        has = ", ".join(f"{name} ({_kind(feature)})" for name, feature in features.items())
        raise BadData(
            f"{path} has the columns {has}; the model takes {', '.join(map(str, inputs))}: rename columns to the input "
            f"names, or keep one column of kind {kind}"
        )
    name = columns_of_kind[0]
    notes = left_out(str(path), [key for key in features if key not in (name, label)])
    if kind != "string":
        dataset = dataset.cast_column(name, type(features[name])(decode=False))
    labels = None if label is None else _labels(dataset[label], features[label], request.near)
    names = [str(index) for index in range(len(dataset))]
    take: Callable[[Any], Any] = (lambda value: value or "") if kind == "string" else _content
    items = SourceItems(names, dataset.select_columns([name]), labels, notes, lambda row: take(row[name]))
    return from_texts(request, items) if kind == "string" else from_media(request, items, sounds=kind == "Audio")


def from_media(request: SampleRequest, items: SourceItems, *, sounds: bool) -> Dataset:
    """Samples from images or sounds, preprocessed by the settings of the request, or the file next to the model, or
    else the defaults."""
    if request.preprocess is None:
        preprocess, text = preprocess_of(request.near, sounds=sounds)
        if preprocess is not None:
            request = replace(request, preprocess=preprocess if sounds else in_layout(preprocess, request.inputs))
            items = replace(items, notes=(*items.notes, Note(Kind.DATA, text)))
    return (from_sounds if sounds else from_images)(request, items)


def _content(entry: Any) -> Path | bytes:
    """The bytes or path of an image or sound that is not decoded yet."""
    if not isinstance(entry, dict) or not (entry.get("bytes") or entry.get("path")):
        raise BadData("an entry of the dataset has neither bytes nor a path: remove it")
    content: bytes | None = entry.get("bytes")
    if content:
        return content
    path = Path(entry["path"])
    if not path.is_file():  # reading a pipe would wait forever
        raise BadData(f"an entry in the dataset has no bytes and its path {path} is not a file: fix or remove it")
    return path


def _kind(feature: Any) -> str:
    """The name of a column's kind: Image, Audio, ClassLabel, or a type such as string and int64."""
    kind = str(getattr(feature, "dtype", "")) if type(feature).__name__ == "Value" else type(feature).__name__
    return "string" if kind == "large_string" else kind


def _labels(values: Any, feature: Any, near: Beside) -> Array:
    """Labels, with classes renumbered as in the model's config.json if it has numbers for them."""
    labels = one_array([np.asarray(value) for value in values])
    if _kind(feature) == "ClassLabel" and near.find("config.json"):
        numbers, source = class_numbers(feature.names, near)
        if source == "config.json":
            return np.asarray(np.array(numbers)[labels])
    return labels


def _opened(path: Path) -> Any:
    missing = f"{path} is a Hugging Face dataset, but datasets is not installed: pip install 'taglio[datasets]'"
    library = optional("datasets", missing)
    try:
        dataset = library.load_from_disk(str(path))
    except Exception as error:  # Arrow's errors have many classes, one of them Exception itself
        raise BadData(f"{path} cannot be read as a dataset ({one_line(error)}): save it again") from None
    if isinstance(dataset, dict):
        first = next(iter(dataset), "")
        raise BadData(f"{path} has the splits {', '.join(dataset)}: give one of them, such as {path}/{first}")
    return dataset
