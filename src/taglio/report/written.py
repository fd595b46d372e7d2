"""Write pages from templates: self-contained files, drawn from parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from taglio import artifact
from taglio.errors import with_kind
from taglio.report.parts import Chart, Part

# Tells the browser to load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and the parts below it."""

    id: str
    title: str
    parts: Sequence[Part]


def write(path: Path, text: str) -> Path:
    """Write a page's text; returns `path`. Raises BadArtifact if it cannot be written."""
    artifact.write_bytes(path, text.encode(errors="replace"))
    return path


def offer(make: Callable[[], object]) -> str:
    """Write a page for a result that is valid without it; returns one line if that fails, "" otherwise."""
    try:
        make()
    except Exception as error:  # the result is valid without the page
        return f"the page was not written: {with_kind(error, 160)}"
    return ""


def render(title: str, brand: str, summary: Sequence[Part], sections: Sequence[Section]) -> str:
    """A page as text, one self-contained file."""
    top = list(map(_show, summary))
    below = [(section, list(map(_show, section.parts))) for section in sections]
    return _template("page.html.j2").render(title=title, brand=brand, summary=top, sections=below, policy=_POLICY)


def _show(part: Part) -> Markup:
    shown: Markup = getattr(_template("parts.html.j2").module, "show")(part)  # noqa: B009  # not an attribute that types know
    return shown


@cache
def _environment() -> Environment:
    loader = PackageLoader("taglio.report")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader
    )
    environment.filters["kind"] = lambda part: type(part).__name__
    environment.filters["chart"] = _chart
    environment.globals["file"] = lambda name: Markup(loader.get_source(environment, name)[0])  # noqa: S704  # our own files
    return environment


def _template(name: str) -> Template:
    return _environment().get_template(name)


def _chart(chart: Chart) -> Markup:
    """A chart as JSON in which no name can close the script element. Values that are not finite become null."""
    return Markup(msgspec.json.encode(chart).decode().replace("<", "\\u003c"))  # noqa: S704  # escaped here
