"""Write pages from templates. A failing page never loses the result: what cannot be drawn is left out and named."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from taglio import artifact
from taglio.errors import with_kind
from taglio.report.parts import Chart, Part, Text

# Tells the browser to load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
Draw = Callable[[], Iterable[Part]]


@dataclass(frozen=True, slots=True)
class Written:
    """A page on disk, and one line naming what it lacks ("" for nothing)."""

    path: Path
    remark: str = ""


def write(path: Path, text: str, lacks: Sequence[str]) -> Written:
    """Write a page's text. Raises BadArtifact if it cannot be written."""
    artifact.write_bytes(path, text.encode(errors="replace"))
    return Written(path, f"{path} lacks {'; '.join(dict.fromkeys(lacks))}" if lacks else "")


def offer(make: Callable[[], Written]) -> str:
    """Write a page for a result that is valid without it; returns one line on what is missing, "" for nothing."""
    try:
        return make().remark
    except Exception as error:  # the result is valid without the page
        return f"the page was not written: {with_kind(error, 160)}"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and what draws the parts below it."""

    id: str
    title: str
    draws: Sequence[Draw]


def render(title: str, brand: str, summary: Sequence[Draw], sections: Sequence[Section]) -> tuple[str, list[str]]:
    """A page as text, one self-contained file, and a list of what it lacks: each part is drawn separately, and one that
    fails is replaced by a sentence."""
    lacks: list[str] = []
    top = _drawn("Summary", summary, lacks)
    below = [(each, _drawn(each.title, each.draws, lacks)) for each in sections]
    page = _template("page.html.j2").render(title=title, brand=brand, summary=top, sections=below, policy=_POLICY)
    return page, lacks


def _drawn(section: str, draws: Iterable[Draw], lacks: list[str]) -> list[Markup]:
    parts: list[Markup] = []
    for draw in draws:
        try:
            parts += [_show(part) for part in draw()]
        except Exception as error:  # any error: the other parts do not need this one
            lacks.append(f'"{section}" ({with_kind(error, 160)})')
            parts.append(_show(Text(f"This part could not be drawn ({with_kind(error, 160)}).", "absent")))
    return parts


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
