"""What a browser would see of a page."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "br", "wbr", "link", "col"}


@dataclass
class Seen(HTMLParser):
    """Elements, text by section, and tags that do not close in order."""

    sections: dict[str, str] = field(default_factory=dict)
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    raw: dict[str, str] = field(default_factory=dict)
    charts: list[dict[str, Any]] = field(default_factory=list)
    section: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in VOID:
            return
        self.open.append(tag)
        if tag in ("section", "header"):
            self.section = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and self.elements[-1][1].get("type") == "application/json":
            self.charts.append(json.loads(data))
        elif self.open and self.open[-1] in ("style", "script"):
            self.raw[self.open[-1]] = self.raw.get(self.open[-1], "") + data
        else:
            self.sections[self.section] = self.sections.get(self.section, "") + data


def read(text: str) -> Seen:
    """What a page of this text shows."""
    page = Seen()
    page.feed(text)
    page.close()
    return page


def seen(path: Path) -> Seen:
    return read(path.read_text())
