"""What is known of a tensor before any run: its dimensions as products of symbols, and where its batch is. Knows no
operators."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import onnx
from onnx import numpy_helper

from taglio.model.operators import integers

# Why an operator that computes along the batch dimension mixes rows.
ALONG = "computes along the batch dimension"
# The symbol of the number of rows. No dimension in a file has an empty name.
BATCH = ""


class RowsMix(Exception):
    """Rows of a batch influence each other, or may do so; the message says where."""


@dataclass(frozen=True, slots=True)
class Size:
    """An integer that may depend on the inputs' dimensions: `number` times the `symbols`, which are sorted."""

    number: int = 1
    symbols: tuple[str, ...] = ()

    @property
    def batched(self) -> bool:
        """Whether it grows with the number of rows."""
        return BATCH in self.symbols

    @property
    def constant(self) -> int | None:
        """Its value, if that depends on nothing."""
        return None if self.symbols else self.number

    def __str__(self) -> str:
        return "·".join((str(self.number), *(symbol or "rows" for symbol in self.symbols)))

    def over(self, other: "Size") -> "Size | None":
        """The quotient; None where it is not a whole number for all values of the symbols."""
        left, less = Counter(self.symbols), Counter(other.symbols)
        if other.number == 0 or self.number % other.number or less - left:
            return None
        return Size(self.number // other.number, tuple(sorted((left - less).elements())))


ONE = Size()
ROWS = Size(1, (BATCH,))
# None is a dimension that a rule leaves to shape inference.
Shape = tuple[Size, ...]
Dims = list[Size | None]


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes; 1 of none."""
    number, symbols = 1, list[str]()
    for size in sizes:
        number *= size.number
        symbols += size.symbols
    return Size(number, tuple(sorted(symbols)))


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor. `shape` is None where not even its rank is known; such a tensor is the same for every batch.

    At most one dimension grows with the batch: `axis`, whose size is the number of rows times a factor. Its index is
    the row's number times the factor, plus an index within the row, so rows follow each other as they do in the inputs.
    `elements` are those of a small integer tensor in row-major order, where they depend on the inputs' dimensions only.
    """

    shape: Shape | None
    elements: tuple[Size, ...] | None = None

    @property
    def axis(self) -> int | None:
        """Which dimension is the batch; None if the tensor is the same for every batch."""
        return next((axis for axis, size in enumerate(self.shape or ()) if size.batched), None)

    @property
    def counts(self) -> bool:
        """Whether the number of rows is among its elements."""
        return any(size.batched for size in self.elements or ())


class Step:
    """One operator with the values of its inputs, as its rule reads them."""

    def __init__(
        self,
        node: onnx.NodeProto,
        values: Sequence[Value | None],
        opset: int,
        constants: Mapping[str, onnx.TensorProto],
    ) -> None:
        self.node, self.values, self.opset = node, values, opset
        self._constants = constants

    def fail(self, why: str) -> NoReturn:
        """Raise RowsMix about this operator."""
        raise RowsMix(f"{self.node.op_type} {self.node.name or self.node.output[0]} {why}")

    def value(self, index: int) -> Value | None:
        """An input; None where it is left out."""
        return self.values[index] if index < len(self.values) else None

    def shape(self, index: int = 0) -> Shape:
        """The dimensions of an input that must be there. Raises RowsMix if its rank is unknown."""
        value = self.value(index)
        if value is None or value.shape is None:
            self.fail("reads a tensor of unknown rank")
        return value.shape

    def axis(self, index: int = 0) -> int | None:
        """The batch dimension of an input; None if it is left out or the same for every batch."""
        value = self.value(index)
        return value.axis if value else None

    def elements(self, index: int) -> tuple[Size, ...] | None:
        """The elements of an input, where they are known."""
        value = self.value(index)
        return value.elements if value else None

    def constant(self, index: int) -> np.ndarray | None:
        """The array of a constant input whose values are in the file; None otherwise."""
        tensor = self._constants.get(self.node.input[index]) if index < len(self.node.input) else None
        return None if tensor is None else numpy_helper.to_array(tensor)

    def numbers(self, name: str, index: int | None = None) -> tuple[int, ...] | None:
        """Integers that older opsets keep in the attribute `name`, and newer ones in the input `index`: () if they are
        left out, None if they are computed."""
        if index is None or self.value(index) is None:
            return integers(self.node, name)
        sizes = self.elements(index)
        if sizes is None or any(size.symbols for size in sizes):
            return None
        return tuple(size.number for size in sizes)

    def positive(self, axis: int) -> int:
        """An axis of the first input, counted from the left."""
        return axis + len(self.shape()) * (axis < 0)

    def away(self, axis: int) -> int:
        """An axis of the first input that is not the batch. Raises RowsMix if it is."""
        axis = self.positive(axis)
        if axis == self.axis():
            self.fail(ALONG)
        return axis

    def with_size(self, axis: int, size: Size | None) -> Dims:
        """The dimensions of the first input, one of them replaced."""
        shape = self.shape()
        return [*shape[:axis], size, *shape[axis + 1 :]]

    def same_for_all(self, *but: int) -> None:
        """Raise RowsMix if another input than `but` depends on the row."""
        for index, value in enumerate(self.values):
            if index not in but and value is not None and value.axis is not None:
                self.fail(f"has an own {self.node.input[index]} for each row")


Rule = Callable[[Step], Sequence[Dims]]
