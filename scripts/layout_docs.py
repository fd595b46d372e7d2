"""Write docs/layout.md, the folders in src/taglio with the first line of each docstring. Describes no folder itself."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripts.generated_page import DOCS, ROOT, main
from tests.test_layers import LAYERS

PACKAGE = ROOT / "src" / "taglio"
PAGE = DOCS / "layout.md"

HEAD = """# Layout

<!-- Written by `make reference` from the docstrings in src/taglio/: change those, not this file. -->

The folders of `src/taglio` in the order of imports: code imports only from folders above its own, which
`tests/test_layers.py` checks. The files of `cluster/` have places of their own in this order, from its row down to that
of `cluster/engine/`. Every file begins with a docstring that says what it holds.

| folder | what it holds |
| --- | --- |
"""
FILES = """
Files in no folder, which the folders may import:

| file | what it holds |
| --- | --- |
"""
TAIL = """
## Beside the package

| folder | what it holds |
| --- | --- |
| `tests/` | mirrors `src/`; `end_to_end/` has a file per scenario |
| `tests/backend_suite/` | ONNX's node cases, their variants and random graphs, run in processes that may crash |
| `tests/fuzz/` | damaged models, data, artifacts and cluster files: one line of refusal, never a traceback |
| `benchmarks/` | a command per claim; `METHOD.md`; `results/` with the configuration of every figure |
| `training/` | the script that trained the embedded model |
| `scripts/` | what writes or checks files of this repository |
"""


def render() -> str:
    """The whole page."""
    rooms = [PACKAGE / room.replace(".", "/") for line in LAYERS for room in line]
    folders = dict.fromkeys(folder for room in rooms for folder in _folders(room))
    files = [
        room.with_suffix(".py")
        for room in rooms
        if room.parent == PACKAGE and not room.is_dir() and room.name != "__main__"
    ]
    rows = [_row(f"{folder.relative_to(PACKAGE)}/", folder / "__init__.py") for folder in folders]
    return "".join([HEAD, *rows, FILES, *(_row(file.name, file) for file in files), TAIL])


def _folders(room: Path) -> Iterator[Path]:
    """The folder that holds a room, if it is not the package itself; then the room and the folders in it."""
    if room.parent != PACKAGE:
        yield room.parent
    yield from sorted(path.parent for path in room.rglob("__init__.py"))


def _row(name: str, path: Path) -> str:
    """A row of a table. Raises ValueError if the docstring's first line is not a whole sentence."""
    docstring = ast.get_docstring(ast.parse(path.read_bytes(), str(path))) or ""
    line = docstring.partition("\n")[0]
    if not line.endswith((".", "?")):
        raise ValueError(f"{path.relative_to(ROOT)}: the first line of the docstring must end a sentence")
    return f"| `{name}` | {line} |\n"


if __name__ == "__main__":
    sys.exit(main(PAGE, render, __doc__))
