"""What a model takes: the name, shape and type of an input, and which of its dimensions is the batch. Reads no data."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taglio.errors import BadData

Array = NDArray[Any]
Shape = tuple[int, ...]
# A size, or the name of a dimension that is dynamic (None where it has no name).
Dim = int | str | None
TEXT = "str"
_BATCH = re.compile(r"batch|bsz|^(n|b|bs)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A model input. `shape` holds a size, a name or None for each dimension, and is None where even the rank is open;
    `dtype` is a numpy name like "float32", or "str".
    """

    name: str
    shape: tuple[Dim, ...] | None
    dtype: str

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype} {shown(self.shape)}"

    @property
    def dynamic(self) -> bool:
        """Whether the data decide any of its dimensions."""
        return self.shape is None or not all(isinstance(dim, int) for dim in self.shape)

    def sizes(self, free: int = 1) -> Shape:
        """The shape with `free` for every dynamic dimension."""
        return tuple(dim if isinstance(dim, int) else free for dim in self.shape or ())

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether an array of `shape` can be fed as it is."""
        return self.shape is None or matches(self.shape, shape)

    def numpy_dtype(self) -> np.dtype[Any]:
        """Raises BadData for a type that NumPy cannot hold."""
        try:
            dtype = dtype_of(self.dtype)
        except TypeError:
            dtype = np.dtype(np.void)
        if dtype.kind not in "fiubO":
            raise BadData(f"input {self} cannot be fed from NumPy: use float, integer, bool or text inputs")
        return dtype


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's type of that name; text is held as objects."""
    return np.dtype(np.object_ if name == TEXT else name)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a type of NumPy's."""
    return TEXT if dtype.kind in "OUS" else dtype.name


def matches(dims: Sequence[Dim], shape: Sequence[int]) -> bool:
    """Whether `shape` has the sizes that `dims` fixes."""
    return len(dims) == len(shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(dims, shape, strict=True)
    )


def shown(dims: Sequence[Dim] | None) -> str:
    """Dimensions as an error shows them."""
    if dims is None:
        return "of any shape"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def batch_symbol(inputs: Sequence[InputSpec]) -> str | None:
    """The name of the dimension that counts what is fed at once: one that is called so, else the first dimension of
    the first input where that is dynamic."""
    names = [dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)]
    called = next((name for name in names if _BATCH.search(name)), None)
    first = [spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], str)]
    return called or next(iter(first), None)


def missing_batch(spec: InputSpec, shape: Sequence[int], symbol: str | None) -> int | None:
    """The axis at which an array of `shape` lacks the batch dimension of `spec`; None where that does not explain it.

    An axis called `symbol` comes first, then the first axis, then any that is dynamic or 1.
    """
    dims = spec.shape
    if dims is None or len(shape) != len(dims) - 1:
        return None
    free = [axis for axis, dim in enumerate(dims) if dim == 1 or not isinstance(dim, int)]
    order = [axis for axis in free if symbol is not None and dims[axis] == symbol] + [0] + free
    return next((axis for axis in order if matches((*dims[:axis], *dims[axis + 1 :]), shape)), None)
