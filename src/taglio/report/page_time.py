"""Where time goes, and how well it was predicted."""

from collections.abc import Mapping, Sequence
from statistics import median

from taglio.model.graph import flows
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Breakdown, changes, flow_seconds, predict, writes
from taglio.quantize.precision import Assignment
from taglio.report.page_charts import Bar, Chart, linear, waterfall
from taglio.report.page_markup import Html, join, ms, ms_decimals, percent, plural, signed_ms, table, tag
from taglio.report.page_material import Material
from taglio.report.page_network import short_name
from taglio.report.page_summary import STEADY

_BIGGEST = 10
_SHAPES = {FLOAT_RUN: ("square", "k-float", "float"), "int8": ("diamond", "k-int8", "all int8")}


def where_it_goes(material: Material) -> Html:
    """Two waterfalls: the plan's predicted time by what takes it, and how it comes from float's."""
    graph, plan = material.graph, material.plan
    assert graph is not None
    assert plan is not None
    assignment = plan.assignment()
    chosen, base = predict(material.profile, graph, assignment), predict(material.profile, graph, {})
    count = _change_count(material, assignment)
    lede = (
        f"The plan is predicted to take {ms(chosen.total_s)} of {ms(base.total_s)} in float. It changes type "
        f"{plural(count, 'time')} between blocks, which takes {ms(_changing(material, assignment))}."
    )
    left = tag("figure", tag("h3", "The plan's time, by block"), waterfall(_parts(material, assignment, chosen)))
    right = tag("figure", tag("h3", "From float to the plan"), waterfall(_moves(material, assignment, base, chosen)))
    return join(tag("p", lede), tag("div", left, right, class_="columns"))


def predicted_and_measured(material: Material) -> Html:
    """Whole-model runs: predicted by a fit that did not see them, against the clock."""
    profile, outcome, drift = material.profile, material.outcome, material.drift()
    unseen = [(run.name, run.predicted_s, run.wall.median_s) for run in profile.runs if run.mixed]
    timed = outcome.points if outcome is not None else ()
    finals = [(each.name, each.predicted_s, each.measured_s / drift) for each in timed if each.measured_s]
    points = [*unseen, *finals]
    axis = [second * 1e3 for _, predicted, measured in points for second in (predicted, measured)]
    chart = Chart(linear("predicted, ms", axis), linear("measured, ms", axis), "predicted against measured latency")
    width = profile.interval_ratio
    if width < 10.0:
        chart.band(lambda x: x / (1.0 + width), lambda x: x * (1.0 + width), "band")
    chart.line(lambda x: x, "identity")
    for name, predicted, measured in unseen:
        chart.mark("circle", predicted * 1e3, measured * 1e3, "dot", _pair(name, predicted, measured))
    chosen = outcome.plan.predicted_latency_s if outcome else None
    labels = []
    for name, predicted, measured in finals:
        shape, class_, text = _SHAPES.get(name, ("circle", "k-plan", name))
        shape = "ring" if predicted == chosen and name not in _SHAPES else shape
        chart.mark(shape, predicted * 1e3, measured * 1e3, class_, _pair(name, predicted, measured))
        if name in _SHAPES or shape == "ring":
            labels.append((predicted * 1e3, measured * 1e3, "chosen plan" if shape == "ring" else text))
    for x, y, text in labels:
        chart.label(x, y, text)
    figure = tag("figure", chart.draw(), tag("figcaption", _band_caption(width)))
    tables = [_numbers("Seen by no fit", unseen, 1.0)] if unseen else []
    if finals:
        raw = [(name, predicted, measured * drift) for name, predicted, measured in finals]
        tables.append(_numbers("Finalists, timed at the end", raw, drift))
    return join(tag("p", _time_lede(unseen, finals, drift)), tag("div", figure, tag("div", *tables), class_="columns"))


def _numbers(caption: str, runs: Sequence[tuple[str, float, float]], drift: float) -> Html:
    """Predicted and measured by run; the ratio again with the machine's drift taken out where there was any."""
    steady = abs(drift - 1.0) <= STEADY
    decimals = ms_decimals(max(measured for *_, measured in runs))
    rows: list[list[object]] = []
    for name, predicted, measured in sorted(runs, key=lambda each: each[2]):
        row: list[object] = [name, ms(predicted, decimals), ms(measured, decimals), f"{predicted / measured:.3f}"]
        rows.append(row if steady else [*row, f"{predicted * drift / measured:.3f}"])
    head = ["whole model", "predicted", "measured", "ratio"]
    return table(head if steady else [*head, "drift out"], rows, caption=caption, class_="dense")


