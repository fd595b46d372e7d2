"""Copy the model of one row out of a comparison. Measures nothing."""

import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from taglio.artifact import DATA, replacing
from taglio.compare.row import Row, Wanted
from taglio.errors import BadOption
from taglio.transaction import EMITTED


def check_row(row: str, tables: Collection[Sequence[Wanted]]) -> None:
    """Raises BadOption if `row` is the id of no row of the back ends' `tables`, or of one that cannot exist."""
    rows = {wanted.id: wanted for table in tables for wanted in table}
    if row not in rows:
        near = [name for name in rows if name.partition("/")[0] == row.partition("/")[0]] or [*rows]
        raise BadOption(f'`emit` "{row}" is not a row of this comparison, which has {", ".join(near)}')
    if rows[row].refusal:
        raise BadOption(f'`emit` "{row}": {rows[row].refusal}')


def emit(row: str, rows: Sequence[Row], out: Path) -> Path:
    """The copy of the row's model below `out`. Raises BadOption for a row that was not measured or has no file."""
    measured = next(candidate for candidate in rows if candidate.wanted.id == row)
    if measured.checked is None:
        raise BadOption(f'`emit` "{row}": it was not measured ({measured.status}): {measured.reason}')
    if not measured.checked.file:
        raise BadOption(f'`emit` "{row}": {measured.wanted.backend} makes this form in memory and writes no file')
    source = Path(measured.checked.file)
    target = out / EMITTED / (re.sub(r"[^\w.+-]+", "-", row) + source.suffix)
    _copy(source, target)
    if (data := source.with_name(source.name + DATA)).exists():  # under the name that the model refers to
        _copy(data, target.with_name(data.name))
    if source.suffix == ".xml":  # an OpenVINO IR has its weights beside it
        _copy(source.with_suffix(".bin"), target.with_suffix(".bin"))
    return target


def _copy(source: Path, target: Path) -> None:
    """Copy a file; a link in its place is replaced, not followed."""
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
