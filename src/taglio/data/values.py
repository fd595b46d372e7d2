"""Values in memory → samples: arrays, tensors, lists and iterables of them, loaders and datasets of other libraries.

None of those libraries is imported: anything with `detach` counts as a tensor.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from taglio.data.arrays import Column, Named, by_input, from_columns, one_sample
from taglio.data.dataset import DEFAULT_LIMIT, LABEL_KEYS, Dataset, assemble, checked_labels, evenly, one_array
from taglio.data.items import SampleRequest, left_out
from taglio.data.spec import TEXT, Array, InputSpec, batch_symbol
from taglio.errors import BadData, plural
from taglio.notes import Note


def from_values(
    values: Any,
    inputs: Sequence[InputSpec],
    limit: int = DEFAULT_LIMIT,
    labels: Any = None,
    source: str = "data",
    room_bytes: float | None = None,
) -> Dataset:
    """Samples from an array [N, *sample], from such arrays by input name, or from an iterable of samples.

    Samples that differ in shape come as a list per input. A sample of an iterable is an array, arrays by input name, or
    arrays in the order of the inputs, optionally followed by a label; `labels` [N] are for values without labels. If
    the model's batch is fixed at 1, batches (as loaders give) are split into samples; if it is dynamic, they stay
    whole. At most `limit` samples are kept: evenly spaced if the length is known, the first ones of a generator.
    Samples beyond `room_bytes` (None: no limit) are kept in a file. `source` names the values in errors.
    Raises BadData for values that do not fit the model.
    """
    request = SampleRequest(f"`{source}`", inputs, limit, room_bytes)
    all_labels = None if labels is None else _labels(labels)
    values = (
        {key: _unboxed(column) for key, column in values.items()} if isinstance(values, Mapping) else _unboxed(values)
    )
    if isinstance(values, Mapping) and any(map(_ragged, values.values())):
        return _from_items(request, _rows(values, source), all_labels)
    if isinstance(values, Mapping):
        columns = {str(key): Column(_array(value, f"`{source}`[{key!r}]")) for key, value in values.items()}
    elif hasattr(values, "__array__") or hasattr(values, "detach"):
        columns = {"": Column(_array(values, f"`{source}`"))}
    elif isinstance(values, (str, bytes)) or not (hasattr(values, "__iter__") or hasattr(values, "__getitem__")):
        raise BadData(
            f"`{source}` has the type {type(values).__name__}: give arrays by input name, or an iterable of samples"
        )
    else:
        return _from_items(request, values, all_labels)
    if all_labels is not None:
        if any(key in LABEL_KEYS for key in columns):
            raise BadData(f"`{source}` already holds labels: leave `labels` out")
        columns[LABEL_KEYS[0]] = Column(all_labels)
    return from_columns(request, columns)


class Feeder:
    """Turns one sample after another into feeds by input name. Arrays of the type and shape that an input took before
    pass as they are: their values are not read, because that takes longer than a small network runs. May be called from
    several threads."""

    def __init__(self, inputs: Sequence[InputSpec]) -> None:
        self._inputs, self._symbol = tuple(inputs), batch_symbol(inputs)
        self._names = frozenset(spec.name for spec in inputs)
        # Type and shape of the array that each input took last. Text is always checked: any object passes for it.
        self._last = {spec.name: (spec.numpy_dtype(), spec.shape) for spec in inputs if spec.dtype != TEXT}

    def __call__(self, sample: Any) -> Mapping[str, Array]:
        """`sample` is arrays by input name, or one array for a model with one input; the batch dimension may be
        missing. Raises BadData for a sample that does not fit."""
        feed = sample if type(sample) is dict else {self._inputs[0].name: sample}
        if feed.keys() == self._names:
            last = self._last
            for name, array in feed.items():
                if type(array) is not np.ndarray or (array.dtype, array.shape) != last.get(name):
                    break
            else:
                return feed
        arrays = _named("`sample`", sample, self._inputs).arrays
        feed = {
            spec.name: one_sample("`sample`", spec, arrays[spec.name].whole(), self._symbol) for spec in self._inputs
        }
        self._last |= {name: (array.dtype, array.shape) for name, array in feed.items() if name in self._last}
        return feed


def _from_items(request: SampleRequest, values: Iterable[Any], all_labels: Array | None) -> Dataset:
    source, inputs, limit, symbol = request.source, request.inputs, request.limit, batch_symbol(request.inputs)
    samples = request.samples()
    names: list[str] = []
    labels: list[Array] = []
    notes: dict[Note, None] = {}
    indexed_items, total = _chosen(values, limit)
    if all_labels is not None and (total or all_labels.ndim == 0):
        checked_labels(source, all_labels, total)
    for index, item in indexed_items:
        where = f"{source}[{index}]"
        named = _named(where, item, inputs)
        notes |= dict.fromkeys(replace(note, text=note.text.replace(where, source)) for note in named.notes)
        arrays = {name: column.whole() for name, column in named.arrays.items()}
        label = None if named.labels is None else named.labels.whole()
        if all_labels is not None:
            label = all_labels[index] if index < len(all_labels) else None
        for piece, feed in enumerate(_taken_apart(inputs, arrays)):
            sample = {spec.name: one_sample(where, spec, feed[spec.name], symbol) for spec in inputs}
            # An iterator may reuse one buffer for all its items.
            samples.append(sample if total else {name: array.copy() for name, array in sample.items()})
            names.append(str(index) if feed is arrays else f"{index}.{piece}")
            if label is not None:
                labels.append(label if feed is arrays or label.ndim == 0 else label[piece])
        if len(samples) >= limit:
            break
    samples, names, labels = samples[:limit], names[:limit], labels[:limit]
    if not samples:
        raise BadData(f"{source} has no samples: a generator gives its values only once, so make a new one per use")
    stacked = checked_labels(source, one_array(labels), len(samples)) if labels else None
    return assemble(source, samples, names, stacked, max(0, total - len(samples)), [*notes])


def _chosen(values: Iterable[Any], limit: int) -> tuple[Iterator[tuple[int, Any]], int]:
    """The items to use, with their indices, and how many items there are (0 if unknown)."""
    try:
        total = len(values)  # type: ignore[arg-type]
    except TypeError:
        return islice(enumerate(values), limit), 0
    if not hasattr(values, "__getitem__"):
        return islice(enumerate(values), limit), total
    return ((index, values[index]) for index in evenly(total, limit)), total


def _named(where: str, item: Any, inputs: Sequence[InputSpec]) -> Named:
    if isinstance(item, Mapping):
        wanted = {spec.name for spec in inputs}
        # Columns that are not inputs may hold anything; they are not converted to arrays.
        values_by_key = {str(key): value for key, value in item.items() if key in wanted or _is_array_like(value)}
        unknown = [key for key in item if str(key) not in values_by_key]
        columns = {key: Column(_array(value, f"{where}[{key!r}]")) for key, value in values_by_key.items()}
        named = by_input(where, columns, inputs)
        return replace(named, notes=(*named.notes, *left_out(where, unknown)))
    is_sequence_of_arrays = isinstance(item, (tuple, list)) and any(
        isinstance(element, np.ndarray) or hasattr(element, "detach") for element in item
    )
    if not is_sequence_of_arrays:
        return by_input(where, {"": Column(_array(item, where))}, inputs)
    if len(item) not in (len(inputs), len(inputs) + 1):
        names = ", ".join(spec.name for spec in inputs)
        raise BadData(
            f"{where} has {plural(len(item), 'value')}; the model takes {names}: give those, and optionally a label"
        )
    arrays = {
        spec.name: Column(_array(element, f"{where}: {spec.name}")) for spec, element in zip(inputs, item, strict=False)
    }
    labels = Column(_array(item[-1], f"{where}: label")) if len(item) > len(inputs) else None
    return Named(arrays, labels, ())


def _taken_apart(inputs: Sequence[InputSpec], arrays: dict[str, Array]) -> Iterator[dict[str, Array]]:
    """The item itself, or its rows if it is a batch and the model's batch is 1."""
    fixed = all(spec.shape and spec.shape[0] == 1 for spec in inputs)
    batch_sizes = {len(batch) for spec in inputs if (batch := arrays[spec.name]).ndim == len(spec.shape or ()) > 0}
    if not fixed or len(batch_sizes) != 1 or batch_sizes == {1} or any(array.ndim == 0 for array in arrays.values()):
        yield arrays
        return
    for row in range(batch_sizes.pop()):
        yield {name: array[row : row + 1] for name, array in arrays.items()}


