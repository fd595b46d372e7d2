"""A file of text → its lines, or the columns of a .csv or .tsv. Does not interpret them."""

import csv
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from taglio.data.spec import Array
from taglio.errors import BadData, one_line, plural

TABLE_SUFFIXES = (".csv", ".tsv")
_MOST_CELL = 2**24


def read_table(path: Path, column_names: Collection[str]) -> Mapping[str, list[str]]:
    """The columns of a file by name, or by "0", "1", ... if its first row has none of `column_names` (in any case).

    Raises BadData, naming the row, if a row has a different length than the first.
    """
    csv.field_size_limit(_MOST_CELL)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = [row for row in csv.reader(stream, delimiter="," if path.suffix.lower() == ".csv" else "\t") if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{path} cannot be read as a table in UTF-8 ({one_line(error)}): save it again") from None
    if not rows:
        raise BadData(f"{path} is empty: give one row per sample")
    first = [cell.strip().lower() for cell in rows[0]]
    header = any(cell in column_names for cell in first)
    names = first if header else [str(index) for index in range(len(first))]
    wrong = next((index for index, row in enumerate(rows) if len(row) != len(names)), None)
    if wrong is not None or len(set(names)) < len(names):
        what = (
            f"row {wrong + 1} has {plural(len(rows[wrong]), 'cell')}"
            if wrong is not None
            else "a column is named twice"
        )
        raise BadData(f"{path}: {what}; the first row has {len(names)}: quote cells that hold the separator")
    rows = rows[1:] if header else rows
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def read_lines(path: Path) -> list[str]:
    """The lines of a file. Raises BadData if it is not text in UTF-8."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read as UTF-8 text ({one_line(error)}): save it again") from None
    return [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]


def as_labels(cells: list[str]) -> list[Array]:
    """Cells as integers if all are, else as floats if all are numbers, else as text."""
    for kind in (int, float):
        try:
            return [np.array(kind(cell)) for cell in cells]
        except ValueError:
            continue
    return [np.array(cell) for cell in cells]
