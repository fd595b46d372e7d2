"""How `make test-docs` reads a page. The pages themselves are run by it, not here."""

from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="needs taglio[docs]: make test-docs")

from scripts.test_docs import PAGES, commands, same, snippets
from tests.end_to_end.command import ROOT

PAGE = """
<!-- model: detector -->

```toml title="cluster.toml"
a = 1
```

```console
$ one \\
    two
printed ...
$ three
```

```bash
not run
```
"""


def test_a_page_is_read_block_by_block() -> None:
    found = [(each.kind, each.title) for each in snippets(PAGE)]
    assert found == [("model", "detector"), ("toml", "cluster.toml"), ("console", "")]
    assert list(commands(list(snippets(PAGE))[2].body)) == [("one \\\n    two", "printed ...\n"), ("three", "")]


@pytest.mark.parametrize(
    ("wanted", "printed", "expected"),
    [("a ... c\n", "a b c\n", True), ("a c\n", "a  c\n", True), ("a\n", "b\n", False), ("", "whatever\n", True)],
)
def test_output_is_compared(wanted: str, printed: str, expected: bool) -> None:
    assert same(wanted, printed) is expected


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_that_is_run_is_on_the_site_and_has_snippets(path: Path) -> None:
    assert path.relative_to(ROOT / "docs").as_posix() in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert list(snippets(path.read_text(encoding="utf-8")))
