"""A workspace as one self-contained HTML page. Draws; measures nothing."""

from collections.abc import Callable
from pathlib import Path

from taglio.flow import workspace
from taglio.flow.workspace import OUTCOME
from taglio.report import blocks, built, network, placement, predicted_error, predicted_time, summary, written
from taglio.report.material import Material, gather, present
from taglio.report.parts import Part
from taglio.report.written import Section, Written
from taglio.transaction import held

# A function that draws a part, and the material that it needs.
_Draw = Callable[[Material], list[Part]]
_SECTIONS: tuple[tuple[str, str, tuple[tuple[_Draw, tuple[str, ...]], ...]], ...] = (
    ("network", "The network", ((network.network, ("graph",)),)),
    ("time", "Where the time goes", ((predicted_time.where_it_goes, ("graph", workspace.PLAN)),)),
    ("latency", "Latency, predicted and measured", ((predicted_time.predicted_and_measured, ()),)),
    ("error", "Error, predicted and measured", ((predicted_error.predicted_error, (workspace.ERROR,)),)),
    ("trade-off", "Error against latency", ((predicted_error.trade_off, (OUTCOME,)),)),
    ("blocks", "Block by block", ((blocks.damage_and_gain, ("graph", workspace.ERROR)), (blocks.ranked, ()))),
    (
        "components",
        "Components",
        (
            (placement.placement, ()),
            (placement.pareto, ()),
            (lambda material: built.components(present(material.manifest)), ("manifest",)),
            (lambda material: built.run_report(present(material.run)), (workspace.RUN,)),
        ),
    ),
    ("configuration", "Configuration", ((built.configuration, ()),)),
)


_SUMMARY: tuple[tuple[_Draw, tuple[str, ...]], ...] = (
    (summary.headline, ()),
    (summary.lede, ()),
    (summary.tiles, ()),
    (summary.side_by_side, ()),
    (summary.parts, ()),
    (summary.places, ()),
    (lambda _: [], (OUTCOME,)),  # where the command that makes the outcome is named
    (summary.conditions, ()),
)


def write(folder: Path, material: Material | None = None) -> Written:
    """Write the page, from `material` if the caller has read it.

    The page shows what the workspace holds and names the commands that make the rest. Raises BadArtifact if the profile
    is missing or damaged, or the page cannot be written.
    """
    with held(folder):
        text, lacks = render(material or gather(folder))
        return written.write(folder / workspace.REPORT, text, lacks)


def render(material: Material) -> tuple[str, list[str]]:
    """The page as text, and a list of what it lacks: each part is drawn separately, and one that fails is replaced by a
    sentence."""
    lacks: list[str] = []
    sections = [
        Section(id_, title, written.drawn(title, [_bound(draw, needs, material) for draw, needs in parts], lacks))
        for id_, title, parts in _SECTIONS
    ]
    head = [_bound(draw, needs, material) for draw, needs in _SUMMARY]
    top = written.drawn("Summary", head, lacks)
    title = f"{material.model} – taglio"
    return written.render(title, material.model, top, sections), lacks


def _bound(draw: _Draw, needs: tuple[str, ...], material: Material) -> written.Draw:
    """`draw` applied to the material; if the material lacks something, a text with the command that makes it."""
    gaps = [need for need in needs if getattr(material, need) is None]
    if gaps:
        return lambda: [built.absent(material.absent[gap]) for gap in gaps]
    return lambda: draw(material)
