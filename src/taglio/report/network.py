"""The network: a mark per block in the order in which they run, by its time and form. Plans nothing."""

from collections import Counter

from taglio.model.graph import Block
from taglio.quantize.precision import FLOAT32, Assignment, form_of
from taglio.report.material import Material
from taglio.report.parts import Axis, Chart, Legend, Mark, Part
from taglio.report.units import ms

_FLOAT_OUTPUT = ("int8-anchor", "int8-weights", "int8-dynamic", "int4-weights")
_CLASSES = {
    FLOAT32.name: "b-float32",
    "bfloat16": "b-bfloat16",
    "int8": "b-int8",
    **dict.fromkeys(_FLOAT_OUTPUT, "b-anchor"),
}
_LEGEND = {
    "b-int8": "int8",
    "b-anchor": "int8 or int4 inside, float output (hollow)",
    "b-bfloat16": "bfloat16",
    "b-float32": "float32",
    "b-fixed": "no other form",
}
# The colour of a mark by its block's class.
_COLORS = {"b-int8": "int8", "b-anchor": "int8", "b-bfloat16": "bfloat16", "b-float32": "float", "b-fixed": "fixed"}
_SYMBOLS = ("circle", "square", "diamond", "triangle")  # of devices


def network(material: Material) -> list[Part]:
    """The legend and the chart; without a plan every block is float32."""
    blocks, plan, times = material.graph.blocks, material.plan, material.profile.block_times()
    assignment, devices = (plan.assignment(), plan.devices()) if plan is not None else ({}, {})
    places = list(dict.fromkeys(devices.values()))
    classes = [block_class(block, assignment) for block in blocks]
    marks = []
    for position, (block, class_) in enumerate(zip(blocks, classes, strict=True), 1):
        device = devices.get(block.name, "") if len(places) > 1 else ""
        symbol = _SYMBOLS[places.index(device) % len(_SYMBOLS)] if device else _SYMBOLS[0]
        form = form_of(assignment, block.name)
        seconds = 0.0 if block.movement else times.get((block.name, form), 0.0)
        text = _title(material, block, seconds, form, device)
        marks.append(Mark(position, seconds * 1e3, _COLORS[class_], text, symbol=symbol, hollow=class_ == "b-anchor"))
    counts = Counter(classes)
    legend = [(class_, f"{text}: {counts[class_]}") for class_, text in _LEGEND.items() if counts[class_]]
    if len(places) > 1:
        legend += [("", f"{_SYMBOLS[index % len(_SYMBOLS)]}: on {place}") for index, place in enumerate(places)]
    caption = (
        "Each mark: a block, in the order in which they run, by its time. Where the form changes from a block to its "
        "reader, a conversion costs time. Netron shows the flows between blocks."
    )
    chart = Chart("time and form of every block", Axis("block"), Axis("time, ms", zero=True), marks, caption)
    return [Legend(legend), chart]


def block_class(block: Block, assignment: Assignment) -> str:
    """CSS class of a block's form."""
    if block.name in assignment or block.has_choice:
        return _CLASSES[form_of(assignment, block.name)]
    return "b-fixed"


def _title(material: Material, block: Block, seconds: float, form: str, device: str) -> str:
    lines = [block.name, block.kind.replace("+", " + ")]
    if material.plan is not None:
        lines.append(f"planned in {form}" + (f" on {device}" if device else ""))
    lines.append("only moves values; its time is counted with its flow" if block.movement else ms(seconds))
    return "\n".join([*lines, f"not int8: {block.refusal}"] if block.refusal else lines)
