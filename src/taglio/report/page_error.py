"""How well error was predicted, and where every plan that was tried lies between error and latency."""

from collections.abc import Sequence
from math import exp
from statistics import median

from taglio.error.model import ErrorModel
from taglio.outcome import Outcome, Point
from taglio.report.page_charts import Axis, Chart, linear, logarithmic
from taglio.report.page_markup import MISSING, Html, join, limit, ms, ms_decimals, percent, plural, table, tag
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
    ends = [value * 100 for each in drawn for value in (each.predicted, each.error)]
    if outcome is not None:
        ends += [outcome.plan.error * 100, outcome.plan.predicted_error * 100]
    x, y = logarithmic("predicted error, %", ends), logarithmic("measured error, %", ends)
    chart = Chart(x, y, "predicted against measured error")
    factor = exp(known.upper_log)
    chart.line(lambda x: x, "identity")
    chart.line(lambda x: x * factor, "upper")
    for each in drawn:
        title = _pair(plural(len(each.assignment), "block"), each.predicted, each.error)
        chart.mark("circle", each.predicted * 100, each.error * 100, "dot", title, 3.6)
    for (predicted, measured), shape, class_, text in _key_errors(outcome):
        chart.mark(shape, predicted * 100, measured * 100, class_, _pair(text, predicted, measured))
        chart.label(predicted * 100, measured * 100, text)
    caption = (
        f"Solid: predicted equals measured. Dashed: × {factor:.3f}, under which {limit(known.confidence)} of new "
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
        errors = [point.error * 100 for point in plans] + [outcome.max_error * 100]
        near = _scatter(outcome, plans, chosen, drift, linear("error, %", errors), "the same, close to the bound")
        beside = "The same without float and all int8: the plans beside the bound."
        pictures.append(tag("figure", near, tag("figcaption", beside)))
    decimals = ms_decimals(max((point.predicted_s for point in outcome.points), default=0.0))
    rows: list[list[object]] = [
        [
            tag("b", f"{point.name}, chosen") if point is chosen else point.name,
            ms(point.predicted_s, decimals),
            ms(point.measured_s, decimals) if point.measured_s else MISSING,
            percent(point.error) if point.holds else tag("span", percent(point.error), class_="bad"),
            point.int8_blocks,
        ]
        for point in sorted(outcome.points, key=lambda each: each.predicted_s)
    ]
    numbers = table(["plan", "predicted", "measured", "error", "int8 blocks"], rows, class_="compare-all dense")
    held = sum(point.holds for point in outcome.points)
    lede = f"{plural(len(outcome.points), 'plan')} tried, {held} within the bound of {limit(outcome.max_error)}. "
    lede += "The chosen one is the fastest by the clock among those timed that hold it."
    return join(tag("p", lede), tag("div", *pictures, class_="columns"), numbers)


def _scatter(
    outcome: Outcome, points: Sequence[Point], chosen: Point | None, drift: float, axis: Axis, label: str
) -> Html:
    steady = [(point, point.measured_s / drift * 1e3) for point in points if point.measured_s]
    reach = [point.predicted_s * 1e3 for point in points] + [measured for _, measured in steady]
    chart = Chart(linear("latency, ms", reach), axis, label)
    bound = outcome.max_error * 100
    chart.area_above(bound, "beyond")
    chart.across(bound, "upper", f"bound {limit(outcome.max_error)}")
    for point, measured in steady:
        chart.segment(point.predicted_s * 1e3, measured, point.error * 100, "whisker")
    for point in points:
        shape, class_ = _look(point, point is chosen)
        chart.mark(shape, point.predicted_s * 1e3, point.error * 100, class_, _describe(point))
    for point in points:
        text = "chosen plan" if point is chosen else _PURE.get(point.name)
        if text:
            chart.label(point.predicted_s * 1e3, point.error * 100, text)
    return chart.draw()


def _error_axis(outcome: Outcome) -> Axis:
    values = [point.error * 100 for point in outcome.points] + [outcome.max_error * 100]
    positive = [value for value in values if value > 0.0]
    if positive and max(positive) > _LINEAR_UP_TO * max(min(positive), outcome.max_error * 100):
        return logarithmic("error, %", values, zero=True)
    return linear("error, %", values, from_zero=True)


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


def _describe(point: Point) -> str:
    measured = f"\nmeasured {ms(point.measured_s)}" if point.measured_s else ""
    verdict = "holds the bound" if point.holds else "breaks the bound"
    return (
        f"{point.name}: {plural(point.int8_blocks, 'int8 block')}\npredicted {ms(point.predicted_s)}{measured}\n"
        f"error {percent(point.error)}, {verdict}"
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
    ratios = [abs(each.predicted / each.error - 1.0) for each in known.subsets if each.error > 0.0]
    under = sum(each.error <= known.upper(each.predicted) for each in known.subsets)
    left = len(known.subsets) - drawn
    text = (
        f"{plural(len(known.subsets), 'random subset')} of blocks in int8, each predicted by a fit that did not see it"
    )
    text += f": median error of the prediction {percent(median(ratios))}" if ratios else ""
    text += f"; {under} of {len(known.subsets)} stay under the upper line." if known.subsets else "."
    return text + (f" {plural(left, 'subset')} without any error cannot be drawn on these axes." if left else "")


def _error_facts(known: ErrorModel) -> Html:
    facts: list[tuple[str, str]] = [
        ("metric", f"{known.metric}, the largest over outputs"),
        ("evaluations", f"{known.evaluations} on {plural(known.samples, 'sample')}"),
        ("upper end", f"predicted × {exp(known.upper_log):.3f} at {limit(known.confidence)}"),
    ]
    for output in known.outputs:
        terms = f"{len(output.blocks)} block terms, {len(output.edges)} edge terms"
        link = f"{exp(output.level):.3f} · s^({output.exponent:.3f} / 2), s a sum of {terms}"
        facts.append((f"output {output.output}", link))
    worst = sorted((each for each in known.alone if each.precision == "int8"), key=lambda each: -each.error)[:8]
    rows: list[list[object]] = [[each.block, percent(each.error)] for each in worst]
    items = [part for name, text in facts for part in (tag("dt", name), tag("dd", text))]
    return tag("div", table(["worst alone in int8", "error"], rows, class_="dense"), tag("dl", *items, class_="facts"))


def _pair(name: str, predicted: float, measured: float) -> str:
    return f"{name}\npredicted {percent(predicted)}\nmeasured {percent(measured)}"
