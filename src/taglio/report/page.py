"""One self-contained HTML page of a workspace. Draws; measures nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from taglio.flow import workspace
from taglio.flow.transaction import held
from taglio.report import (
    page_blocks,
    page_cluster,
    page_error,
    page_network,
    page_pareto,
    page_parts,
    page_sensitivity,
    page_summary,
    page_time,
    written,
)
from taglio.report.page_markup import Html, tag
from taglio.report.page_material import OUTCOME, Material, gather
from taglio.report.written import Written

# The browser itself is told to load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a section, and the material it cannot be drawn without."""

    draw: Callable[[Material], Html]
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Section:
    """A heading and what stands under it."""

    id: str
    title: str
    parts: tuple[_Part, ...]


_SECTIONS = (
    _Section("network", "The network", (_Part(page_network.network, ("graph",)),)),
    _Section("time", "Where the time goes", (_Part(page_time.where_it_goes, ("graph", workspace.PLAN)),)),
    _Section("latency", "Latency, predicted against measured", (_Part(page_time.predicted_and_measured, ()),)),
    _Section("error", "Error, predicted against measured", (_Part(page_error.predicted_error, (workspace.ERROR,)),)),
    _Section("trade-off", "Error against latency", (_Part(page_error.trade_off, (OUTCOME,)),)),
    _Section(
        "blocks",
        "Block by block",
        (
            _Part(page_sensitivity.damage_and_gain, ("graph", workspace.ERROR)),
            _Part(page_blocks.sensitivity, ()),
        ),
    ),
    _Section(
        "components",
        "Components",
        (
            _Part(page_cluster.placement, ()),
            _Part(page_pareto.part, ()),
            _Part(page_parts.components, ("manifest",)),
            _Part(page_parts.run_report, (workspace.RUN,)),
        ),
    ),
    _Section("configuration", "Configuration", (_Part(page_parts.configuration, ()),)),
)


def write(folder: Path) -> Written:
    """Write the page.

    The page shows what the workspace holds and names the command that makes the rest. Raises BadArtifact where the
    profile is missing or damaged, or the page cannot be written.
    """
    with held(folder):
        text, lacks = render(gather(folder))
        return written.write(folder / workspace.REPORT, text, lacks)


def render(material: Material) -> tuple[str, list[str]]:
    """The page as text, and what it lacks: each part is drawn by itself; one that fails is replaced by a sentence."""
    lacks: list[str] = []
    title = f"{material.model} – taglio"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", title),
        tag("style", _own("page_style.css")),
    )
    body = tag(
        "body",
        tag("main", _summary(material, lacks), *(_section(section, material, lacks) for section in _SECTIONS)),
        tag("script", _own("page_script.js")),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n", lacks


def _drawn(draw: Callable[[Material], Html | None], material: Material, name: str, lacks: list[str]) -> Html | None:
    return written.drawn(lambda: draw(material), name, lacks, lambda why: tag("p", why, class_="absent"))


def _headline(material: Material) -> Html:
    return tag("h1", page_summary.headline(material))


def _summary(material: Material, lacks: list[str]) -> Html:
    def part(draw: Callable[[Material], Html | None]) -> Html | None:
        return _drawn(draw, material, "Summary", lacks)

    links = [tag("a", section.title, href=f"#{section.id}") for section in _SECTIONS]
    gap = material.absent.get(OUTCOME)
    return tag(
        "header",
        tag("p", tag("b", "taglio"), tag("span", material.model), class_="brand"),
        part(_headline),
        part(page_summary.lede),
        part(page_summary.tiles),
        part(page_summary.side_by_side),
        page_parts.absent(gap) if gap is not None else None,
        part(page_summary.conditions),
        tag("nav", *links, aria_label="sections"),
    )


def _section(section: _Section, material: Material, lacks: list[str]) -> Html:
    parts: list[Html | None] = []
    for part in section.parts:
        gaps = [need for need in part.needs if getattr(material, need) is None]
        if gaps:
            parts += [page_parts.absent(material.absent[gap]) for gap in gaps]
        else:
            parts.append(_drawn(part.draw, material, section.title, lacks))
    return tag("section", tag("h2", section.title), *parts, id=section.id)


def _own(name: str) -> Html:
    """A file of this package, as it is: style and script are not escaped."""
    return Html((files("taglio.report") / name).read_text())
