"""Convert tensors between the Open Inference Protocol and NumPy. Reads no socket and runs no model."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec
import numpy as np

from taglio.data.spec import InputSpec, dtype_of
from taglio.errors import BadModel, plural
from taglio.serve.refusals import BadRequest

# NumPy's type of each datatype of the protocol. BYTES elements have any length, each preceded by it.
BYTES = "BYTES"
NUMPY: dict[str, np.dtype[Any]] = {
    **{name.upper(): np.dtype(name) for name in ("bool", "uint8", "uint16", "uint32", "uint64")},
    **{name.upper(): np.dtype(name) for name in ("int8", "int16", "int32", "int64")},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    BYTES: np.dtype(object),
}
_DATATYPES = {dtype: datatype for datatype, dtype in NUMPY.items()}  # a lookup of a dtype's name takes 4 µs
_LENGTH = struct.Struct("<I")
# What JSON has for a kind of NumPy's, and where it is none of these, integers.
_VALUES: dict[str, Any] = {"b": list[bool], "f": list[float], "O": list[str]}
Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a served model; dimension -1 means any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def spec_of(declared: InputSpec) -> TensorSpec:
    """A model's input or output for clients. Raises BadModel for a type that the protocol lacks."""
    datatype = _DATATYPES.get(dtype_of(declared.dtype))
    if datatype is None:
        raise BadModel(
            f"tensor {declared.name} is {declared.dtype}, for which the Open Inference Protocol has no datatype: "
            "export the model with another type"
        )
    return TensorSpec(declared.name, datatype, declared.sizes(-1))


def from_json(spec: TensorSpec, shape: tuple[int, ...], data: list[Any] | None) -> np.ndarray:
    """The tensor listed in `data`, nested or flat, in row-major order. Raises BadRequest for values that the datatype
    cannot hold, or a wrong number of them."""
    flat = np.array(data or (), object).ravel().tolist()
    if len(flat) != prod(shape):
        raise BadRequest(f"input {spec.name} has {plural(len(flat), 'value')} for shape {list(shape)}")
    dtype = NUMPY[spec.datatype]
    try:
        values = msgspec.convert(flat, _VALUES.get(dtype.kind, list[int]))
        if dtype.kind == "O":
            return _objects(values, shape)
        with np.errstate(over="ignore"):
            return np.array(values, dtype).reshape(shape)
    except (msgspec.ValidationError, OverflowError) as error:
        raise BadRequest(f"input {spec.name}: a value does not fit {spec.datatype}: {error}") from None


def from_bytes(spec: TensorSpec, shape: tuple[int, ...], raw: Buffer) -> np.ndarray:
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


def to_buffer(array: np.ndarray) -> Buffer:
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
    return BYTES if array.dtype.kind in "OUS" else _DATATYPES[array.dtype]


def _objects(values: Sequence[object], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _elements(spec: TensorSpec, raw: Buffer, count: int) -> list[str]:
    texts: list[str] = []
    end = 0
    try:
        for _ in range(count):
            start = end + _LENGTH.size
            end = start + _LENGTH.unpack_from(raw, end)[0]
            texts.append(str(raw[start:end], "utf-8"))
    except (struct.error, UnicodeDecodeError):
        raise BadRequest(
            f"input {spec.name}: element {len(texts)} of {count} is not UTF-8 text with its length"
        ) from None
    if end != len(raw):
        raise BadRequest(f"input {spec.name}: {len(raw):,} bytes do not hold {count} elements with their lengths")
    return texts
