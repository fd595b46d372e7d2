"""Items of one kind, such as files or texts → samples: choose and group them. Reads no item itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from taglio.data.dataset import Dataset, Sample, Samples, assemble, evenly, grouped, span
from taglio.data.spec import Array, InputSpec
from taglio.errors import BadData


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
    what: str,
    inputs: Sequence[InputSpec],
    batch: int,
    make: Callable[[Sequence[str], Sequence[Any]], Sample],
    limit: int,
    room_bytes: float | None,
) -> Dataset:
    """At most `limit` samples, evenly spaced; `make` builds each from the names and values of `batch` items, which are
    images or whatever `what` calls them. Raises BadData for fewer items than a batch."""
    if len(items.values) < batch:
        raise BadData(f"{items.source} has {len(items.values)} {what}; the model's batch is {batch}: add some")
    keep = evenly(len(items.values) // batch, limit)
    samples, names = Samples([spec.name for spec in inputs], room_bytes), []
    for group in keep:
        rows = range(group * batch, (group + 1) * batch)
        members = [items.names[row] for row in rows]
        names.append(span(members[0], members[-1]))
        samples.append(make(members, [items.values[row] for row in rows]))
    total = len(items.values)
    labels = None if items.labels is None else grouped(items.source, items.labels, total, batch, keep)
    return assemble(items.source, samples, names, labels, total - batch * len(keep), items.remarks)
