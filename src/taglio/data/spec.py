"""The inputs of a model: name, shape and type, and which dimension is the batch. Reads no data."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taglio.errors import BadData

Array = NDArray[Any]
Shape = tuple[int, ...]
# A size, or the name of a dynamic dimension (None if it has no name).
Dim = int | str | None
TEXT = "str"
_BATCH = re.compile(r"batch|bsz|^(n|b|bs)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A model input. `shape` holds a size, a name or None per dimension, and is None if even the rank is open; `dtype`
    is a NumPy name like "float32", or "str". If `missing`, NaN stands for a missing value.
    """

    name: str
    shape: tuple[Dim, ...] | None
    dtype: str
    missing: bool = False

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype} {shown(self.shape)}"

    @property
    def dynamic(self) -> bool:
        """Whether any dimension, or the rank, depends on the data."""
        return self.shape is None or not all(isinstance(dim, int) for dim in self.shape)

    def sizes(self, free: int = 1) -> Shape:
        """The shape with `free` for every dynamic dimension."""
        return tuple(dim if isinstance(dim, int) else free for dim in self.shape or ())

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether an array of `shape` can be fed as it is."""
        return self.shape is None or matches(self.shape, shape)

    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy type. Raises BadData for a type that NumPy cannot hold."""
        try:
            dtype = dtype_of(self.dtype)
        except TypeError:
            dtype = np.dtype(np.void)
        if dtype.kind not in "fiubO":
            raise BadData(f"input {self} cannot be fed from NumPy: use float, integer, bool or text inputs")
        return dtype


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy type called `name`; text is held as objects."""
    return np.dtype(np.object_ if name == TEXT else name)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a NumPy type; "str" for text."""
    return TEXT if dtype.kind in "OUS" else dtype.name


def matches(dims: Sequence[Dim], shape: Sequence[int]) -> bool:
    """Whether `shape` has the rank of `dims` and the sizes that it fixes."""
    return len(dims) == len(shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(dims, shape, strict=True)
    )


def shown(dims: Sequence[Dim] | None) -> str:
    """Dimensions as text for error messages."""
    if dims is None:
        return "of any shape"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def batch_symbol(inputs: Sequence[InputSpec]) -> str | None:
    """The name of the batch dimension: one that is named like a batch, or else the first input's dynamic first
    dimension; None if there is neither."""
    names = [dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)]
    called = next((name for name in names if _BATCH.search(name)), None)
    first = [spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], str)]
    return called or next(iter(first), None)


def contradicted(inputs: Sequence[InputSpec], sizes: Mapping[str, Shape]) -> dict[str, str]:
    """The named dimensions to which one sample gives several sizes, and which input has which, as text. `sizes` has the
    shape of every input."""
    seen = dict[str, dict[str, int]]()
    for spec in inputs:
        for dim, size in zip(spec.shape or (), sizes[spec.name], strict=False):
            if isinstance(dim, str):
                seen.setdefault(dim, {}).setdefault(spec.name, size)
                if seen[dim][spec.name] != size:  # one input has the name twice
                    seen[dim][f"{spec.name} again"] = size
    return {
        dim: " and ".join(f"{size} in {name}" for name, size in by_input.items())
        for dim, by_input in seen.items()
        if len({*by_input.values()}) > 1
    }


def batch_size(inputs: Sequence[InputSpec], sample: Mapping[str, Array]) -> int:
    """How many inputs `sample` holds: the largest dimension that is named like a batch, or 1."""
    return max(
        (
            size
            for spec in inputs
            for dim, size in zip(spec.shape or (), sample[spec.name].shape, strict=False)
            if isinstance(dim, str) and _BATCH.search(dim)
        ),
        default=1,
    )


def missing_batch(spec: InputSpec, shape: Sequence[int], symbol: str | None) -> int | None:
    """The axis at which the batch dimension of `spec` must be added to an array of `shape`; None if that does not help.

    The axis named `symbol` is tried first, then axis 0, then any that is dynamic or of size 1.
    """
    dims = spec.shape
    if dims is None or len(shape) != len(dims) - 1:
        return None
    free = [axis for axis, dim in enumerate(dims) if dim == 1 or not isinstance(dim, int)]
    order = [axis for axis in free if symbol is not None and dims[axis] == symbol] + [0] + free
    return next((axis for axis in order if matches((*dims[:axis], *dims[axis + 1 :]), shape)), None)
