"""The plan's error on every held-out input beside the limit. Draws what the outcome holds; computes no error."""

from taglio.errors import plural
from taglio.flow.outcome import Outcome
from taglio.report.material import Material
from taglio.report.parts import Axis, Chart, Heading, Mark, Part, Text
from taglio.report.units import allowed, shown
from taglio.search.unseen import unseen_note


def by_input(material: Material) -> list[Part]:
    """A dot per held-out input, sorted by error; hollow where the input took part in the search."""
    outcome = material.outcome
    if outcome is None or not any(outcome.input_errors):
        return []
    return [Heading("Error by input"), Text(_summary(outcome)), _chart(outcome)]


def _summary(outcome: Outcome) -> str:
    metric, unseen = outcome.metric, outcome.unseen
    worst, count = shown(metric, outcome.plan.worst_input), plural(len(outcome.input_errors), "held-out input")
    text = f"{count}; {metric.title} of the worst {worst}."
    if unseen is None:
        return f"{text} The plan was selected on these inputs."
    text += f" Over {plural(unseen.inputs, 'input')} that the search never saw: {shown(metric, unseen.error)}."
    note = unseen_note(unseen, metric)
    return text if note is None else f"{text} {note.text[:1].upper()}{note.text[1:]}."


def _chart(outcome: Outcome) -> Chart:
    metric = outcome.metric
    unit, scale = metric.axis
    errors = outcome.input_errors
    first_unseen = len(errors) - (0 if outcome.unseen is None else outcome.unseen.inputs)
    order = sorted(range(len(errors)), key=lambda row: -errors[row])
    marks = []
    for place, row in enumerate(order):
        unseen = row >= first_unseen
        text = f"{'unseen input' if unseen else 'input of the search'}\n{metric.title} {shown(metric, errors[row])}"
        marks.append(Mark(place + 1.0, errors[row] * scale, "plan" if unseen else "dot", text, hollow=not unseen))
    limit = (outcome.max_error * scale, allowed(metric, outcome.max_error))
    whose = "Solid: unseen inputs. Hollow: inputs of the search." if first_unseen < len(errors) else ""
    bounded = "every input" if metric.worst_input else "all inputs together"
    caption = f"Each mark: the plan's error on one input. The limit is on {bounded}. {whose}".rstrip()
    return Chart(
        "error by input", Axis("input, largest error first"), Axis(unit, zero=True), marks, caption, limit=limit
    )
