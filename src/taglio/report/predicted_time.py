"""Where the time goes, and how well it was predicted."""

from collections.abc import Sequence
from statistics import median

from taglio.errors import plural
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Profile, changes, flow_seconds, predict, writes
from taglio.quantize.precision import Assignment
from taglio.report.material import Material
from taglio.report.parts import Axis, Chart, Columns, Mark, Part, Table, Text, bound
from taglio.report.units import MISSING, ms, ms_decimals, percent

_CHOSEN = "chosen plan"
_Run = tuple[str, float, float]  # name, predicted and measured seconds
# Symbol, colour and label of the marks of float and all-int8.
PURE = {FLOAT_RUN: ("square", "float", "float"), "int8": ("diamond", "int8", "all int8")}


def where_it_goes(material: Material) -> list[Part]:
    """The plan's predicted time, by what takes it; empty without a plan."""
    graph, plan = material.graph, material.plan
    if plan is None:
        return []
    assignment = plan.assignment()
    plan_time, float_time = predict(material.profile, graph, assignment), predict(material.profile, graph, {})
    count = sum(changes(flow, assignment) for flow in graph.flows)
    changing_s = _changing(material, assignment)
    moving_s = sum(plan_time.flows.values()) - changing_s
    text = (
        f"Predicted latency of the plan: {ms(plan_time.total_s)}, float {ms(float_time.total_s)}. Blocks take "
        f"{ms(sum(plan_time.blocks.values()))}, {plural(count, 'conversion')} between float and int8 {ms(changing_s)}, "
        f"moves and layout changes {ms(moving_s)}, the overhead of a run {ms(plan_time.overhead_s)}."
    )
    return [Text(text)]


def predicted_and_measured(material: Material) -> list[Part]:
    """Whole-model runs: predicted by a fit without them, against measured."""
    profile, outcome = material.profile, material.outcome
    unseen = _unseen(profile)
    timed = outcome.points if outcome is not None else ()
    finals = [
        (point.name, point.predicted_s, point.measured_s)
        for point in timed
        if point.measured_s and point.predicted_s is not None
    ]
    points = [*unseen, *finals]
    axis = [second * 1e3 for _, predicted, measured in points for second in (predicted, measured)]
    width, plan_s = profile.interval_ratio, outcome.plan.predicted_latency_s if outcome else None
    marks = [_mark(name, predicted, measured, "dot") for name, predicted, measured in unseen]
    for name, predicted, measured in finals:
        symbol, look, label = PURE.get(name, ("circle", "plan", ""))
        label = _CHOSEN if predicted == plan_s and name not in PURE else label
        marks.append(_mark(name, predicted, measured, look, symbol, label))
    caption = (
        f"Line: predicted equals measured. Dashed: predicted ÷ and × {1.0 + width:.3f}, expected to hold 9 of 10 runs."
    )
    chart = Chart(
        "predicted against measured latency",
        Axis("predicted, ms"),
        Axis("measured, ms"),
        marks,
        caption,
        square=True,
        bounds=[bound(axis, lambda x: x / (1.0 + width)), bound(axis, lambda x: x * (1.0 + width))],
    )
    return [Text(_time_lede(unseen, finals)), Columns([[chart], _numbers(unseen)])]


def unseen_runs(profile: Profile) -> list[Part]:
    """Whole-model runs: predicted by a fit without them, and measured."""
    unseen = _unseen(profile)
    return [*_numbers(unseen), Text(_time_lede(unseen, []))]


def _unseen(profile: Profile) -> list[_Run]:
    return [(run.name, run.predicted_s, run.wall.median_s) for run in profile.runs if run.mixed]


def _mark(name: str, predicted: float, measured: float, look: str, symbol: str = "circle", label: str = "") -> Mark:
    ratio = f"{predicted / measured:.3f}" if measured else MISSING
    text = f"{name}\npredicted {ms(predicted)}\nmeasured {ms(measured)}\nratio {ratio}"
    return Mark(predicted * 1e3, measured * 1e3, look, text, label, symbol, ring=label == _CHOSEN)


def _numbers(runs: Sequence[_Run]) -> list[Part]:
    """A table of predicted and measured times by run, with the ratio; none without runs."""
    decimals = ms_decimals(max((measured for *_, measured in runs), default=0.0))
    rows = [
        [
            name,
            ms(predicted, decimals),
            ms(measured, decimals),
            f"{predicted / measured:.3f}" if measured else MISSING,
        ]
        for name, predicted, measured in sorted(runs, key=lambda run: run[2])
    ]
    head = ["whole model", "predicted", "measured", "ratio"]
    return [Table(head, rows, "Cross-validated runs", "dense")] if rows else []


def _time_lede(unseen: Sequence[_Run], finals: Sequence[_Run]) -> str:
    text = []
    errors = [abs(predicted / measured - 1.0) for _, predicted, measured in unseen if measured]
    if errors:
        runs = f"{plural(len(unseen), 'whole-model run')}, each predicted by a fit without it"
        text.append(f"{runs}: median error {percent(median(errors))}, maximum {percent(max(errors))}.")
    misses = [abs(predicted / measured - 1.0) for _, predicted, measured in finals if measured]
    if misses:
        text.append(f"The {len(misses)} finalists, timed at the end: median error {percent(median(misses))}.")
    return " ".join(text) or "The profile has no cross-validated runs."


def _changing(material: Material, assignment: Assignment) -> float:
    """Seconds for quantising and dequantising between blocks."""
    glue = material.profile.glue_map()
    total = 0.0
    for flow in material.graph.flows:
        flow_glue = glue[flow.name]
        still = flow_glue.int8_s if writes(assignment, flow.producer) else flow_glue.float_s
        total += flow_seconds(flow_glue, flow, assignment) - still
    return total
