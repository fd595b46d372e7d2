"""Copy the model of one row out of a comparison. Measures nothing."""

import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from taglio.artifact import DATA, replacing
from taglio.compare.row import Row, Wanted
from taglio.errors import BadOption
from taglio.transaction import EMITTED


def known(row: str, asked: Collection[Sequence[Wanted]]) -> None:
    """Raises BadOption if `row` is the id of none of the rows `asked` for, or of one that cannot exist."""
    wanted = {each.id: each for some in asked for each in some}
    if row not in wanted:
        near = [each for each in wanted if each.partition("/")[0] == row.partition("/")[0]] or [*wanted]
        raise BadOption(f'`emit` "{row}" is not a row of this comparison, which has {", ".join(near)}')
    if wanted[row].refusal:
        raise BadOption(f'`emit` "{row}": {wanted[row].refusal}')


def emit(row: str, rows: Sequence[Row], out: Path) -> Path:
    """The copy of the row's model below `out`. Raises BadOption for a row that was not measured or has no file."""
    each = next(each for each in rows if each.wanted.id == row)
    if each.checked is None:
        raise BadOption(f'`emit` "{row}": it was not measured ({each.status}): {each.reason}')
    if not each.checked.file:
        raise BadOption(f'`emit` "{row}": {each.wanted.backend} makes this form in memory and writes no file')
    source = Path(each.checked.file)
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
