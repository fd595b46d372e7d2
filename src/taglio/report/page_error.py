"""How well error was predicted, and where every plan that was tried lies between error and latency."""

from collections.abc import Sequence
from math import exp

from taglio.error.loss import Metric
from taglio.error.model import ErrorModel
from taglio.flow.outcome import Outcome, Point
from taglio.report.page_charts import Axis, Chart, linear, logarithmic
from taglio.report.page_markup import (
    MISSING,
    Html,
    allowed,
    join,
    limit,
    ms,
    ms_decimals,
    percent,
    plural,
    shown,
    table,
    tag,
)
from taglio.report.page_material import Material
from taglio.report.page_summary import STEADY

# Above this ratio of errors a linear axis would press the plans against its foot.
_LINEAR_UP_TO = 8.0
_PURE = {"float32": "float", "int8": "all int8"}


def predicted_error(material: Material) -> Html:
    """Random subsets in int8: cross-validated prediction against measurement."""
    known, outcome = material.error, material.outcome
    assert known is not None
    drawn = [each for each in known.subsets if each.error > 0.0 and each.predicted > 0.0]
    metric = known.metric
    unit, scale = metric.axis
    ends = [value * scale for each in drawn for value in (each.predicted, each.error)]
    if outcome is not None:
        ends += [outcome.plan.error * scale, outcome.plan.predicted_error * scale]
    x, y = logarithmic(f"predicted {unit}", ends), logarithmic(f"measured {unit}", ends)
    chart = Chart(x, y, f"predicted against measured {metric.title}")
    chart.line(lambda x: x, "identity")
    chart.line(lambda x: known.upper(x / scale) * scale, "upper")
    for each in drawn:
        title = _pair(metric, plural(len(each.assignment), "block"), each.predicted, each.error)
        chart.mark("circle", each.predicted * scale, each.error * scale, "dot", title, 3.6)
    for (predicted, measured), shape, class_, text in _key_errors(outcome):
        chart.mark(shape, predicted * scale, measured * scale, class_, _pair(metric, text, predicted, measured))
        chart.label(predicted * scale, measured * scale, text)
    caption = (
        f"Solid: predicted equals measured. Dashed: {_upper_end(known)}, under which {limit(known.confidence)} of new "
        "subsets should stay."
    )
    figure = tag("figure", chart.draw(), tag("figcaption", caption))
    notes = [tag("p", f"Note: {note}.") for note in known.notes]
    return join(
        tag("p", _error_lede(known, len(drawn))), *notes, tag("div", figure, _error_facts(known), class_="columns")
    )


def trade_off(material: Material) -> Html:
    """Every plan that was tried, by predicted latency and measured error; then once more, close to the bound."""
    outcome = material.outcome
    assert outcome is not None
    chosen, drift = _chosen(outcome), material.drift()
    plans = [point for point in outcome.points if point.name not in _PURE]
    label = "error against latency of every plan tried"
    everything = _scatter(outcome, outcome.points, chosen, drift, _error_axis(outcome), label)
    caption = (
        "Each mark stands at its predicted latency and its error on held-out inputs; a stroke leads to the latency "
        "measured"
        + (", the machine's drift taken out" if abs(drift - 1.0) > STEADY else "")
        + ". Hollow marks break the bound."
    )
    pictures = [tag("figure", everything, tag("figcaption", caption))]
    if len(plans) > 1:
        unit, scale = outcome.metric.axis
        errors = [point.error * scale for point in plans] + [outcome.max_error * scale]
        near = _scatter(outcome, plans, chosen, drift, linear(unit, errors), "the same, close to the bound")
        beside = "The same without float and all int8: the plans beside the bound."
        pictures.append(tag("figure", near, tag("figcaption", beside)))
    decimals = ms_decimals(max((point.predicted_s for point in outcome.points), default=0.0))
    rows: list[list[object]] = [
        [
            tag("b", f"{point.name}, chosen") if point is chosen else point.name,
            ms(point.predicted_s, decimals),
            ms(point.measured_s, decimals) if point.measured_s else MISSING,
            tag("span", shown(outcome.metric, point.error), class_=None if point.holds else "bad"),
            point.int8_blocks,
        ]
        for point in sorted(outcome.points, key=lambda each: each.predicted_s)
    ]
    head = ["plan", "predicted", "measured", outcome.metric.title, "int8 blocks"]
    numbers = table(head, rows, class_="compare-all dense")
    held = sum(point.holds for point in outcome.points)
    bound = allowed(outcome.metric, outcome.max_error)
    lede = f"{plural(len(outcome.points), 'plan')} tried, {held} within the bound, {bound}. "
    lede += "The chosen one is the fastest by the clock among those timed that hold it."
    return join(tag("p", lede), tag("div", *pictures, class_="columns"), numbers)


