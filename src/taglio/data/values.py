"""Values in memory → samples: arrays, tensors, lists and iterables of them, loaders and datasets of other libraries.

Nothing is imported for them: what has `detach` is taken for a tensor, what can be iterated for an iterable.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from taglio.data.arrays import Column, Named, by_input, from_columns, one_sample
from taglio.data.dataset import Dataset, assemble, checked_labels, checked_limit, evenly
from taglio.data.spec import Array, InputSpec, batch_symbol
from taglio.errors import BadData

_SOURCE = "data"


def from_values(values: Any, inputs: Sequence[InputSpec], limit: int | None = None) -> Dataset:
    """Samples from an array [N, *sample], from such arrays by input name, or from an iterable of samples.

    A sample of an iterable is an array, arrays by input name, or arrays in the order of the inputs, perhaps with a
    label behind them. Where the model fixes its batch, several in one (as loaders give) are taken apart; where its
    batch is dynamic, they stay together. At most `limit` samples (None: 512) are kept: evenly spaced where the length
    is known, the first ones of a generator. Raises BadData for values that do not fit the model.
    """
    at_most = checked_limit(limit, inputs, _SOURCE)
    if isinstance(values, Mapping):
        columns = {str(key): Column(_array(value, f"data[{key!r}]")) for key, value in values.items()}
        return from_columns(_SOURCE, columns, inputs, at_most)
    if isinstance(values, np.ndarray) or hasattr(values, "detach"):
        return from_columns(_SOURCE, {"": Column(_array(values, _SOURCE))}, inputs, at_most)
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise BadData(f"data is a {type(values).__name__}: give arrays by input name, or an iterable of samples")
    return _from_items(values, inputs, at_most)


def _from_items(values: Iterable[Any], inputs: Sequence[InputSpec], limit: int) -> Dataset:
    symbol = batch_symbol(inputs)
    samples: list[dict[str, Array]] = []
    names: list[str] = []
    labels: list[Array] = []
    remarks: dict[str, None] = {}
    chosen, total = _chosen(values, limit)
    for index, item in chosen:
        where = f"data[{index}]"
        named = _named(where, item, inputs)
        remarks |= dict.fromkeys(remark.replace(where, _SOURCE) for remark in named.remarks)
        arrays = {name: column.whole() for name, column in named.arrays.items()}
        label = None if named.labels is None else named.labels.whole()
        for piece, feed in enumerate(_taken_apart(inputs, arrays)):
            samples.append({spec.name: one_sample(where, spec, feed[spec.name], symbol) for spec in inputs})
            names.append(str(index) if feed is arrays else f"{index}.{piece}")
            if label is not None:
                labels.append(label if feed is arrays else label[piece])
        if len(samples) >= limit:
            break
    samples, names, labels = samples[:limit], names[:limit], labels[:limit]
    if not samples:
        raise BadData("data has no samples: a generator gives its values once, so make it anew for each use")
    if labels and (len(labels) != len(samples) or len({label.shape for label in labels}) > 1):
        raise BadData(f"data has {len(labels)} labels for {len(samples)} samples, or of several shapes: give one each")
    stacked = checked_labels(_SOURCE, np.stack(labels), len(samples)) if labels else None
    return assemble(_SOURCE, samples, names, stacked, max(0, total - len(samples)), [*remarks])


def _chosen(values: Iterable[Any], limit: int) -> tuple[Iterator[tuple[int, Any]], int]:
    """The items to look at by index, and how many there are (0 where that is not known)."""
    try:
        total = len(values)  # type: ignore[arg-type]
    except TypeError:
        return islice(enumerate(values), limit), 0
    if total <= limit or not hasattr(values, "__getitem__"):
        return islice(enumerate(values), limit), total
    return ((index, values[index]) for index in evenly(total, limit)), total


def _named(where: str, item: Any, inputs: Sequence[InputSpec]) -> Named:
    if isinstance(item, Mapping):
        wanted = {spec.name for spec in inputs}
        # Columns that are no input may hold anything, which need not become an array.
        known = {str(key): value for key, value in item.items() if key in wanted or _is_array_like(value)}
        left_out = [key for key in item if str(key) not in known]
        found = {key: Column(_array(value, f"{where}[{key!r}]")) for key, value in known.items()}
        named = by_input(where, found, inputs, extra=True)
        more = f"{where}: {', '.join(map(repr, left_out))} is no input of the model, and was left out"
        return Named(named.arrays, named.labels, (*named.remarks, more) if left_out else named.remarks)
    several = isinstance(item, (tuple, list)) and any(
        isinstance(each, np.ndarray) or hasattr(each, "detach") for each in item
    )
    if not several:
        return by_input(where, {"": Column(_array(item, where))}, inputs)
    if len(item) not in (len(inputs), len(inputs) + 1):
        told = ", ".join(spec.name for spec in inputs)
        raise BadData(f"{where} has {len(item)} values, the model takes {told}: give those, and perhaps a label")
    arrays = {
        spec.name: Column(_array(each, f"{where}: {spec.name}")) for spec, each in zip(inputs, item, strict=False)
    }
    labels = Column(_array(item[-1], f"{where}: label")) if len(item) > len(inputs) else None
    return Named(arrays, labels, ())


def _taken_apart(inputs: Sequence[InputSpec], arrays: dict[str, Array]) -> Iterator[dict[str, Array]]:
    """The item itself, or its rows where it holds several of what the model takes one at a time."""
    fixed = all(spec.shape and spec.shape[0] == 1 for spec in inputs)
    several = {len(arrays[spec.name]) for spec in inputs if arrays[spec.name].ndim == len(spec.shape or ())}
    if not fixed or len(several) != 1 or several == {1} or any(array.ndim == 0 for array in arrays.values()):
        yield arrays
        return
    for row in range(several.pop()):
        yield {name: array[row : row + 1] for name, array in arrays.items()}


def _is_array_like(value: Any) -> bool:
    return hasattr(value, "__array__") or hasattr(value, "detach") or isinstance(value, (list, int, float, bool))


def _array(value: Any, where: str) -> Array:
    if hasattr(value, "detach"):  # a tensor: perhaps with a gradient, perhaps on another device
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        why = type(error).__name__
        raise BadData(f"{where} is not an array of one shape ({why}): give one array per sample") from error
    if array.dtype == object and not all(isinstance(each, str) for each in array.flat):
        raise BadData(f"{where} holds objects, not numbers: give an array of numbers")
    return array