def _time_lede(unseen: list[tuple[str, float, float]], finals: list[tuple[str, float, float]], drift: float) -> str:
    text = []
    if unseen:
        errors = [abs(predicted / measured - 1.0) for _, predicted, measured in unseen]
        runs = f"{plural(len(unseen), 'whole-model run')}, each predicted by a fit that did not see it"
        text.append(f"{runs}: median error {percent(median(errors))}, largest {percent(max(errors))}.")
    if finals:
        middle = median(abs(predicted / measured - 1.0) for _, predicted, measured in finals)
        text.append(f"The {len(finals)} finalists, timed again at the end: median error {percent(middle)}.")
    if finals and abs(drift - 1.0) > STEADY:
        text.append(f"In the chart their times are divided by the machine's drift of {drift:.3f} since the profile.")
    return " ".join(text) or "The profile has no whole-model runs that a fit had not seen."


def _band_caption(width: float) -> str:
    band = f" The band is predicted ÷ and × {1.0 + width:.3f}, which should hold 9 of 10." if width < 10.0 else ""
    return f"On the line, predicted equals measured.{band}"


def _parts(material: Material, assignment: Assignment, chosen: Breakdown) -> list[Bar]:
    ordered = sorted(chosen.blocks.items(), key=lambda item: -item[1])
    spent = [item for item in ordered if item[1] > 0.0]
    shown, rest = spent[:_BIGGEST], spent[_BIGGEST:]
    changing = _changing(material, assignment)
    steps = [("overhead of a run", chosen.overhead_s, "rest")]
    steps += [(name, seconds, _bar_class(assignment, name)) for name, seconds in shown]
    if rest:
        steps.append((plural(len(rest), "other block"), sum(seconds for _, seconds in rest), "rest"))
    steps.append(("changing type", changing, "glue"))
    steps.append(("moving, laying out", sum(chosen.flows.values()) - changing, "glue"))
    decimals = ms_decimals(chosen.total_s)
    bars, at = [], 0.0
    for label, seconds, class_ in steps:
        bars.append(Bar(_label(material, label), at, at + seconds, ms(seconds, decimals), class_, label))
        at += seconds
    return [*bars, Bar("plan", 0.0, chosen.total_s, ms(chosen.total_s, decimals), "total")]


def _moves(material: Material, assignment: Assignment, base: Breakdown, chosen: Breakdown) -> list[Bar]:
    change = {name: chosen.blocks[name] - base.blocks[name] for name in chosen.blocks}
    ordered = sorted(((name, by) for name, by in change.items() if by), key=lambda item: -abs(item[1]))
    shown, rest = ordered[:_BIGGEST], ordered[_BIGGEST:]
    steps = sorted(shown, key=lambda item: item[1])
    if rest:
        steps.append((plural(len(rest), "other block"), sum(by for _, by in rest)))
    changing = _changing(material, assignment)
    moved = sum(chosen.flows.values()) - changing - (sum(base.flows.values()) - _changing(material, {}))
    steps += [("changing type", changing - _changing(material, {})), ("moving, laying out", moved)]
    decimals = ms_decimals(base.total_s)
    bars, at = [Bar("float", 0.0, base.total_s, ms(base.total_s, decimals), "total from")], base.total_s
    for label, by in steps:
        class_ = "up" if by > 0.0 else "down"
        bars.append(Bar(_label(material, label), at, at + by, signed_ms(by, decimals), class_, label))
        at += by
    return [*bars, Bar("plan", 0.0, chosen.total_s, ms(chosen.total_s, decimals), "total")]


def _changing(material: Material, assignment: Assignment) -> float:
    """Seconds of quantising and dequantising between blocks."""
    assert material.graph is not None
    glue = material.profile.glue_map()
    total = 0.0
    for flow in flows(material.graph):
        entry = glue[flow.name]
        still = entry.int8_s if writes(assignment, flow.producer) else entry.float_s
        total += flow_seconds(entry, flow, assignment) - still
    return total


def _change_count(material: Material, assignment: Assignment) -> int:
    assert material.graph is not None
    return sum(changes(flow, assignment) for flow in flows(material.graph))


def _bar_class(assignment: Mapping[str, object], name: str) -> str:
    precision = getattr(assignment.get(name), "name", "float32")
    return {"float32": "float", "int8-anchor": "anchor"}.get(precision, "int8")


def _label(material: Material, label: str) -> str:
    """A block's short name; any other text as it is."""
    assert material.graph is not None
    kinds = {block.name: block.kind for block in material.graph.blocks}
    return short_name(label, kinds[label], 24) if label in kinds else label


def _pair(name: str, predicted: float, measured: float) -> str:
    return f"{name}\npredicted {ms(predicted)}\nmeasured {ms(measured)}\nratio {predicted / measured:.3f}"
