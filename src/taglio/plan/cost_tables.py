"""Tables of costs, and what a labelling makes of them: values only. costs.py fills them."""

from dataclasses import dataclass

import numpy as np

from taglio.plan.problem import Copies

# Stands for "forbidden" in tables: far above any sum of costs, and small enough that differences keep their digits.
BIG = 1e9
KINDS = 3
# A limit may be broken by rounding.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Row:
    """One limit: its place among the sums, what its unit is worth, and its upper end in units."""

    name: str
    column: int
    unit: float
    upper: float


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Costs by node and label, by value (kind of float,) and device (from, to), and by edge; with a last axis over
    sums, or none at given prices."""

    unary: np.ndarray
    send_float: np.ndarray
    send_int8: np.ndarray
    quantize: np.ndarray
    dequantize: np.ndarray
    edge: np.ndarray
    wire: np.ndarray

    def columns(self, which: np.ndarray, units: np.ndarray) -> "Tables":
        """Some of the sums, each in its unit."""
        return Tables(*(np.ascontiguousarray(getattr(self, name)[..., which] / units) for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Priced(Tables):
    """Costs at given prices, and what is added whatever the labels are."""

    constant: float


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """Values (repeats allowed) with their edges under a labelling: where and in which kind each is written; by edge the
    value in the list that it belongs to, where it is read, and whether as int8."""

    value: np.ndarray
    place: np.ndarray
    kind: np.ndarray
    owner: np.ndarray
    edge: np.ndarray
    to: np.ndarray
    int8: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """Copies by value and device as numbers of `Copies` (0: none), and what they entail: whether a value is quantised
    where it is written and where again, how many readers dequantise where, and which edges add edge or wire noise."""

    copies: np.ndarray
    quantized: np.ndarray
    again: np.ndarray
    dequantized: np.ndarray
    noisy: np.ndarray
    wired: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """A labelling with its copies (value, device): the objective, and every row in units of its limit."""

    labels: np.ndarray
    objective: float
    rows: np.ndarray
    copies: np.ndarray

    def wires(self) -> tuple[dict[int, Copies], ...]:
        """The copies as a plan has them."""
        return wires_of(self.copies)


def wires_of(copies: np.ndarray) -> tuple[dict[int, Copies], ...]:
    """Copies (value, device) by value."""
    return tuple({int(d): Copies(int(row[d])) for d in np.flatnonzero(row)} for row in copies)
