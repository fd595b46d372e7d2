"""A workspace as one self-contained HTML page. Draws; measures nothing."""

from pathlib import Path

from taglio.flow import workspace
from taglio.report import (
    blocks,
    built,
    by_input,
    console,
    network,
    placement,
    predicted_error,
    predicted_time,
    summary,
    ways,
    written,
)
from taglio.report.material import Material, gather
from taglio.report.parts import Heading
from taglio.report.written import Section
from taglio.transaction import held

_SUMMARY = (summary.lede, summary.side_by_side, summary.parts, summary.conditions)
# Only of a plan that was chosen for a rate.
_WAYS = ("ways", "How to run it", (ways.chosen, ways.loads, ways.tried))
_SECTIONS = (
    ("network", "The network", (predicted_time.where_it_goes, network.network)),
    ("latency", "Latency, predicted and measured", (predicted_time.predicted_and_measured,)),
    ("error", "Error, predicted and measured", (predicted_error.predicted_error, by_input.by_input)),
    ("trade-off", "Error against latency", (predicted_error.trade_off,)),
    ("blocks", "Block by block", (blocks.ranked,)),
    ("components", "Components", (placement.placement, placement.pareto, built.built, built.run)),
    ("configuration", "Configuration", (built.configuration,)),
)


def write(folder: Path, material: Material | None = None) -> Path:
    """Write the page, from `material` if the caller has read it; returns its path.

    The page shows what the workspace holds. Raises BadArtifact if the profile is missing or damaged, or the page cannot
    be written.
    """
    with held(folder):
        return written.write(folder / workspace.REPORT, render(material or gather(folder)))


def render(material: Material) -> str:
    """The page as text."""
    top = [part for draw in (summary.headline, *_SUMMARY) for part in draw(material)]
    return written.render(f"{material.model} – taglio", material.model, top, _sections(material))


def show(material: Material) -> None:
    """Print the texts and tables of the page below its headline."""
    for draw in _SUMMARY:
        console.show(draw(material))
    for section in _sections(material):
        console.show([Heading(section.title), *section.parts])


def _sections(material: Material) -> list[Section]:
    rated = material.outcome is not None and material.outcome.rate is not None
    listed = [_WAYS, *_SECTIONS] if rated else _SECTIONS
    drawn = [(id_, title, [part for draw in draws for part in draw(material)]) for id_, title, draws in listed]
    return [Section(id_, title, parts) for id_, title, parts in drawn if parts]
