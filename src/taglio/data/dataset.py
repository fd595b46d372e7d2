"""Samples that fit a model's inputs, in calibration and held-out parts. Reads no files, runs no model."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import overload

import numpy as np
from numpy.typing import NDArray

from taglio.data.spec import Array, Shape
from taglio.errors import BadData, plural
from taglio.memory import Shelf
from taglio.notes import Note

DEFAULT_LIMIT = 512
MAX_CALIBRATION = 128
LABEL_KEYS = ("label", "labels")

Sample = Mapping[str, Array]


class Samples(Sequence[Sample]):
    """Samples of which only some are in memory; the others are read on access."""

    def __init__(self, names: Sequence[str], room_bytes: float | None = None) -> None:
        """`names` are those of the inputs; samples beyond `room_bytes` (None: no limit) are kept in a file."""
        self._names, self._shelf = tuple(names), Shelf((), room_bytes)
        self._rows: list[int] = []

    def append(self, sample: Sample) -> None:
        """Add a sample at the end."""
        self._rows.append(len(self._shelf))
        self._shelf.append([sample[name] for name in self._names])

    def chosen(self, rows: Iterable[int]) -> "Samples":
        """The samples at `rows`."""
        selection = Samples(self._names)
        selection._shelf, selection._rows = self._shelf, [self._rows[row] for row in rows]
        return selection

    def joined(self, other: "Samples") -> "Samples":
        """These followed by `other`; both were chosen from the same samples."""
        both = Samples(self._names)
        both._shelf, both._rows = self._shelf, [*self._rows, *other._rows]  # noqa: SLF001 - the same class
        return both

    def shapes(self, row: int) -> dict[str, Shape]:
        """The shape of every input of a sample, without reading the sample."""
        return dict(zip(self._names, self._shelf.shapes(self._rows[row]), strict=True))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> "Samples": ...
    def __getitem__(self, index: int | slice) -> "Sample | Samples":
        if isinstance(index, slice):
            return self.chosen(range(*index.indices(len(self))))
        return dict(zip(self._names, self._shelf[self._rows[index]], strict=True))


def chosen(samples: Sequence[Sample], rows: Iterable[int]) -> Sequence[Sample]:
    """The samples at `rows`, without reading them."""
    return samples.chosen(rows) if isinstance(samples, Samples) else [samples[row] for row in rows]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Feeds that fit the model; they may differ in shape. Compare two by `sha256`; `==` is identity."""

    source: str  # DATA as the user gave it
    samples: Sequence[Sample]  # input name -> array that can be fed as it is; large datasets are read from a file
    names: tuple[str, ...]  # file name or row of each sample; "a.jpg..d.jpg" if a batch groups several
    labels: Array | None  # [samples, ...]; [samples, B, ...] if the model's batch B > 1 groups rows
    digests: tuple[bytes, ...]  # of each sample; equal for samples that repeat each other
    sha256: str  # covers input names, dtypes, shapes, values and labels; not file names
    dropped: int = 0  # images or rows not loaded: beyond the limit, or not enough for a batch
    notes: tuple[Note, ...] = ()  # what the user should know about how the data were read
    batch: int = 1  # images or rows that make one sample: the batch that the model fixes


@dataclass(frozen=True, slots=True)
class Split:
    """A dataset in disjoint, non-empty parts. Errors are studied, and plans searched, on `held_out`; `unseen` are
    further held-out inputs, which only the final acceptance of a plan sees (None where there are too few: unseen.py).
    """

    calibration: Dataset
    held_out: Dataset
    unseen: Dataset | None = None

    @property
    def all_held_out(self) -> Dataset:
        """`held_out`, and then `unseen`."""
        return self.held_out if self.unseen is None else joined(self.held_out, self.unseen)


def split(
    dataset: Dataset, seed: int = 0, max_calibration: int = MAX_CALIBRATION, max_held_out: int | None = None
) -> Split:
    """Draw disjoint, non-empty calibration and held-out parts, the same for the same seed.

    Calibration gets half, at most `max_calibration` samples; held-out gets the rest, at most `max_held_out`. Both are
    shuffled, so a prefix is a random subset. Raises BadData for fewer than 2 samples.
    """
    count = len(dataset.samples)
    if count < 2:
        batch = f" of {dataset.batch} rows, the model's batch" if dataset.batch > 1 else ""
        fix = "add samples" if not batch else "add rows, or export the model with a smaller or dynamic batch"
        raise BadData(f"{dataset.source} has {plural(count, 'sample')}{batch}; a split needs at least 2: {fix}")
    order = np.random.default_rng(seed).permutation(count)
    calibration_count = min(round(count / 2), max_calibration)
    return Split(part(dataset, order[:calibration_count]), part(dataset, order[calibration_count:][:max_held_out]))


def part(dataset: Dataset, rows: Sequence[int] | NDArray[np.intp]) -> Dataset:
    """The samples of `dataset` at `rows`."""
    labels = None if dataset.labels is None else dataset.labels[np.asarray(rows, np.intp)]
    digests = tuple(dataset.digests[row] for row in rows)
    return replace(
        dataset,
        samples=chosen(dataset.samples, map(int, rows)),
        names=tuple(dataset.names[row] for row in rows),
        labels=labels,
        digests=digests,
        sha256=content_sha256(digests, labels),
    )


