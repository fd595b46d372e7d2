"""Weights kept in files: initialisers refer to bytes on disk instead of holding them. Judges no graph.

A protobuf message is limited to 2 GB, and each variant of a model would hold its own copy of the weights. So weights of
`IN_FILES_BYTES` or more lie in one `WeightFiles`, and every variant refers to them. Inside taglio the `location` of
such a tensor is an absolute path; for a runtime or the user's folder it is made relative, as ONNX requires.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taglio.errors import BadModel
from taglio.scratch import lasting

IN_FILES_BYTES = 256 * 1024**2
# Smaller models are written as one file, with their weights, which takes memory for two copies of it.
ONE_FILE_BYTES = 256 * 1024**2
# The largest protobuf message.
MESSAGE_BYTES = 2 * 1024**3
# Smaller tensors stay in the model: runtimes read sizes and scales before they open any file.
LEAST_BYTES = 4096
# Offsets of mapped memory are multiples of a page.
_ALIGNED = 4096
_CHUNK = 16 * 1024**2
# Types whose NumPy bytes equal the file's bytes.
_PLAIN = frozenset(
    {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8,
     TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32, TensorProto.UINT32, TensorProto.INT64,
     TensorProto.UINT64}
)  # fmt: skip
_BITS: dict[int, int] = {
    TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4, TensorProto.STRING: 0
}  # fmt: skip


class WeightFiles:
    """The folder that holds one model's weights; removed with the last reference to it."""

    def __init__(self) -> None:
        self.folder = lasting(self).resolve()
        # Values computed from the weights, by key; their arrays are in the files too.
        self.made: dict[Any, Any] = {}
        self._made_file = self.folder / "made.bin"
        self._places: dict[str, tuple[int, int]] = {}

    def keep(self, values: np.ndarray) -> np.ndarray:
        """`values` mapped from the file instead of in memory; short arrays as they are."""
        if values.nbytes < LEAST_BYTES:
            return values
        offset, _ = self._place(values)
        return np.memmap(self._made_file, values.dtype, "r", offset, values.shape)

    def tensor(self, values: np.ndarray, name: str) -> TensorProto:
        """An initialiser with these values, which refers to the file unless it is short."""
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        if values.nbytes < LEAST_BYTES or kind not in _PLAIN:
            return numpy_helper.from_array(values, name)
        offset, length = self._place(values)
        return refer(TensorProto(name=name, data_type=kind, dims=values.shape), self._made_file, offset, length)

    def new(self, name: str) -> Path:
        """A free path in this folder for a file named like `name`."""
        return self.folder / f"{len([*self.folder.iterdir()])}-{name}"

    def take(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """`proto` with its long tensors in this folder: tensors it holds are written there, files it refers to are
        linked."""
        linked: dict[str, Path] = {}
        for tensor in tensors(proto):
            if in_file(tensor):
                location, offset, length = place(tensor)
                if location not in linked:
                    linked[location] = self.folder / f"original-{len(linked)}.bin"
                    link(Path(location), linked[location])
                refer(tensor, linked[location], offset, length)
            elif tensor.data_type in _PLAIN and tensor.ByteSize() >= LEAST_BYTES:
                refer(tensor, self._made_file, *self._place(numpy_helper.to_array(tensor)))
        return deepcopy(proto)  # protobuf frees cleared fields only with the whole message

    def only(self, proto: onnx.ModelProto) -> None:
        """Remove the files of the folder that `proto` does not refer to."""
        locations = _locations(proto)
        for file in self.folder.iterdir():
            if str(file) not in locations and file != self._made_file:
                file.unlink()

    def _place(self, values: np.ndarray) -> tuple[int, int]:
        """Offset and length of the bytes of `values` in the file; equal bytes are stored once."""
        if isinstance(values, np.memmap) and str(values.filename) == str(self._made_file) and values.flags.c_contiguous:
            place = (int(values.offset), values.nbytes)
            if place in self._places.values():
                return place
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        digest = hashlib.blake2b(data).hexdigest()
        if digest not in self._places:
            with _disk(self.folder, len(data)), self._made_file.open("ab") as file:
                file.write(b"\0" * (-file.tell() % _ALIGNED))
                self._places[digest] = (file.tell(), len(data))
                file.write(data)
        return self._places[digest]


def constant(values: np.ndarray, name: str, store: WeightFiles | None) -> TensorProto:
    """An initialiser with these values, which refers to a file of the `store`, if there is one, unless it is short."""
    return numpy_helper.from_array(np.asarray(values), name) if store is None else store.tensor(values, name)


def tensors(proto: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every tensor that a model holds or refers to, including those in attributes and subgraphs."""
    yield from _of_graph(proto.graph)
    for function in proto.functions:
        yield from of_nodes(function.node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from of_nodes(graph.node)


def of_nodes(nodes: Any) -> Iterator[TensorProto]:
    """Every tensor in the attributes and bodies of operators."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _of_graph(inner)


def in_file(tensor: TensorProto) -> bool:
    """Whether a tensor refers to a file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def refer(tensor: TensorProto, path: Path | str, offset: int, length: int) -> TensorProto:
    """Make `tensor` refer to `length` bytes of a file; returns `tensor`."""
    for field in ("raw_data", "external_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", str(path)), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def place(tensor: TensorProto) -> tuple[str, int, int]:
    """Location, offset and length of a tensor that refers to a file. Raises ValueError if offset or length is not a
    number."""
    entries = {field.key: field.value for field in tensor.external_data}
    expected = stored_bytes(tensor.data_type, tensor.dims)
    return entries.get("location", ""), int(entries.get("offset", 0)), int(entries.get("length", expected))


def stored_bytes(kind: int, dims: Iterable[int]) -> int:
    """Bytes of a tensor in ONNX raw format; two 4-bit values share a byte. 0 for text."""
    bits = _BITS[kind] if kind in _BITS else 8 * int(helper.tensor_dtype_to_np_dtype(kind).itemsize)
    return (prod(dims) * bits + 7) // 8


def values(tensor: TensorProto) -> np.ndarray:
    """The values of a tensor; those in a file are mapped, so they use memory only while they are read."""
    if not in_file(tensor):
        return numpy_helper.to_array(tensor)
    location, offset, _ = place(tensor)
    if tensor.data_type in _PLAIN and all(tensor.dims):
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.memmap(location, dtype, "r", offset, tuple(tensor.dims))
    copy = deepcopy(tensor)
    hold(copy)
    return numpy_helper.to_array(copy)


def hold(tensor: TensorProto) -> None:
    """Read a tensor from its file into memory."""
    data = b"".join(chunks(tensor))
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = data


def in_memory(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with all its weights in memory, if that fits into one protobuf message."""
    return proto if not refers(proto) or size_bytes(proto) >= MESSAGE_BYTES else _copy(proto, hold)


def chunks(tensor: TensorProto) -> Iterator[bytes]:
    """The bytes of a tensor in a file, piece by piece."""
    location, offset, length = place(tensor)
    with Path(location).open("rb") as file:
        file.seek(offset)
        for start in range(0, length, _CHUNK):
            yield file.read(min(_CHUNK, length - start))


def weight_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of all tensors, in the model or in files, and of the parameters that operators list."""
    return bytes_of(tensors(proto)) + listed_bytes(proto.graph.node)


def float_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of all tensors, those of a narrower type than float32 as that: quantised weights may become it."""
    return sum(
        max(stored_bytes(tensor.data_type, tensor.dims), stored_bytes(TensorProto.FLOAT, tensor.dims))
        for tensor in tensors(proto)
    )


def bytes_of(some: Iterable[TensorProto]) -> int:
    """Bytes of these tensors, in the model or in files."""
    return sum(stored_bytes(tensor.data_type, tensor.dims) for tensor in some)


def listed_bytes(nodes: Iterable[onnx.NodeProto]) -> int:
    """Bytes of the parameters that operators of ai.onnx.ml, such as trees, list in their attributes."""
    return sum(
        attribute.ByteSize()
        for node in nodes
        if node.domain == "ai.onnx.ml"
        for attribute in node.attribute
        if not attribute.HasField("t")
    )


def size_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of a model and of the tensors that it refers to."""
    return int(proto.ByteSize()) + sum(place(tensor)[2] for tensor in tensors(proto) if in_file(tensor))


def serialized(proto: onnx.ModelProto) -> tuple[bytes, Path | None]:
    """A model as a runtime reads it, and the folder in which its file references are resolved (None: it has none)."""
    locations = _locations(proto)
    if not locations:
        return proto.SerializeToString(), None
    folder = os.path.commonpath([Path(location).parent for location in locations])
    copy = _copy(proto, lambda tensor: _relocate(tensor, os.path.relpath(place(tensor)[0], folder)))
    return copy.SerializeToString(), Path(folder)


def write(path: Path, proto: onnx.ModelProto) -> None:
    """Write a temporary model, with links to the files that it refers to beside it."""
    link_beside(proto, path)
    if refers(proto):
        proto = _copy(proto, lambda tensor: _relocate(tensor, Path(place(tensor)[0]).name))
    path.write_bytes(proto.SerializeToString())


def link_beside(proto: onnx.ModelProto, path: Path) -> None:
    """Link the files that a model refers to beside `path`, under their own names."""
    for location in _locations(proto):
        link(Path(location), path.parent / Path(location).name)


def refers(proto: onnx.ModelProto) -> bool:
    """Whether any tensor of a model is in a file."""
    return any(map(in_file, tensors(proto)))


def _locations(proto: onnx.ModelProto) -> set[str]:
    return {place(tensor)[0] for tensor in tensors(proto) if in_file(tensor)}


def link(file: Path, target: Path) -> None:
    """Make `file` available at `target` as well: a hard link, or a copy if the file system has none. Runtimes refuse
    symbolic links that leave a model's folder."""
    if target.exists():
        return
    try:
        target.hardlink_to(file)
    except OSError:
        with _disk(target.parent, file.stat().st_size):
            shutil.copyfile(file, target)


def save(path: Path, proto: onnx.ModelProto, data: Path, name: str) -> None:
    """Write a model to `path` and all tensors that it refers to into the one file `data`, referred to as `name`."""
    seen: dict[tuple[str, int, int], int] = {}

    def move(tensor: TensorProto) -> None:
        where = place(tensor)
        if where not in seen:
            file.write(b"\0" * (-file.tell() % _ALIGNED))
            seen[where] = file.tell()
            file.writelines(chunks(tensor))
        refer(tensor, name, seen[where], where[2])

    with data.open("wb") as file:
        copy = _copy(proto, move)
    path.write_bytes(copy.SerializeToString())


def load(path: Path) -> onnx.ModelProto:
    """Load a model written by taglio or a runtime; its tensors refer to the files beside it."""
    proto = onnx.load(path, load_external_data=False)
    for tensor in tensors(proto):
        if in_file(tensor):
            _relocate(tensor, path.parent / place(tensor)[0])
    return proto


def sha256(path: Path) -> str:
    """The SHA-256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(proto: onnx.ModelProto, change: Callable[[TensorProto], object]) -> onnx.ModelProto:
    """A copy of a model, with `change` made to every tensor that refers to a file."""
    copy = deepcopy(proto)
    for tensor in tensors(copy):
        if in_file(tensor):
            change(tensor)
    return copy


def _relocate(tensor: TensorProto, location: Path | str) -> None:
    _, offset, length = place(tensor)
    refer(tensor, location, offset, length)


def no_room(folder: Path, needed: int, why: str) -> BadModel:
    """The error for a disk that does not take `needed` bytes of weights."""
    free = shutil.disk_usage(folder).free
    return BadModel(
        f"{folder}: cannot hold {needed / 1e6:,.1f} MB of weights ({why}; {free / 1e6:,.1f} MB free): set TMPDIR to a "
        "disk with enough space"
    )


@contextlib.contextmanager
def _disk(folder: Path, needed: int) -> Iterator[None]:
    """Raise BadModel, with the space needed and free, when the disk is full."""
    try:
        yield
    except OSError as error:
        raise no_room(folder, needed, error.strerror or str(error)) from None