def _scatter(
    outcome: Outcome, points: Sequence[Point], chosen: Point | None, drift: float, axis: Axis, label: str
) -> Html:
    steady = [(point, point.measured_s / drift * 1e3) for point in points if point.measured_s]
    reach = [point.predicted_s * 1e3 for point in points] + [measured for _, measured in steady]
    chart = Chart(linear("latency, ms", reach), axis, label)
    metric, scale = outcome.metric, outcome.metric.axis[1]
    bound = outcome.max_error * scale
    chart.area_above(bound, "beyond")
    chart.across(bound, "upper", f"bound {allowed(metric, outcome.max_error)}")
    for point, measured in steady:
        chart.segment(point.predicted_s * 1e3, measured, point.error * scale, "whisker")
    for point in points:
        shape, class_ = _look(point, point is chosen)
        chart.mark(shape, point.predicted_s * 1e3, point.error * scale, class_, _describe(metric, point))
    for point in points:
        text = "chosen plan" if point is chosen else _PURE.get(point.name)
        if text:
            chart.label(point.predicted_s * 1e3, point.error * scale, text)
    return chart.draw()


def _error_axis(outcome: Outcome) -> Axis:
    unit, scale = outcome.metric.axis
    values = [point.error * scale for point in outcome.points] + [outcome.max_error * scale]
    positive = [value for value in values if value > 0.0]
    if positive and max(positive) > _LINEAR_UP_TO * max(min(positive), outcome.max_error * scale):
        return logarithmic(unit, values, zero=True)
    return linear(unit, values, from_zero=True)


def _chosen(outcome: Outcome) -> Point | None:
    """The point that became the plan."""
    same = [
        point
        for point in outcome.points
        if point.measured_s == outcome.plan.latency.median_s and point.predicted_s == outcome.plan.predicted_latency_s
    ]
    return same[0] if same else None


def _look(point: Point, chosen: bool) -> tuple[str, str]:
    pure = {"float32": ("square", "k-float"), "int8": ("diamond", "k-int8")}
    shape, class_ = ("ring", "k-plan") if chosen else pure.get(point.name, ("circle", "k-tried"))
    return shape, class_ if point.holds else f"{class_} hollow"


def _describe(metric: Metric, point: Point) -> str:
    measured = f"\nmeasured {ms(point.measured_s)}" if point.measured_s else ""
    verdict = "holds the bound" if point.holds else "breaks the bound"
    return (
        f"{point.name}: {plural(point.int8_blocks, 'int8 block')}\npredicted {ms(point.predicted_s)}{measured}\n"
        f"{metric.title} {shown(metric, point.error)}, {verdict}"
    )


def _key_errors(outcome: Outcome | None) -> list[tuple[tuple[float, float], str, str, str]]:
    """All int8 and the plan, where a logarithm can show them: predicted and measured error, shape, class and name."""
    if outcome is None:
        return []
    known = ((outcome.int8, "diamond", "k-int8", "all int8"), (outcome.plan, "ring", "k-plan", "chosen plan"))
    return [
        ((each.predicted_error, each.error), shape, class_, text)
        for each, shape, class_, text in known
        if each.error > 0.0 and each.predicted_error > 0.0
    ]


def _error_lede(known: ErrorModel, drawn: int) -> str:
    under = sum(each.error <= known.upper(each.predicted) for each in known.subsets)
    left = len(known.subsets) - drawn
    text = f"{plural(len(known.subsets), 'subset')} of blocks in int8, each predicted by a fit that did not see it"
    miss = percent(known.typical_miss()) if known.metric.smooth else known.metric.difference(known.typical_miss())
    text += f": median error of the prediction {miss}" if drawn else ""
    text += f"; {under} of {len(known.subsets)} stay under the upper line." if known.subsets else "."
    return text + (f" {plural(left, 'subset')} without any error cannot be drawn on these axes." if left else "")


def _error_facts(known: ErrorModel) -> Html:
    facts: list[tuple[str, str]] = [
        ("metric", known.metric.name + (", the largest over outputs" if known.metric.smooth else "")),
        ("evaluations", f"{known.evaluations} on {plural(known.samples, 'sample')}"),
        ("upper end", f"predicted {_upper_end(known)} at {limit(known.confidence)}"),
    ]
    for output in known.outputs:
        terms = f"{len(output.blocks)} block terms, {len(output.edges)} edge terms"
        link = f"{exp(output.level):.3f} · s^({output.exponent:.3f} / 2), s a sum of {terms}"
        facts.append((f"output {output.output}", link))
    worst = sorted((each for each in known.alone if each.precision == "int8"), key=lambda each: -each.error)[:8]
    basis = known.metric.basis
    rows: list[list[object]] = [[each.block, shown(basis, each.error)] for each in worst]
    items = [part for name, text in facts for part in (tag("dt", name), tag("dd", text))]
    title = "error" if basis is known.metric else basis.name
    alone = table(["worst alone in int8", title], rows, class_="dense")
    return tag("div", alone, tag("dl", *items, class_="facts"))


def _upper_end(known: ErrorModel) -> str:
    if known.metric.smooth:
        return f"× {exp(known.upper_log):.3f}"
    return f"and {known.metric.difference(known.upper_add)} worse"


def _pair(metric: Metric, name: str, predicted: float, measured: float) -> str:
    return f"{name}\npredicted {shown(metric, predicted)}\nmeasured {shown(metric, measured)}"
