"""Write docs/layout.md from the docstrings in src/taglio, in the order of imports. Describes no file itself."""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "taglio"
PAGE = ROOT / "docs" / "layout.md"

sys.path.insert(0, str(ROOT))
from tests.test_layers import LAYERS  # noqa: E402  (tests/ is no installed package)

HEAD = """# Layout

<!-- Written by `make reference` from the docstrings in src/taglio/: change those, not this file. -->

Folders and files of `src/taglio` in the order of imports: each imports only from those above it, which
`tests/test_layers.py` checks.
"""
TAIL = """## Beside the package

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
    parts = [HEAD]
    for room in (room for line in LAYERS for room in line):
        path = PACKAGE / room.replace(".", "/")
        if path.is_dir():
            parts += [f"## {room.replace('.', '/')}/", "", _first_paragraph(path / "__init__.py"), ""]
            parts += _table(_files(path))
        elif room != "__main__":
            parts += [f"## {room.replace('.', '/')}.py", "", _first_paragraph(path.with_suffix(".py")), ""]
    return "\n".join([*parts, TAIL])


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder and of the folders in it, by the name that the page gives them."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if path.name != "__init__.py":
            yield str(name), path
        elif name.parent != Path():
            yield f"{name.parent}/", path


def _table(files: Iterator[tuple[str, Path]]) -> list[str]:
    rows = [f"| `{name}` | {_first_paragraph(path).replace('|', chr(92) + '|')} |" for name, path in files]
    return ["| file | what it holds |", "| --- | --- |", *rows, ""] if rows else []


def _first_paragraph(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_bytes(), str(path))) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 where the page is not current")
    check = parser.parse_args().check
    text = render()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is not current: run `make reference`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
