"""The top of the page: the result in one sentence, and float, all int8 and the plan side by side."""

from taglio.errors import plural
from taglio.flow.outcome import Outcome
from taglio.profile.result import predict
from taglio.report import answer, remarks
from taglio.report.material import Material
from taglio.report.parts import Cell, Heading, NamedValues, Part, Table, Text
from taglio.report.placement import measured_at
from taglio.report.units import MISSING, about, allowed, ms, shown


def headline(material: Material) -> list[Part]:
    """The result in one sentence."""
    return [Heading(_headline(material), 1)]


def _headline(material: Material) -> str:
    plan, metric, profile, graph = material.plan, material.metric, material.profile, material.graph
    if material.outcome is not None:
        return answer.sentence(material.outcome, material.built_in)
    if plan is not None and plan.predicted_latency_s.value:
        bound = plan.limits.max_error
        ceiling = "" if bound is None else f" ({allowed(metric, bound)})"
        error = plan.predicted_error.value if plan.measured_error is None else plan.measured_error
        how = "" if plan.measured_error is not None else "predicted "
        gain = about(predict(profile, graph, {}).total_s / plan.predicted_latency_s.value)
        title = f"{how}{metric.title} {shown(metric, error)}"
        return f"Predicted to be {gain} as fast as float, not confirmed; {title}{ceiling}"
    return f"{material.model} was profiled"


def lede(material: Material) -> list[Part]:
    """How sure the plan is, and every note, the most important first."""
    outcome = material.outcome
    if outcome is None:
        return []
    notes = (*remarks.ranked(outcome), *remarks.facts(outcome))
    return [_verdict(material, outcome), *(Text(f"Note: {note}", "note") for note in notes)]


def _verdict(material: Material, outcome: Outcome) -> Text:
    """How many blocks the plan has in int8, and how sure it is."""
    count = f"{outcome.plan.int8_blocks} of {plural(outcome.blocks, 'block')}"
    low = f" and {outcome.plan.bfloat16_blocks} in bfloat16" if outcome.plan.bfloat16_blocks else ""
    text = f"The plan has {count} in int8{low}; {_status(outcome)}."
    if not outcome.int8.int8_blocks:
        text = f"No block computes in int8{low}{material.graph.refusal()}."
    return Text(text, "lede")


def side_by_side(material: Material) -> list[Part]:
    """Float, all int8 and the plan in columns."""
    outcome = material.outcome
    if outcome is None:
        return []
    metric, variants = outcome.metric, answer.variants(outcome)
    walls, fewer = [variant.latency for variant in variants.values()], _of_fewer(outcome)
    figures = answer.figures(outcome) | {
        "p95 in the search": [ms(wall.p95_s) for wall in walls],
        f"{metric.title} predicted{fewer}": [shown(metric, variant.predicted_error) for variant in variants.values()],
        f"{metric.title}, upper end (95\u00a0%)": [shown(metric, variant.error_upper) for variant in variants.values()],
    }
    if not metric.worst_input:
        figures[f"{metric.title}, worst input"] = [shown(metric, variant.worst_input) for variant in variants.values()]
    rows = [[title, *cells] for title, cells in figures.items() if any(cell != MISSING for cell in cells)]
    return [Table(["", *variants], rows, look="compare")]


def parts(material: Material) -> list[Part]:
    """The error of every part of the outputs, if any has one and there are several, or one lost its information."""
    outcome, metric = material.outcome, material.metric
    if outcome is None:
        return []
    variants = answer.variants(outcome).values()
    names = list(dict.fromkeys(part.name for variant in variants for part in variant.parts))
    changed = any(part.loss > 0.0 for variant in variants for part in variant.parts)
    if (len(names) < 2 or not metric.smooth or not changed) and not any(variant.lost for variant in variants):
        return []
    rows: list[list[object]] = []
    for name in names:
        rows.append([name])
        for variant in variants:
            part = next((part for part in variant.parts if part.name == name), None)
            if part is None:
                rows[-1].append(MISSING)
            else:
                look = "bad" if part.loss > outcome.max_error or part.lost else ""
                rows[-1].append(Cell(shown(metric, part.loss), look, part.lost))
    return [Table(["", *answer.variants(outcome)], rows, f"{metric.title} by part of the outputs", "compare")]


def conditions(material: Material) -> list[Part]:
    """Where and how the figures were measured."""
    profile_conditions, outcome = material.profile.conditions, material.outcome
    moved = outcome is not None and outcome.plan.runtime != profile_conditions.runtime
    runtime = f"{profile_conditions.runtime} {profile_conditions.runtime_version}"
    spinning = "spinning" if profile_conditions.spinning else "not spinning"
    facts = [
        ("machine", str(profile_conditions.machine)),
        ("threads", f"{profile_conditions.threads}, {spinning} between kernels"),
        ("profiled in" if moved else "runtime", f"{runtime}, optimisation {profile_conditions.optimization}"),
        *([("plan runs in", outcome.plan.runtime)] if outcome and moved else []),
        ("scheme", str(material.profile.scheme)),
        *([("shapes", measured_at(profile_conditions.shapes))] if profile_conditions.shapes else []),
    ]
    if outcome is not None:
        held_out = f"{outcome.held_out_samples} held out to measure error and accuracy"
        facts.append(("samples", f"{outcome.calibration_samples} for calibration, {held_out}"))
    return [NamedValues(facts)]


def _of_fewer(outcome: Outcome) -> str:
    """The number of inputs behind the predictions, if it is smaller than that behind the measurements."""
    if not 0 < outcome.search_samples < outcome.held_out_samples:
        return ""
    return f" from {outcome.search_samples} of {plural(outcome.held_out_samples, 'input')}"


def _status(outcome: Outcome) -> str:
    status, gap = outcome.status, outcome.gap
    by = f"{gap * 100:.2g} %"  # more digits of a bound are meaningless
    if status == "optimal":
        margin = f" by more than {by}" if gap > 1e-6 else ""
        return f"according to the measured times, no plan within the limit is faster{margin}"
    if status == "measured":
        though = f", although this one is predicted to be {by} slower than the solver's plan" if gap > 1e-6 else ""
        return f"of the plans that were timed, none within the limit is clearly faster{though}"
    return f"solver status {status!r}, at most {by} slower than the optimum"
