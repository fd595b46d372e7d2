"""Arrays → samples: group entries, add the batch dimension, convert the type.

Only the entries that are used are read, one by one: a file may be larger than memory.
"""

import lzma
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from taglio.data.dataset import LABEL_KEYS, Dataset, assemble, evenly, grouped, span
from taglio.data.items import SampleRequest, left_out
from taglio.data.spec import TEXT, Array, InputSpec, batch_symbol, matches, missing_batch, shown
from taglio.errors import BadData, one_line, plural
from taglio.memory import free_bytes
from taglio.notes import Kind, Note

# Keys of a file that an error lists.
_KEYS = 6
_UNREADABLE = (
    OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, MemoryError
)  # fmt: skip


class Column:
    """An array [N, ...] that is read entry by entry."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def entries(self, indices: Iterable[int]) -> Iterator[Array]:
        """Copies of the entries at `indices`, which ascend."""
        for index in indices:
            yield np.array(self._array[index, ...], order="C")

    def whole(self) -> Array:
        """The whole array."""
        return np.asarray(self._array)


class Stored(Column):
    """A member of an .npz, read as a stream."""

    def __init__(self, path: Path, member: str) -> None:
        self._path, self._member = path, member
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            self.shape, self._by_column, self.dtype = _header(stream)
            self._start = stream.tell()
        _refuse_pickled(member, self.dtype)

    def entries(self, indices: Iterable[int]) -> Iterator[Array]:
        """Copies of the entries at `indices`, which ascend."""
        if self._by_column or not self.shape:
            yield from Column(self.whole()).entries(indices)
            return
        shape, size = self.shape[1:], self.dtype.itemsize * prod(self.shape[1:])
        with zipfile.ZipFile(self._path) as archive, archive.open(self._member) as stream:
            _fits_memory(self._member, size)
            for index in indices:
                stream.seek(self._start + index * size)
                data = bytearray(stream.read(size))
                if len(data) < size:
                    raise ValueError(f"{self._member} is cut short")
                yield np.frombuffer(data, self.dtype).reshape(shape) if size else np.empty(shape, self.dtype)

    def whole(self) -> Array:
        """The whole array."""
        _fits_memory(self._member, self.dtype.itemsize * prod(self.shape))
        with zipfile.ZipFile(self._path) as archive, archive.open(self._member) as stream:
            array: Array = np.lib.format.read_array(stream, allow_pickle=False)
            return array


def _refuse_pickled(name: str, dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise ValueError(
            f"{name}: Object arrays are pickled, which is refused: save arrays of numbers, or a file per sample if "
            "samples differ in shape"
        )


def _fits_memory(name: str, size: int) -> None:
    """Raise ValueError for more bytes than are free: a compressed file can claim a thousand times its own size."""
    if size > (free := free_bytes()):
        raise ValueError(f"{name}: {size:,} bytes are needed at once, and {free:,} are free")


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f".npy version {version} is not supported, only 1.0 and 2.0")
    try:
        shape, by_column, dtype = readers[version](stream)
    except Exception as error:  # of many kinds, such as TokenError: NumPy parses it as Python
        raise ValueError(f"its header is damaged: {one_line(error)}") from error
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"its header is damaged: shape {list(shape)}")
    return shape, by_column, dtype


def read_columns(path: Path) -> dict[str, Column]:
    """The arrays of an .npz by key, or that of an .npy under "". Raises BadData for any other file."""
    with reading(path):
        if path.suffix.lower() == ".npy":
            with path.open("rb") as stream:
                _refuse_pickled(path.name, _header(stream)[2])
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if not isinstance(array, np.ndarray):
                raise ValueError("an .npz file named .npy")
            return {"": Column(array)}
        if not zipfile.is_zipfile(path):
            raise ValueError("not a zip file")
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
        return {name.removesuffix(".npy"): Stored(path, name) for name in members}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any failure to read an array file into a BadData of one line."""
    try:
        yield
    except _UNREADABLE as error:
        raise BadData(f"{path} cannot be read ({one_line(error)}): use numpy.save or numpy.savez") from error


@dataclass(frozen=True, slots=True)
class Named:
    """The array of every input, the labels, and notes on how they were matched."""

    arrays: Mapping[str, Column]
    labels: Column | None
    notes: tuple[Note, ...]