def joined(first: Dataset, second: Dataset) -> Dataset:
    """Two parts of one dataset as one, in this order."""
    first_samples, second_samples = first.samples, second.samples
    both = (
        first_samples.joined(second_samples)
        if isinstance(first_samples, Samples) and isinstance(second_samples, Samples)
        else (*first_samples, *second_samples)
    )
    labels = None
    if first.labels is not None and second.labels is not None:
        labels = np.concatenate([first.labels, second.labels])
    digests = (*first.digests, *second.digests)
    sha256 = content_sha256(digests, labels)
    names = (*first.names, *second.names)
    return replace(first, samples=both, names=names, labels=labels, digests=digests, sha256=sha256)


def shapes_of(sample: Sample) -> dict[str, Shape]:
    """The shape of every input of one sample."""
    return {name: array.shape for name, array in sample.items()}


def typical(samples: Sequence[Sample]) -> list[int]:
    """Indices of the samples with the most frequent shapes; if several are equally frequent, with the largest."""
    keys = _shapes(samples)
    counts = Counter(keys)
    sizes = {key: sum(prod(shape) for _, shape in key) for key in keys}
    best = max(counts, key=lambda key: (counts[key], sizes[key]))
    return [index for index, key in enumerate(keys) if key == best]


def spread(samples: Sequence[Sample], count: int) -> list[int]:
    """Indices of `count` samples with about the distribution of shapes of all samples: evenly spaced in order of
    size."""
    keys = _shapes(samples)
    order = sorted(range(len(keys)), key=lambda index: (sum(prod(shape) for _, shape in keys[index]), keys[index]))
    most = min(count, len(keys))
    return [order[(2 * index + 1) * len(keys) // (2 * most)] for index in range(most)]


def one_of_each(samples: Sequence[Sample]) -> list[int]:
    """The first sample of every combination of shapes."""
    first: dict[tuple[tuple[str, Shape], ...], int] = {}
    for index, key in enumerate(_shapes(samples)):
        first.setdefault(key, index)
    return list(first.values())


def _shapes(samples: Sequence[Sample]) -> list[tuple[tuple[str, Shape], ...]]:
    if isinstance(samples, Samples):
        return [tuple(samples.shapes(row).items()) for row in range(len(samples))]
    return [tuple(shapes_of(sample).items()) for sample in samples]


def checked_labels(where: str, labels: Array, count: int) -> Array:
    """`labels`, one per row: numbers, text, or an array each. Raises BadData for other types, NaN or infinity, or if
    there are not `count`. The metric checks what a label must be."""
    if labels.ndim == 0 or len(labels) != count:
        raise BadData(
            f"{where} has labels {list(labels.shape)} for {plural(count, 'sample')}: save one label per sample"
        )
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8", "replace")
    arrays = list(labels) if labels.dtype == object else [labels]
    for label in (np.asarray(value) for value in arrays):
        if label.dtype.kind not in "fiubU":
            raise BadData(f"{where} has labels of type {label.dtype}: save numbers or text")
        if label.dtype.kind == "f" and (bad := np.count_nonzero(~np.isfinite(label))):
            raise BadData(f"{where} has {bad} NaN or infinite labels among {label.size}: repair or remove them")
    return labels


def grouped(where: str, labels: Array, rows: int, batch: int, keep: Sequence[int]) -> Array:
    """The labels of the samples at `keep`, of `batch` rows each, from one label for each of `rows`."""
    labels, count = checked_labels(where, labels, rows), rows // batch
    lead = (count, batch) if batch > 1 else (count,)
    return labels[: count * batch].reshape(*lead, *labels.shape[1:])[np.asarray(keep, np.intp)]


def one_array(labels: Sequence[Array]) -> Array:
    """Labels as one array if they share a shape; otherwise, as for boxes, an array of arrays."""
    if len({label.shape for label in labels}) == 1:
        return np.stack(labels)
    array = np.empty(len(labels), object)
    for index, label in enumerate(labels):
        array[index] = label
    return array


def assemble(
    source: str,
    samples: Sequence[Sample],
    names: Sequence[str],
    labels: Array | None,
    dropped: int = 0,
    notes: Sequence[Note] = (),
) -> Dataset:
    """A dataset of these samples, which are read for the hash of its content."""
    own_samples = samples if isinstance(samples, Samples) else tuple(samples)
    digests = tuple(map(_digest, own_samples))
    sha256 = content_sha256(digests, labels)
    return Dataset(source, own_samples, tuple(names), labels, digests, sha256, dropped, tuple(notes))


def content_sha256(digests: Sequence[bytes], labels: Array | None) -> str:
    """The hash of the samples with these `digests` and of their `labels`."""
    content = hashlib.sha256(b"".join(digests))
    for label in () if labels is None else labels:
        content.update(_digest({"label": np.asarray(label)}))
    return content.hexdigest()


def _digest(sample: Sample) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(sample):
        value = np.ascontiguousarray(sample[name])
        digest.update(f"{name!r} {value.dtype.str} {value.shape}".encode())
        digest.update(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
    return digest.digest()


def evenly(count: int, limit: int) -> list[int]:
    """At most `limit` distinct indices, evenly spaced over range(count), the first and last among them."""
    most = min(count, limit)
    return [i * (count - 1) // max(most - 1, 1) for i in range(most)]


def span(first: str, last: str) -> str:
    """The name of a group of items: "first..last", or "first" if both are equal."""
    return first if first == last else f"{first}..{last}"


def covering(samples: Sequence[Sample]) -> Sequence[Sample]:
    """All of `samples`, starting with one of each combination of shapes."""
    return chosen(samples, covering_rows(samples))


def covering_rows(samples: Sequence[Sample]) -> list[int]:
    """The indices of `samples`, starting with one of each combination of shapes."""
    first = one_of_each(samples)
    return [*first, *sorted(set(range(len(samples))) - set(first))]
