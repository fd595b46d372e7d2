"""Pages that are written by hand agree with the code: messages that are quoted, files that are named."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from taglio.cli.words import as_flags
from taglio.deploy import verify, write
from taglio.flow import workspace
from taglio.transaction import FOLDERS
from tests.end_to_end.command import ROOT

ANY = "…"
NOTES = sorted((ROOT / "docs" / "notes").glob("*.md"))
MESSAGES = re.findall(r"^```text\n(.+)\n```$", (ROOT / "docs" / "troubleshooting.md").read_text("utf-8"), re.MULTILINE)


def literals() -> Iterator[str]:
    """Every text that the source writes, as the command line shows it, with `…` for each value in it."""
    for path in sorted((ROOT / "src" / "taglio").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.JoinedStr):
                yield as_flags(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield as_flags(node.value)


def test_every_quoted_message_is_written_by_the_code() -> None:
    """A text of the source is the whole of a message, or all behind its leading `…`. A value may be empty."""
    long = {text for text in literals() if len(text.replace(ANY, "").strip()) >= 12}
    patterns = [re.compile(".*".join(map(re.escape, text.split(ANY)))) for text in long]
    unwritten = [
        message
        for message in MESSAGES
        if not any(pattern.fullmatch(text) for pattern in patterns for text in (message, message.removeprefix(ANY)))
    ]
    assert MESSAGES and unwritten == []


def test_every_file_of_a_workspace_is_named() -> None:
    page = (ROOT / "docs" / "workspace.md").read_text(encoding="utf-8")
    artifacts = ("setup", "graph", "profile", "error", "plan", "run", "delivered", "outcome", "manifest")
    assert {workspace.SETUP, workspace.GRAPH, workspace.PROFILE, workspace.ERROR, workspace.PLAN} <= set(artifacts)
    names = [f"{name}.json" for name in artifacts]
    names += [name for files in workspace.MADE_FROM.values() for name in files]
    names += [workspace.FLOAT_MODEL, f"{workspace.CALIBRATED}.json"]
    names += [verify.MANIFEST, verify.SAMPLES, write.README, write.VERIFY]
    names += [f"{name}/" for name in FOLDERS if name]
    assert [name for name in names if name.removeprefix("deploy/") not in page] == []


@pytest.mark.parametrize("page", [ROOT / "docs" / "design.md", *NOTES], ids=lambda page: page.stem)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    folders = (ROOT / name for name in ("src", "tests", "benchmarks"))
    paths = [path.as_posix() for folder in folders for path in folder.rglob("*.py")]
    names = re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8"))
    assert [name for name in names if not any(path.endswith(f"/{name}") for path in paths)] == []


def test_the_way_from_the_command_to_the_file_is_at_most_eight_functions() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    way = re.findall(r"^\| `(\w+)` \| `([\w/]+\.py)` \|", page, re.MULTILINE)
    assert 0 < len(way) <= 8
    for function, module in way:
        assert f"\ndef {function}(" in (ROOT / "src" / "taglio" / module).read_text(encoding="utf-8"), module


def test_there_is_one_introduction() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) < 900
    assert '--8<-- "README.md:introduction"' in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    shared = readme.split("[start:introduction]")[1].split("[end:introduction]")[0]
    assert "](" not in shared  # the site's links are relative to docs/
