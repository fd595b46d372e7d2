"""Predicted against measured error, and the error and latency of every plan that was tried."""

from collections.abc import Sequence
from math import exp, inf

from taglio.conformal import COVERAGE
from taglio.error.loss import Metric
from taglio.error.model import ErrorModel
from taglio.error.tally import PartLoss
from taglio.errors import plural
from taglio.flow.outcome import Outcome
from taglio.profile.measure import FLOAT_RUN
from taglio.report import answer
from taglio.report.material import Material
from taglio.report.parts import Axis, Cell, Chart, Columns, Mark, NamedValues, Part, Table, Text
from taglio.report.units import MISSING, allowed, limit, ms, percent, shown
from taglio.search.front import Point

# Symbol, colour and label of the marks of float and all int8.
_PURE = {FLOAT_RUN: ("square", "float", "float"), "int8": ("diamond", "int8", "all int8")}


def predicted_error(material: Material) -> list[Part]:
    """Random subsets in int8: cross-validated prediction against measurement; empty without an error model."""
    error_model = material.error
    if error_model is None:
        return []
    metric = error_model.metric
    unit, scale = metric.axis
    marks = []
    for subset in error_model.subsets:
        text = (
            f"{plural(len(subset.assignment), 'block')}\npredicted {shown(metric, subset.predicted)}\n"
            f"measured {shown(metric, subset.error)}"
        )
        marks.append(Mark(subset.predicted * scale, subset.error * scale, "dot", text))
    chart = Chart(
        f"predicted against measured {metric.title}",
        Axis(f"predicted {unit}", "log"),
        Axis(f"measured {unit}", "log"),
        marks,
        f"Line: predicted equals measured. {limit(COVERAGE)} of new subsets are expected below the prediction "
        f"{_upper_end(error_model)}.",
        square=True,
    )
    lede, *notes = prediction_quality(error_model)
    return [lede, *notes, Columns([[chart], [facts(error_model)]])]


def trade_off(material: Material) -> list[Part]:
    """Every plan that was tried, by predicted latency and measured error; empty before the search."""
    outcome = material.outcome
    if outcome is None:
        return []
    points = [point for point in outcome.points if point.predicted_s is not None and point.error is not None]
    chart = _scatter(outcome, points)
    within_limit = sum(point.holds for point in points)
    lede = (
        f"{plural(len(points), 'plan')} tried, {within_limit} within the {outcome.metric.title} "
        f"{allowed(outcome.metric, outcome.max_error)}. The fastest of these when timed was chosen."
    )
    return [Text(lede), *answer.front(outcome, "OUT"), chart, _tried(outcome)]


def _tried(outcome: Outcome) -> Table:
    """The plans, the fastest first, and why some were not timed."""
    chosen, metric = _chosen(outcome), outcome.metric
    # Where no block computes in int8, "int8" is the float model once more.
    points = [point for point in outcome.points if outcome.int8.int8_blocks or point.name != "int8"]
    rows: list[list[object]] = []
    for point in sorted(points, key=lambda point: point.measured_s or point.predicted_s or inf):
        loss = Cell(shown(metric, point.error), "" if point.holds else "bad", "" if point.judged else "expected")
        rows.append(
            [
                Cell(f"{point.name}, chosen", "strong") if point is chosen else point.name,
                point.runtime,
                ms(point.predicted_s),
                ms(point.measured_s),
                _ratio(point),
                loss if point.error is not None else MISSING,
                point.int8_blocks,
                point.reason or ("" if point.holds else "exceeds the limit"),
            ]
        )
    caption = "Plans tried; the ratio is predicted ÷ measured"
    head = ["plan", "runtime", "predicted", "measured", "ratio", metric.title, "int8 blocks", ""]
    return Table(head, rows, caption, "dense", frozenset({1, 7}))


def _ratio(point: Point) -> str:
    """Predicted over measured latency."""
    if not point.measured_s or point.predicted_s is None:
        return MISSING
    return f"{point.predicted_s / point.measured_s:.3f}"