def _unboxed(column: Any) -> Any:
    """The list of the arrays in an array of arrays; anything else as it is."""
    boxes = (
        isinstance(column, np.ndarray) and column.dtype == object and any(np.ndim(element) for element in column.flat)
    )
    return list(column) if boxes else column


def _labels(labels: Any) -> Array:
    """Labels as one array, or if they differ in shape, as for boxes, as an array of arrays."""
    column = _unboxed(labels)
    if _ragged(column):
        return one_array([_array(label, f"`labels`[{index}]") for index, label in enumerate(column)])
    return _array(column, "`labels`")


def _ragged(column: Any) -> bool:
    """Whether a column is a list of samples that differ in shape."""
    try:
        return isinstance(column, (list, tuple)) and len({np.shape(sample) for sample in column}) > 1
    except ValueError:  # a sample is itself ragged
        return True


def _rows(columns: Mapping[Any, Any], source: str) -> list[dict[str, Any]]:
    for key, column in columns.items():
        if not hasattr(column, "__len__") or getattr(column, "ndim", 1) == 0:
            raise BadData(
                f"`{source}`[{key!r}] is a single {type(column).__name__}: give a list of one for each sample"
            )
    counts = {str(key): len(column) for key, column in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        raise BadData(f"`{source}` has different numbers of samples ({listed}): give the same number for each")
    return [dict(zip(counts, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _is_array_like(value: Any) -> bool:
    return hasattr(value, "__array__") or hasattr(value, "detach") or isinstance(value, (list, int, float, bool))


def _array(value: Any, where: str) -> Array:
    if hasattr(value, "detach"):  # a tensor, which may have a gradient or be on another device
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        why = type(error).__name__
        raise BadData(f"{where} is not an array of one shape ({why}): give one array per sample") from error
    if array.dtype == object and not all(isinstance(element, str) for element in array.flat):
        raise BadData(f"{where} holds objects, not numbers: give an array of numbers")
    return array
