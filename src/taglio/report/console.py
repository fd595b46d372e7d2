"""Print parts on the terminal. Charts and pictures are for the page alone."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from taglio.report.parts import Cell, Columns, Heading, Legend, NamedValues, Part, Table, Text

_LONGEST = 60  # letters of a row's name: TFLite's converter joins the names of all layers that it fused


def _console(*, width: int | None = None, soft_wrap: bool = False) -> Console:
    """Standard output as it is: the name "Add:a:" of a block holds no emoji."""
    return Console(emoji=False, highlight=False, width=width, soft_wrap=soft_wrap)


def say(text: str) -> None:
    """Print one line, or an empty one and another, without formatting."""
    above = "\n" if text.startswith("\n") else ""
    _console(soft_wrap=True).print(escape(above + _line(text.removeprefix("\n"))))


def show(parts: Iterable[Part]) -> None:
    """Print the texts, lists and tables among `parts`."""
    for part in parts:
        match part:
            case Text():
                say(part.text)
            case Heading():
                say(f"\n{part.text}")
            case Legend():
                say(", ".join(text for _, text in part.items))
            case NamedValues():
                for name, text in part.items:
                    say(f"{name}: {text}")
            case Table():
                _show_table(part)
            case Columns():
                for group in part.groups:
                    show(group)


def _show_table(table: Table) -> None:
    if not table.rows:
        return
    if table.caption:
        say(table.caption)
    grid = Grid(box=None, pad_edge=False, header_style="bold", show_header=bool(table.head))
    for index in range(len(table.rows[0])):
        left = index == 0 or index in table.words or not table.head
        grid.add_column(
            escape(table.head[index]) if table.head else "", justify="left" if left else "right", overflow="fold"
        )
    rows = table.rows[: table.first or None]
    for row in rows:
        cells = [_text(cell) for cell in row]
        cells[0] = _short(cells[0])
        grid.add_row(*map(escape, cells))
    console = _console()
    (console if console.is_terminal else _console(width=max(console.width, 170))).print(grid)
    if len(rows) < len(table.rows):
        say(f"the first {len(rows):,} of {len(table.rows):,} rows; all are in the page and in --json")


def _text(cell: object) -> str:
    if isinstance(cell, Cell):
        return _line(f"{cell.text} ({cell.note})" if cell.note else cell.text)
    return _line(str(cell))


def _line(text: str) -> str:
    """`text` on one line: names of models and tensors may hold line breaks."""
    return " ".join(text.split("\n"))


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
