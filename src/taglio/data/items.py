"""A request for samples; and items of one kind, such as files or texts → samples. Reads no item itself."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from taglio.data.dataset import Dataset, Sample, Samples, assemble, evenly, grouped, span
from taglio.data.preprocess import Preprocess
from taglio.data.processor import Beside
from taglio.data.spec import Array, InputSpec
from taglio.errors import BadData, BadOption, plural
from taglio.notes import Kind, Note


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request to a reader: samples of `source` for a model's `inputs`, at most `limit`; those beyond `room_bytes`
    (None: no limit) are kept in a file. `preprocess` is for images and sounds, `near` has the model's other files.
    Raises BadData for a model that cannot be fed."""

    source: str
    inputs: Sequence[InputSpec]
    limit: int
    room_bytes: float | None = None
    preprocess: Preprocess | None = None
    near: Beside = field(default_factory=Beside)

    def __post_init__(self) -> None:
        if not self.inputs:
            raise BadData(f"{self.source}: the model has no inputs, so no data can be fed to it")
        for spec in self.inputs:
            spec.numpy_dtype()

    def samples(self) -> Samples:
        """Where samples are kept; none yet."""
        return Samples([spec.name for spec in self.inputs], self.room_bytes)

    def unprocessed(self, what: str) -> None:
        """Raises BadOption if preprocessing is given for `what`, which has none."""
        if self.preprocess is not None:
            raise BadOption(f"{self.source}: `preprocess` is for images and sounds, not for {what}: leave it out")


@dataclass(frozen=True, slots=True, eq=False)
class SourceItems:
    """The items of a source, in order: `take` turns one of `values` into the argument of their reader, when it is
    needed; `labels` has one per item."""

    names: Sequence[str]
    values: Sequence[Any]
    labels: Array | None = None
    notes: tuple[Note, ...] = ()
    take: Callable[[Any], Any] = lambda value: value


def left_out(where: str, keys: Iterable[object]) -> tuple[Note, ...]:
    """A note on the arrays or columns of `where` that no input reads, if there are any."""
    names = ", ".join(map(repr, keys))
    text = f"{where}: left out {names}, not among the model's required inputs"
    return (Note(Kind.FACT, text),) if names else ()


def from_items(
    request: SampleRequest, items: SourceItems, what: str, make: Callable[[Sequence[str], Sequence[Any]], Sample]
) -> Dataset:
    """Evenly spaced samples; `make` builds a sample from the names and values of the items of a batch; `what` is an
    item in errors, such as "image". Raises BadData for fewer items than a batch."""
    total, batch = len(items.values), request.inputs[0].sizes()[0]
    if total < batch:
        raise BadData(f"{request.source} has {plural(total, what)}; the model's batch is {batch}: add some")
    keep = evenly(total // batch, request.limit)
    samples, names = request.samples(), []
    for group in keep:
        rows = range(group * batch, (group + 1) * batch)
        members = [items.names[row] for row in rows]
        names.append(span(members[0], members[-1]))
        samples.append(make(members, [items.take(items.values[row]) for row in rows]))
    labels = None if items.labels is None else grouped(request.source, items.labels, total, batch, keep)
    dataset = assemble(request.source, samples, names, labels, total - batch * len(keep), items.notes)
    return replace(dataset, batch=batch)
