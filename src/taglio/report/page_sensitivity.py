"""What each block costs in error against what it gives in time, and which to leave out of quantisation."""

from taglio.error.loss import Metric
from taglio.flow.sensitivity import Sensitivity, sensitivity
from taglio.report.page_charts import Chart, linear, logarithmic
from taglio.report.page_markup import Html, join, plural, shown, table, tag
from taglio.report.page_material import Material

_NAMED = 6
_REASONS = 12


def damage_and_gain(material: Material) -> Html:
    """A mark for each block: time saved by its error alone, hollow where it is better left out."""
    assert material.graph is not None
    assert material.error is not None
    rows = [row for row in sensitivity(material.graph, material.profile, material.error) if row.damage]
    if not rows:
        return tag("p", "No block was measured alone.")
    x = linear("time saved by int8, ms", [row.saved_s * 1e3 for row in rows])
    basis = material.metric.basis
    title, scale = basis.axis
    y = logarithmic(f"alone: {title}", [(row.damage or 0.0) * scale for row in rows])
    chart = Chart(x, y, "error alone against time saved, by block")
    for row in rows:
        class_ = "k-float hollow" if row.leave_out else "k-int8"
        chart.mark("circle", row.saved_s * 1e3, (row.damage or 0.0) * scale, class_, _describe(row, basis))
    out = sorted((row for row in rows if row.leave_out), key=lambda row: -row.noise_share)
    for row in out[:_NAMED]:
        chart.label(row.saved_s * 1e3, (row.damage or 0.0) * scale, row.block.strip("/").split("/")[-1])
    caption = "Right: int8 pays. Up: int8 hurts. Hollow: better left out."
    figure = tag("figure", chart.draw(), tag("figcaption", caption))
    lede = f"{len(out)} of {plural(len(rows), 'block')} are out of proportion, or slower in int8."
    reasons: list[list[object]] = [[row.block, shown(basis, row.damage), row.leave_out] for row in out[:_REASONS]]
    listed = table(["leave out", "error alone", "why"], reasons, class_="dense") if reasons else None
    return join(tag("p", lede), tag("div", figure, listed, class_="columns"))


def _describe(row: Sensitivity, basis: Metric) -> str:
    verdict = f"leave out: {row.leave_out}" if row.leave_out else "quantise"
    return (
        f"{row.block}\n{basis.title} alone {shown(basis, row.damage)}, {row.noise_share:.1%} of all noise\n"
        f"saves {row.saved_s * 1e6:.0f} us\n{verdict}"
    )
