"""A file of labels → one label per sample of a dataset. Knows no metric: the metric checks what a label must be."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from taglio.data.arrays import read_columns, reading
from taglio.data.dataset import LABEL_KEYS, Dataset, checked_labels, content_sha256, evenly, one_array
from taglio.data.spec import Array
from taglio.data.table import TABLE_SUFFIXES, as_labels, read_lines, read_table
from taglio.errors import BadData, one_line, plural

# Column names in tables of labels: for classes (besides LABEL_KEYS) and for file names.
_CLASSES = ("class", "class_id", "target")
_NAMES = ("file_name", "filename", "file", "image", "path", "name", "id")


def with_labels(dataset: Dataset, path: Path) -> Dataset:
    """`dataset` with the labels in a file, which is one of:

    * .txt: a text per line, or "name TAB text";
    * .json: texts, numbers or arrays, in a list or in an object by the sample's file name;
    * .csv or .tsv: a table with a column `label`, and optionally one of file names;
    * .npy or .npz: an array.

    Without file names there is a label for every sample of the source in order, including those that were not loaded.
    Raises BadData, naming the line or sample, for a wrong number of labels or labels that cannot be read.
    """
    file_labels = _read(path)
    if isinstance(file_labels, Mapping):
        lacking = [name for name in dataset.names if name not in file_labels]
        if lacking:
            more = f" and {plural(len(lacking) - 1, 'other sample')}" if len(lacking) > 1 else ""
            raise BadData(f"{path} has no label for {lacking[0]}{more}: add the missing labels")
        sample_labels = [file_labels[name] for name in dataset.names]
    else:
        count, batch = len(dataset.samples), dataset.batch
        rows = count * batch + dataset.dropped
        if len(file_labels) != rows:
            raise BadData(
                f"{path} has {plural(len(file_labels), 'label')} for {plural(rows, 'sample')} of {dataset.source}: "
                "give one per sample"
            )
        first = [index * batch for index in evenly(rows // batch, count)]
        sample_labels = [file_labels[row] if batch == 1 else np.stack(file_labels[row : row + batch]) for row in first]
    labels = checked_labels(str(path), one_array(sample_labels), len(sample_labels))
    return replace(dataset, labels=labels, sha256=content_sha256(dataset.digests, labels))


def _read(path: Path) -> Sequence[Array] | Mapping[str, Array]:
    if not path.is_file():
        raise BadData(f"labels {path}: no such file: give a .txt, .json, .csv, .npy or .npz")
    match path.suffix.lower():
        case ".txt":
            return _lines(path)
        case ".json":
            return _json(path)
        case suffix if suffix in TABLE_SUFFIXES:
            return _table(path)
        case ".npy" | ".npz":
            with reading(path):
                columns = read_columns(path)
                key = next((key for key in (*LABEL_KEYS, "") if key in columns), next(iter(columns), None))
                if key is None or (len(columns) > 1 and key not in LABEL_KEYS):
                    raise BadData(f"labels {path} has the keys {list(columns)}: save one array, named label")
                return list(columns[key].whole())
    raise BadData(f"labels {path}: give a .txt, .json, .csv, .npy or .npz")


def _lines(path: Path) -> Sequence[Array] | Mapping[str, Array]:
    lines = read_lines(path)
    parts = [line.partition("\t") for line in lines]
    if lines and all(tab for _, tab, _ in parts):
        return {Path(name).name: np.array(label) for name, _, label in parts}
    return [np.array(line) for line in lines]


def _table(path: Path) -> Sequence[Array] | Mapping[str, Array]:
    """Labels of a table, by file name if it has a column of names: without a header, the first of two columns."""
    columns = read_table(path, (*LABEL_KEYS, *_CLASSES, *_NAMES))
    keys = [*columns]
    label = next((key for key in (*LABEL_KEYS, *_CLASSES) if key in columns), None)
    name = next((key for key in _NAMES if key in columns), None)
    if label is None and len(keys) <= 2:
        other_keys = [key for key in keys if key != name]
        name, label = (name, other_keys[-1]) if name or len(keys) == 1 else (keys[0], keys[1])
    if label is None:
        raise BadData(
            f"labels {path} has {plural(len(keys), 'column')}: name the column of labels {LABEL_KEYS[0]!r} in a "
            "header row"
        )
    labels = as_labels(columns[label])
    return (
        labels
        if name is None
        else {Path(file_name).name: row_label for file_name, row_label in zip(columns[name], labels, strict=True)}
    )


def _json(path: Path) -> Sequence[Array] | Mapping[str, Array]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadData(f"labels {path} cannot be read as JSON ({one_line(error)}): correct the file") from None
    if isinstance(value, dict):
        return {str(name): _label(path, name, label) for name, label in value.items()}
    if not isinstance(value, list):
        raise BadData(f"labels {path}: give a list with one label per sample, or an object by file name")
    return [_label(path, index, label) for index, label in enumerate(value)]


def _label(path: Path, which: object, value: Any) -> Array:
    """One label as an array; an empty list (no boxes) has shape [0, 5]."""
    try:
        label = np.array(value)
    except ValueError:
        label = np.array(None)
    if label.dtype.kind not in "fiubU":
        raise BadData(f"labels {path}: label {which} is {str(value)[:60]!r}: give text, numbers, or rows of one length")
    return label if label.size or label.ndim != 1 else np.zeros((0, 5))
