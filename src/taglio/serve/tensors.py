"""Convert tensors between the Open Inference Protocol and NumPy. Reads no socket and runs no model."""

import struct
from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from taglio.data.spec import InputSpec, dtype_of
from taglio.errors import BadModel, plural
from taglio.serve.refusals import BadRequest

# Datatype of the protocol by NumPy name. BYTES elements have any length, each preceded by it.
BYTES = "BYTES"
DATATYPES = {
    **{name: name.upper() for name in ("bool", "uint8", "uint16", "uint32", "uint64")},
    **{name: name.upper() for name in ("int8", "int16", "int32", "int64")},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "object": BYTES,
}
NUMPY = {datatype: np.dtype(name) for name, datatype in DATATYPES.items()}
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a served model; dimension -1 means any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def spec_of(declared: InputSpec) -> TensorSpec:
    """A model's input or output for clients. Raises BadModel for a type that the protocol lacks."""
    datatype = DATATYPES.get(dtype_of(declared.dtype).name)
    if datatype is None:
        raise BadModel(
            f"tensor {declared.name} is {declared.dtype}, for which the Open Inference Protocol has no datatype: "
            "export the model with another type"
        )
    return TensorSpec(declared.name, datatype, declared.sizes(-1))


def given_for(specs: Sequence[TensorSpec], name: object, names_so_far: Container[str]) -> TensorSpec:
    """The input that a client calls `name`. Raises BadRequest if there is none, or if it is among `names_so_far`."""
    spec = next((spec for spec in specs if spec.name == name), None)
    if spec is None or spec.name in names_so_far:
        problem = "is given twice" if spec else f"is none of {', '.join(spec.name for spec in specs)}"
        raise BadRequest(f"input {str(name)[:80]!r} {problem}")
    return spec


def check_shape(spec: TensorSpec, datatype: object, shape: object, limit_bytes: int) -> tuple[int, ...]:
    """The shape of a tensor sent for `spec`, checked before allocating it. Raises BadRequest if it does not fit the
    model, or would take more than `limit_bytes`."""
    if datatype != spec.datatype:
        raise BadRequest(f"input {spec.name} has datatype {datatype}, the model takes {spec.datatype}")
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not all(type(size) is int for size in shape):
        raise BadRequest(f"input {spec.name}: its shape must be a list of integers")
    sizes = tuple(shape)
    fits = len(sizes) == len(spec.shape) and all(
        size >= 0 and wanted in (-1, size) for size, wanted in zip(sizes, spec.shape, strict=True)
    )
    if not fits:
        raise BadRequest(f"input {spec.name} has shape {list(sizes)}, the model takes {list(spec.shape)}")
    size_bytes = prod(sizes) * (1 if spec.datatype == BYTES else NUMPY[spec.datatype].itemsize)
    if size_bytes > limit_bytes:
        raise BadRequest(f"input {spec.name}: {size_bytes:,} bytes, the limit is {limit_bytes:,}")
    return sizes


def from_json(spec: TensorSpec, shape: tuple[int, ...], data: object) -> np.ndarray:
    """The tensor listed in `data`, nested or flat, in row-major order. Raises BadRequest for values that the datatype
    cannot hold, or a wrong number of them."""
    if not isinstance(data, list):
        raise BadRequest(f"input {spec.name}: its data must be a list")
    flat = np.array(data, object).ravel().tolist()
    if len(flat) != prod(shape):
        raise BadRequest(f"input {spec.name} has {plural(len(flat), 'value')} for shape {list(shape)}")
    dtype = NUMPY[spec.datatype]
    kinds: tuple[type, ...] = {"b": (bool,), "f": (int, float), "O": (str,)}.get(dtype.kind, (int,))
    if wrong := [value for value in flat if type(value) not in kinds]:
        raise BadRequest(f"input {spec.name}: {str(wrong[0])[:40]!r} is not a value of {spec.datatype}")
    try:
        if dtype.kind == "O":
            return _objects(flat, shape)
        with np.errstate(over="ignore"):
            return np.array(flat, dtype).reshape(shape)
    except (OverflowError, ValueError):
        raise BadRequest(f"input {spec.name}: a value does not fit {spec.datatype}") from None


def from_bytes(spec: TensorSpec, shape: tuple[int, ...], raw: bytes | memoryview) -> np.ndarray:
    """The tensor whose elements are in `raw`, little-endian and row-major. Raises BadRequest for a wrong length."""
    if spec.datatype == BYTES:
        return _objects(_elements(spec, raw, prod(shape)), shape)
    dtype = NUMPY[spec.datatype].newbyteorder("<")
    if len(raw) != prod(shape) * dtype.itemsize:
        raise BadRequest(
            f"input {spec.name} has {len(raw):,} bytes for shape {list(shape)} of {spec.datatype}, "
            f"which takes {prod(shape) * dtype.itemsize:,}"
        )
    return np.frombuffer(raw, dtype).reshape(shape)


def to_buffer(array: np.ndarray) -> bytes | memoryview:
    """Elements of `array`, little-endian and row-major, not copied; strings are each preceded by their length."""
    if array.dtype.kind in "OUS":
        encoded = [text if isinstance(text, bytes) else str(text).encode() for text in array.ravel()]
        return b"".join(_LENGTH.pack(len(text)) + text for text in encoded)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


def to_json(name: str, array: np.ndarray) -> list[Any]:
    """Elements of `array` as a flat list. Raises BadRequest for NaN and infinity, which JSON lacks."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadRequest(f"output {name} holds NaN or infinite values, which JSON cannot: ask for binary data")
    flat: list[Any] = array.ravel().tolist()
    return [value.decode(errors="replace") if isinstance(value, bytes) else value for value in flat]


def datatype_of(array: np.ndarray) -> str:
    """The protocol's name of an array's type."""
    return BYTES if array.dtype.kind in "OUS" else DATATYPES[array.dtype.name]


def _objects(values: Sequence[object], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _elements(spec: TensorSpec, raw: bytes | memoryview, count: int) -> list[str]:
    texts: list[str] = []
    offset = 0
    while offset + _LENGTH.size <= len(raw) and len(texts) < count:
        start = offset + _LENGTH.size
        end = start + _LENGTH.unpack_from(raw, offset)[0]
        if end > len(raw):
            break
        try:
            texts.append(bytes(raw[start:end]).decode())
        except UnicodeDecodeError:
            raise BadRequest(f"input {spec.name}: element {len(texts)} is not UTF-8 text") from None
        offset = end
    if offset != len(raw) or len(texts) != count:
        raise BadRequest(f"input {spec.name}: {len(raw):,} bytes do not hold {count} elements with their lengths")
    return texts
