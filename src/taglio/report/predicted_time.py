"""Where the time goes, and how well it was predicted."""

from collections.abc import Sequence
from statistics import median

from taglio.errors import plural
from taglio.profile.result import Profile, changes, flow_seconds, predict, writes
from taglio.quantize.precision import Assignment
from taglio.report.material import Material
from taglio.report.parts import Axis, Chart, Columns, Mark, Part, Table, Text
from taglio.report.units import MISSING, ms, percent

_Run = tuple[str, float, float]  # name, predicted and measured seconds


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
    profile = material.profile
    runs = _unseen(profile)
    chart = Chart(
        "predicted against measured latency",
        Axis("predicted, ms"),
        Axis("measured, ms"),
        [_mark(*run) for run in runs],
        f"Line: predicted equals measured. 9 of 10 runs are expected within {percent(profile.interval_ratio)} of it.",
        square=True,
    )
    return [_lede(runs), Columns([[chart], _numbers(runs)])]


def unseen_runs(profile: Profile) -> list[Part]:
    """Whole-model runs: predicted by a fit without them, and measured."""
    runs = _unseen(profile)
    return [*_numbers(runs), _lede(runs)]


def _unseen(profile: Profile) -> list[_Run]:
    return [(run.name, run.predicted_s, run.wall.median_s) for run in profile.runs if run.mixed]


def _mark(name: str, predicted: float, measured: float) -> Mark:
    text = f"{name}\npredicted {ms(predicted)}\nmeasured {ms(measured)}\nratio {_ratio(predicted, measured)}"
    return Mark(predicted * 1e3, measured * 1e3, "dot", text)


def _ratio(predicted: float, measured: float) -> str:
    return f"{predicted / measured:.3f}" if measured else MISSING


def _numbers(runs: Sequence[_Run]) -> list[Part]:
    """A table of predicted and measured times by run, with the ratio; none without runs."""
    rows = [
        [name, ms(predicted), ms(measured), _ratio(predicted, measured)]
        for name, predicted, measured in sorted(runs, key=lambda run: run[2])
    ]
    head = ["whole model", "predicted", "measured", "ratio"]
    return [Table(head, rows, "Cross-validated runs", "dense")] if rows else []


def _lede(runs: Sequence[_Run]) -> Text:
    errors = [abs(predicted / measured - 1.0) for _, predicted, measured in runs if measured]
    if not errors:
        return Text("The profile has no cross-validated runs.")
    basis = f"{plural(len(runs), 'whole-model run')}, each predicted by a fit without it"
    return Text(f"{basis}: median error {percent(median(errors))}, maximum {percent(max(errors))}.")


def _changing(material: Material, assignment: Assignment) -> float:
    """Seconds for quantising and dequantising between blocks."""
    glue = material.profile.glue_map()
    total = 0.0
    for flow in material.graph.flows:
        flow_glue = glue[flow.name]
        still = flow_glue.int8_s if writes(assignment, flow.producer) else flow_glue.float_s
        total += flow_seconds(flow_glue, flow, assignment) - still
    return total