def _scatter(outcome: Outcome, points: Sequence[Point]) -> Chart:
    metric, scale, plan = outcome.metric, outcome.metric.axis[1], _chosen(outcome)
    marks = []
    for point in points:
        symbol, look, name = _PURE.get(point.name, ("circle", "tried", ""))
        if point is plan:
            look, name = "plan", "chosen plan"
        measured_ms = point.measured_s * 1e3 if point.measured_s else None
        text, predicted_ms = _describe(metric, point), (point.predicted_s or 0.0) * 1e3
        error = (point.error or 0.0) * scale
        faint, ring = not point.holds, point is plan
        marks.append(Mark(predicted_ms, error, look, text, name, symbol, hollow=faint, ring=ring, to=measured_ms))
    limit_line = (outcome.max_error * scale, allowed(metric, outcome.max_error))
    axis = Axis(metric.axis[0], "log", zero=True)
    caption = (
        "Each mark: predicted latency, and error on held-out inputs; a line leads to the measured latency. Hollow: "
        "beyond the limit."
    )
    return Chart("error and latency of all plans", Axis("latency, ms"), axis, marks, caption, limit=limit_line)


def _chosen(outcome: Outcome) -> Point | None:
    """The point that was chosen as the plan."""
    plan = outcome.plan
    latencies_s = (plan.latency.median_s, plan.predicted_latency_s)
    return next((point for point in outcome.points if (point.measured_s, point.predicted_s) == latencies_s), None)


def _describe(metric: Metric, point: Point) -> str:
    measured = "" if point.latency is None else f"\nmeasured {ms(point.measured_s)}"
    verdict = "within the limit" if point.holds else "beyond the limit"
    return (
        f"{point.name} in {point.runtime}: {plural(point.int8_blocks, 'int8 block')}\n"
        f"predicted {ms(point.predicted_s)}{measured}\n"
        f"{metric.title} {shown(metric, point.error)}, {verdict}"
    )


def prediction_quality(error_model: ErrorModel) -> list[Part]:
    """How well subsets were predicted, and notes."""
    below_upper = sum(subset.error <= error_model.upper(subset.predicted) for subset in error_model.subsets)
    basis = f"measured on {plural(error_model.samples, 'input')}, each predicted by a fit without it"
    text = f"{plural(len(error_model.subsets), 'subset')} of blocks in int8, {basis}"
    miss = (
        percent(error_model.typical_miss())
        if error_model.metric.smooth
        else error_model.metric.difference(error_model.typical_miss())
    )
    if error_model.subsets:
        text += f": median prediction error {miss}; {below_upper} lie below the upper limit"
    return [Text(f"{text}."), *(Text(f"Note: {note}.", "note") for note in error_model.notes)]


def facts(error_model: ErrorModel) -> NamedValues:
    """The metric, and how it was measured."""
    facts: list[tuple[str, str]] = [
        ("metric", error_model.metric.name + (", the largest over outputs" if error_model.metric.smooth else "")),
        ("evaluations", f"{error_model.evaluations} on {plural(error_model.samples, 'sample')}"),
        ("upper limit", f"predicted {_upper_end(error_model)} at {limit(COVERAGE)}"),
    ]
    if (len(error_model.parts) > 1 and error_model.metric.smooth) or any(part.lost for part in error_model.parts):
        facts.append(("all in int8, by part", by_part(error_model.parts, error_model.metric)))
    return NamedValues(facts)


def by_part(parts: Sequence[PartLoss], metric: Metric) -> str:
    """The error of every part of the outputs, worst first."""
    ordered = sorted(parts, key=lambda part: -part.loss)
    return ", ".join(f"{part.name} {shown(metric, part.loss)}{part.lost and f' ({part.lost})'}" for part in ordered)


def _upper_end(error_model: ErrorModel) -> str:
    if error_model.metric.smooth:
        return f"× {exp(error_model.upper_log):.3f}"
    return f"and {error_model.metric.difference(error_model.upper_add)} worse"