def by_input(where: str, columns: Mapping[str, Column], inputs: Sequence[InputSpec]) -> Named:
    """Match arrays to inputs by key; a single array matches a single input whatever its key.

    Unused keys are left out with a note: tokenizers make more than a model reads. Raises BadData for a missing input.
    """
    wanted = [spec.name for spec in inputs]
    label_keys = [key for key in columns if key in LABEL_KEYS and key not in wanted]
    keys = [key for key in columns if key not in label_keys]
    notes = []
    if len(wanted) == len(keys) == 1 and keys != wanted:
        if keys != [""]:
            used = f"{where}: array {keys[0]!r} is used for the model's only input, {wanted[0]!r}"
            notes.append(Note(Kind.FACT, used))
        columns = {**columns, wanted[0]: columns[keys[0]]}
        keys = wanted
    if "" in keys:
        raise BadData(
            f"{where} is one array; the model has {plural(len(inputs), 'input')}: give an .npz with the keys {wanted}"
        )
    missing = [name for name in wanted if name not in keys]
    if missing:
        more = f" and {len(columns) - _KEYS} more" if len(columns) > _KEYS else ""
        raise BadData(
            f"{where} has keys {[*columns][:_KEYS]}{more}, but not the inputs {missing}: rename or add arrays; for "
            "samples of different shapes give a directory with an .npz for each"
        )
    unknown = [key for key in keys if key not in wanted] + label_keys[1:]
    labels = columns[label_keys[0]] if label_keys else None
    return Named({name: columns[name] for name in wanted}, labels, (*notes, *left_out(where, unknown)))


def from_columns(request: SampleRequest, columns: Mapping[str, Column]) -> Dataset:
    """Evenly spaced samples from arrays [N, *sample] by key; labels under one of LABEL_KEYS."""
    source, inputs = request.source, request.inputs
    named = by_input(source, columns, inputs)
    symbol = batch_symbol(inputs)
    fits = {spec.name: fit(source, spec, named.arrays[spec.name].shape, symbol) for spec in inputs}
    lengths = {spec.name: named.arrays[spec.name].shape[0] for spec in inputs}
    if len({Fraction(lengths[name], sample_fit.rows) for name, sample_fit in fits.items()}) > 1:
        listed = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise BadData(f"{source} has different numbers of samples ({listed}): save the same number for each")
    # Labels, names and dropped rows are counted in rows of the input that takes most rows per sample.
    first, batch = max(((name, sample_fit.rows) for name, sample_fit in fits.items()), key=lambda item: item[1])
    rows, count = lengths[first], lengths[first] // batch
    if count == 0:
        raise BadData(f"{source} has {plural(rows, 'sample')}; the batch of input {first!r} is {batch}: add samples")
    keep = evenly(count, request.limit)
    labels = None if named.labels is None else grouped(source, named.labels.whole(), rows, batch, keep)
    names = [span(str(i * batch), str((i + 1) * batch - 1)) for i in keep]
    samples = request.samples()
    streams = [fits[spec.name].samples(named.arrays[spec.name], keep) for spec in inputs]
    for name, *arrays in zip(names, *streams, strict=True):
        where = f"{source}: sample {name}"
        samples.append({spec.name: cast(where, spec, array) for spec, array in zip(inputs, arrays, strict=True)})
    dataset = assemble(source, samples, names, labels, rows - batch * len(keep), named.notes)
    return replace(dataset, batch=batch)


@dataclass(frozen=True, slots=True)
class Fit:
    """`rows` entries make a sample, stacked along `axis`; `axis` is None if an entry is already a sample."""

    rows: int
    axis: int | None

    def samples(self, column: Column, keep: Sequence[int]) -> Iterator[Array]:
        """The samples at `keep`, one by one."""
        entries = column.entries(index * self.rows + row for index in keep for row in range(self.rows))
        for _ in keep:
            parts = [next(entries) for _ in range(self.rows)]
            yield parts[0] if self.axis is None else np.stack(parts, axis=self.axis)


