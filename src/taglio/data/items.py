"""Items of one kind, such as files or texts → samples: choose and group them. Reads no item itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taglio.data.dataset import Dataset, Sample, Samples, assemble, checked_labels, evenly, span
from taglio.data.spec import Array, InputSpec


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """The items of a source, in order: `values` are what their reader takes, `labels` has one per item."""

    source: str
    names: Sequence[str]
    values: Sequence[Any]
    labels: Array | None = None
    remarks: tuple[str, ...] = ()


def from_items(
    items: Items,
    inputs: Sequence[InputSpec],
    batch: int,
    make: Callable[[Sequence[str], Sequence[Any]], Sample],
    limit: int,
    room_bytes: float | None,
) -> Dataset:
    """At most `limit` samples, evenly spaced; `make` builds each from the names and values of `batch` items."""
    count = len(items.values) // batch
    keep = evenly(count, limit)
    samples, names = Samples([spec.name for spec in inputs], room_bytes), []
    for group in keep:
        rows = range(group * batch, (group + 1) * batch)
        members = [items.names[row] for row in rows]
        names.append(span(members[0], members[-1]))
        samples.append(make(members, [items.values[row] for row in rows]))
    labels = items.labels
    if labels is not None:
        labels = checked_labels(items.source, labels, len(items.values))
        lead = (count, batch) if batch > 1 else (count,)
        labels = labels[: count * batch].reshape(*lead, *labels.shape[1:])[np.asarray(keep, np.intp)]
    dropped = len(items.values) - batch * len(keep)
    return assemble(items.source, samples, names, labels, dropped, items.remarks)
