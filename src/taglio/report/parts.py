"""What is shown, as values: text, tables, charts. `templates/parts.html.j2` draws and console.py prints them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    look: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: of the page (level 1) or within a section (3)."""

    text: str
    level: int = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with extras: a small note below, a colour sample."""

    text: str
    look: str = ""
    note: str = ""
    swatch: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows whose first cell names them. `words` are the columns aligned left; the terminal shows only the first `first`
    rows (0: all), and the page lets the reader scroll through the others."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""
    look: str = ""
    words: frozenset[int] = frozenset()
    first: int = 0


@dataclass(frozen=True, slots=True)
class NamedValues:
    """Names with their values."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Legend:
    """Samples of colours, by CSS class, with their meanings."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Axis:
    """`zero`: a linear axis starts at 0; a logarithmic one shows 0 at its foot."""

    title: str
    scale: Literal["linear", "log"] = "linear"
    zero: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A point. `look` is a colour of the style sheet; `text` is shown on hover, `label` always; a stroke leads to `to`
    on the x axis."""

    x: float
    y: float
    look: str
    text: str
    label: str = ""
    symbol: str = "circle"
    hollow: bool = False
    ring: bool = False
    to: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A scatter chart, drawn in the reader's browser by Observable Plot. `square`: both axes have the same scale, and a
    line shows where they are equal. `limit` is a horizontal line with its name; the area above it is shaded. What is
    not finite is not drawn, but counted."""

    label: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    caption: str = ""
    square: bool = False
    limit: tuple[float, str] | None = None

    def undrawn(self) -> int:
        """The number of marks that cannot be placed on the axes."""
        return sum(not (_fits(mark.x, self.x) and _fits(mark.y, self.y)) for mark in self.marks)


def _fits(value: float, axis: Axis) -> bool:
    return isfinite(value) and (axis.scale == "linear" or value > 0.0 or (axis.zero and value == 0.0))


@dataclass(frozen=True, slots=True)
class Columns:
    """Groups of parts side by side, or stacked on a narrow screen."""

    groups: Sequence[Sequence["Part"]]
    look: str = ""


Part = Text | Heading | Table | NamedValues | Legend | Chart | Columns