def fit(where: str, spec: InputSpec, shape: tuple[int, ...], symbol: str | None) -> Fit:
    """How the entries of an array [N, ...] of `shape` become samples. Raises BadData if they do not fit `spec`."""
    if shape:
        if spec.fits(shape[1:]):
            return Fit(1, None)
        axis = missing_batch(spec, shape[1:], symbol)
        if axis is not None and spec.shape is not None:
            size = spec.shape[axis]
            return Fit(size if isinstance(size, int) else 1, axis)
    dims = spec.shape or ()
    fix = f"save {shown(('N', *dims[1:]))}, with N samples first"
    if dims and matches(dims[1:], shape):
        fix = "there is no axis of samples, so save array[None], or stack several"
    raise _unfit(where, spec, shape, fix)


def _unfit(where: str, spec: InputSpec, shape: tuple[int, ...], fix: str) -> BadData:
    """The error for an array of `shape`; it suggests `fix`, or moving the channels if they are at the wrong end."""
    dims = spec.shape or ()
    channels = 1 - len(dims)
    if len(dims) >= 3 and len(shape) >= len(dims) - 1:
        if matches((*dims[2:], dims[1]), shape[channels:]):
            fix = f"the channels are last, so save numpy.moveaxis(array, -1, {channels})"
        elif matches((dims[-1], *dims[1:-1]), shape[channels:]):
            fix = f"the channels are first, so save numpy.moveaxis(array, {channels}, -1)"
    has = list(shape) if shape else "a single number"
    return BadData(f"{where} has {has} for input {spec.name!r}, which takes {shown(spec.shape)}: {fix}")


def one_sample(where: str, spec: InputSpec, array: Array, symbol: str | None) -> Array:
    """`array` as one sample, with the batch dimension added if it is missing. Raises BadData if it does not fit."""
    if not spec.fits(array.shape):
        axis = missing_batch(spec, array.shape, symbol)
        batch = 1 if axis is None or spec.shape is None else spec.shape[axis]
        if isinstance(batch, int) and batch != 1:
            raise _unfit(where, spec, array.shape, f"give {batch} in each sample, or all in one array")
        if axis is None:
            raise _unfit(where, spec, array.shape, "give each sample that shape, or without its batch dimension")
        array = np.expand_dims(array, axis)
    return cast(where, spec, array)


def cast(where: str, spec: InputSpec, array: Array) -> Array:
    """One sample in the input's dtype. Raises BadData if the conversion would change values, and for NaN where that is
    no missing value.

    Infinities stay: masks hold them. Whether the model's answers are finite is checked where it runs.
    """
    target, source = spec.numpy_dtype(), array.dtype
    what = f"{where} has {source} for input {spec.name!r}, which takes {spec.dtype if spec.dtype == TEXT else target}"
    if spec.dtype == TEXT:
        if source.kind not in "US" and not all(isinstance(text, str) for text in array.flat):
            raise BadData(f"{what}: give text")
        return np.asarray(array.astype("U") if source.kind == "S" else array).astype(object)
    if source.kind not in "fiub":
        raise BadData(f"{what}: save numbers")
    if source.kind == "f" and target.kind != "f" and (array != np.trunc(array)).any():  # NaN too
        raise BadData(f"{what}: fractions would be lost, so save whole numbers of {target}")
    if source == np.uint8 and target.kind == "f" and array.ndim >= 3:
        fix = f"convert them as in training, e.g. (array / 255).astype({target.name!r})"
        raise BadData(f"{what}: raw pixels need preprocessing, so {fix}, or give a directory of images")
    with np.errstate(all="ignore"):
        converted = np.ascontiguousarray(array.astype(target, copy=False)).reshape(array.shape)
        # Compared both ways: int8 -1 survives a round trip through uint8, and int64 is wider than float64.
        if (source.kind != "f" or target.kind != "f") and (
            (converted != array).any() or (converted.astype(source) != array).any()
        ):
            raise BadData(f"{what}: values {array.min()}..{array.max()} do not fit: rescale them")
        bad = np.count_nonzero(np.isinf(converted) & ~np.isinf(array))
        bad += 0 if spec.missing else np.count_nonzero(np.isnan(converted))
    if bad:
        raise BadData(f"{where}, input {spec.name!r} has {bad} NaN or infinite values as {target}: repair or remove it")
    return converted
