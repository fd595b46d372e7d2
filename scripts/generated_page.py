"""The command line that all writers of generated pages share: write a page, or check that it is current."""

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def main(page: Path, render: Callable[[], str], description: str | None) -> int:
    """Write the page; with `--check` print how the one on disk differs and return 1 if it does."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not current")
    options = parser.parse_args()
    text, name = render(), str(page.relative_to(ROOT))
    if not options.check:
        page.write_text(text, encoding="utf-8", newline="\n")
        return 0
    on_disk = page.read_text(encoding="utf-8") if page.exists() else ""
    if on_disk == text:
        return 0
    lines = difflib.unified_diff(on_disk.splitlines(True), text.splitlines(True), name, "its sources", n=1)
    sys.stderr.writelines(lines)
    print(f"{name} is not current: run make reference", file=sys.stderr)
    return 1
