"""What MkDocs calls while it builds the site: the public names of taglio on docs/api.md, doctests as code."""

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
import taglio

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).+)*", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """A section for each name of `taglio.__all__`, from where it is defined."""
    if page.file.src_uri != "api.md":
        return markdown
    names = sorted(taglio.__all__, key=lambda name: (name != "optimize", name))
    return markdown + "".join(
        f"\n::: {taglio._HOMES[name]}.{name}\n    options:\n      heading_level: 2\n      show_root_heading: true\n"
        f"      heading: taglio.{name}\n      toc_label: {name}\n"
        for name in names
    )


class Doctests(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """Examples that stand in a docstring without a heading of their own become code."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Fence them."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
