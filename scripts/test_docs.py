"""Run the pages of docs/, README.md and the notebooks of examples/: every snippet, with what it prints.

A page is read from top to bottom, in a temporary folder of its own:

    ```console      lines that start with "$ " run in bash; what stands below them must be printed ("..." for
                    any text, nothing for whatever comes); a refusal shows its one line
    ```pycon        as doctest runs it, with one namespace for the page
    ```python title="NAME", ```toml title="NAME"    writes the file
    <!-- model: NAME -->    makes a stand-in for the reader's model (tests/docs_models.py)

Other blocks are shown and not run: a page says so with ```text or ```bash where it has to.
"""

import argparse
import doctest
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *(ROOT / "docs" / f"{name}.md" for name in ("quickstart", "api", "serving")),
        *(ROOT / "docs" / "how-to").glob("*.md"),
    ]
)
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$|^<!-- model: (\w+) -->$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PATIENCE_S = 900


class Failed(Exception):
    """A snippet that does not do what its page says."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of a page: the language, the file that it is (empty: it is run), its text and the line it starts at."""

    kind: str
    title: str
    body: str
    line: int


def snippets(text: str) -> Iterator[Snippet]:
    """Every block of a page that is run or written."""
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found[4]:
            yield Snippet("model", found[4], "", line)
        elif found[1] in ("console", "pycon") or found[2]:
            yield Snippet(found[1], found[2] or "", found[3], line)


def same(wanted: str, printed: str) -> bool:
    """Whether `printed` is `wanted`, in which "..." stands for any text and blanks count once."""
    check = doctest.OutputChecker().check_output
    return not wanted.strip() or check(wanted.rstrip() + "\n", printed.rstrip() + "\n", FLAGS)


def commands(body: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it should print; a line that ends in a backslash goes on."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        found = re.match(r"((?:.*\\\n)*.*)\n?", part)
        assert found is not None
        yield found[1], part[found.end() :]


def page(path: Path) -> None:
    """Run one page. Raises Failed at the first snippet that differs."""
    names: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="taglio-docs-") as name:
        folder = Path(name)
        (folder / ".bin").mkdir()
        tool = folder / ".bin" / "taglio"
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m taglio "$@"\n')
        tool.chmod(0o755)
        source = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        variables = {
            **os.environ,
            "PATH": f"{tool.parent}:{os.environ['PATH']}",
            "PYTHONPATH": source,
            "COLUMNS": "120",
        }
        for each in snippets(path.read_text(encoding="utf-8")):
            where = f"{path.relative_to(ROOT)}:{each.line}"
            if each.kind == "model":
                words = [sys.executable, "-m", "tests.docs_models", each.title]
                subprocess.run(words, cwd=folder, env=variables, check=True)
            elif each.title:
                (folder / each.title).write_text(each.body, encoding="utf-8")
            elif each.kind == "pycon":
                _pycon(each, where, folder, names)
            else:
                for command, wanted in commands(each.body):
                    done = subprocess.run(
                        ["/bin/bash", "-c", command],
                        cwd=folder,
                        env=variables,
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        text=True,
                        check=False,
                        timeout=PATIENCE_S,
                    )
                    printed = done.stdout + (done.stderr if done.returncode else "")
                    if not same(wanted, printed) or bool(done.returncode) != wanted.startswith("taglio: "):
                        raise Failed(f"{where}: {command}\nwanted:\n{wanted}\nprinted ({done.returncode}):\n{printed}")


def _pycon(each: Snippet, where: str, folder: Path, names: dict[str, object]) -> None:
    test = doctest.DocTestParser().get_doctest(each.body, names, where, where, each.line)
    said: list[str] = []
    before = Path.cwd()
    os.chdir(folder)
    try:
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        if runner.run(test, out=said.append, clear_globs=False).failed:
            raise Failed(f"{where}:\n{''.join(said)}")
    finally:
        os.chdir(before)
    names.update(test.globs)


def notebook(path: Path) -> None:
    """Run one notebook from top to bottom, in a temporary folder."""
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="taglio-docs-") as folder:
        os.environ["PYTHONPATH"] = str(ROOT / "src")
        client = NotebookClient(
            book, timeout=PATIENCE_S, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        try:
            client.execute()
        except CellExecutionError as error:
            raise Failed(f"{path.relative_to(ROOT)}: {error}") from None


def main() -> int:
    """Run everything, or what the arguments name a part of; 1 where something differs."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("names", nargs="*", help="parts of paths (default: all)")
    wanted = options.parse_args().names
    failed = 0
    for path in [*PAGES, *NOTEBOOKS]:
        if wanted and not any(name in str(path) for name in wanted):
            continue
        start = time.monotonic()
        try:
            (notebook if path.suffix == ".ipynb" else page)(path)
        except Failed as failure:
            failed += 1
            print(failure)
        else:
            print(f"{path.relative_to(ROOT)}: ran in {time.monotonic() - start:.0f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
