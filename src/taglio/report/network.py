"""Draw the network: a node per block, coloured by precision, as wide as its time. Plans nothing.

The tall layered picture is cut into strips placed side by side, like newspaper columns: an edge that reaches the foot
of one strip continues at the head of the next.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite, sqrt

from taglio.model.graph import ANCHORS, Block, Graph
from taglio.profile.result import reads, writes
from taglio.quantize.precision import Assignment, form_of
from taglio.report.layers import Arc, Box, Layout, layout
from taglio.report.material import Material
from taglio.report.parts import Legend, Node, Part, Picture
from taglio.report.units import ms, shown

_PITCH, _NODE = 27.0, 14.0
_WIDEST, _NARROWEST, _PORT = 84.0, 7.0, 30.0
_TOP, _SIDE, _GUTTER = 26.0, 18.0, 30.0
_LETTER, _LONGEST = 5.9, 22
_ROWS = 26
_FLOAT_OUTPUT = ("int8-anchor", "int8-weights", "int8-dynamic", "int4-weights")
_CLASSES = {"float32": "b-float32", "int8": "b-int8", **dict.fromkeys(_FLOAT_OUTPUT, "b-anchor")}
_LEGEND = (
    ("b-int8", "int8"),
    ("b-anchor", "int8 or int4 inside, float output"),
    ("b-float32", "float32"),
    ("b-fixed", "no other form"),
)


@dataclass(frozen=True, slots=True)
class _Strip:
    """`rows` layers starting at `first`, drawn `shift` pixels to the right of their place in the layout, beginning at
    `left`."""

    first: int
    rows: int
    shift: float
    left: float


def network(material: Material) -> list[Part]:
    """The legend and the picture; without a plan every block is float32."""
    graph = material.graph
    assignment = material.plan.assignment() if material.plan is not None else {}
    devices = material.plan.devices() if material.plan is not None else {}
    places = list(dict.fromkeys(devices.values()))
    classes = {block.name: block_class(block, assignment) for block in graph.blocks}
    times = material.profile.block_times()
    widths = _widths(graph, times, assignment)
    labels = {block.name: _label(block, places, devices) for block in graph.blocks}
    boxes, edges, ports = _outline(graph, widths, labels)
    drawn = layout(boxes, edges)
    strips, width, height = _strips(drawn, boxes)
    looks = _looks(drawn, edges, assignment, devices)
    arcs = [part for look, arc in looks for part in _arc(arc, look, strips)]

    def node(key: str, box: float, look: str, label: str, title: str) -> Node:
        x, y = _at(strips, drawn.layers[key], drawn.x[key])
        return Node(x - box / 2, y - _NODE / 2, box, look, label, title)

    nodes = []
    for block in graph.blocks:
        title = _title(material, block, times, assignment, devices.get(block.name, "") if len(places) > 1 else "")
        nodes.append(node(block.name, widths[block.name], classes[block.name], labels[block.name], title))
    for key, name in ports.items():
        nodes.append(node(key, _PORT, "b-port", short_name(name), f"{key.partition(' ')[0]} of the model: {name}"))
    rules = [strip.left - _GUTTER / 2 for strip in strips[1:]]
    changing = any("to-" in look for look, _ in looks)
    return [_legend(Counter(classes.values()), changing, places), Picture(width, height, _NODE, rules, arcs, nodes)]


def _widths(graph: Graph, times: Mapping[tuple[str, str], float], assignment: Assignment) -> dict[str, float]:
    """The width of every block, whose square grows with its time."""
    longest = max((seconds for seconds in times.values() if isfinite(seconds)), default=0.0) or 1.0
    seconds = {block.name: times.get((block.name, form_of(assignment, block.name)), 0.0) for block in graph.blocks}
    return {
        name: max(_NARROWEST, _WIDEST * sqrt(max(0.0, min(longest, block_s)) / longest))
        for name, block_s in seconds.items()
    }


def _outline(
    graph: Graph, widths: Mapping[str, float], labels: Mapping[str, str]
) -> tuple[list[Box], list[tuple[str, str]], dict[str, str]]:
    """Boxes of blocks, inputs and outputs; the edges between them; and tensors by the box of an input or output."""
    ports = {f"input {name}": name for name in graph.inputs}
    boxes = [_box(port, _PORT, short_name(name)) for port, name in ports.items()]
    boxes += [_box(block.name, widths[block.name], labels[block.name]) for block in graph.blocks]
    edges = []
    for tensor in graph.tensors:
        if tensor.producer is None and tensor.name not in graph.inputs:
            continue
        source = tensor.producer or f"input {tensor.name}"
        edges += [(source, reader) for reader in tensor.consumers]
        if tensor.name in graph.outputs and tensor.producer is not None:
            port = f"output {tensor.name}"
            ports[port] = tensor.name
            boxes.append(_box(port, _PORT, short_name(tensor.name)))
            edges.append((source, port))
    return boxes, edges, ports


def _looks(
    drawn: Layout, edges: Sequence[tuple[str, str]], assignment: Assignment, devices: Mapping[str, str]
) -> list[tuple[str, Arc]]:
    """Every step of an edge with its CSS classes; changes of type come last, since they are drawn over the others."""
    readers: dict[str, list[str]] = {}
    for source, reader in edges:
        readers.setdefault(source, []).append(reader)
    looks = []
    for arc in drawn.arcs:
        later_readers = [reader for reader in readers[arc.source] if drawn.layers[reader] > arc.layer + 1]
        looks.append((_look(arc, [arc.reader] if arc.reader else later_readers, assignment, devices), arc))
    return sorted(looks, key=lambda look: "to-" in look[0])


def block_class(block: Block, assignment: Assignment) -> str:
    """CSS class of a block's precision."""
    if block.name in assignment:
        return _CLASSES.get(assignment[block.name].name, "b-int8")
    return "b-float32" if block.has_choice else "b-fixed"


def short_name(name: str, kind: str = "", longest: int = _LONGEST) -> str:
    """The informative end of an exporter's name: "/a/a.0/b/b.1/Conv" of a Conv becomes "a.0/b.1", cut from the left."""
    parts = [part for part in name.split("/") if part] or [name]
    anchor = kind.split("+", maxsplit=1)[0]
    if anchor in ANCHORS and len(parts) > 1 and parts[-1] == anchor:
        parts.pop()
    parts = [part for part, after in zip(parts, [*parts[1:], ""], strict=True) if not after.startswith(f"{part}.")]
    text = "/".join(parts)
    while len(text) > longest and len(parts) > 1:
        parts = parts[1:]
        text = "…/" + "/".join(parts)
    return text if len(text) <= longest else "…" + text[1 - longest :]


def _label(block: Block, places: Sequence[str], devices: Mapping[str, str]) -> str:
    short = short_name(block.name, block.kind)
    if len(places) < 2 or block.name not in devices:
        return short
    return f"{places.index(devices[block.name]) + 1}· {short}"


def _box(name: str, width: float, label: str) -> Box:
    return Box(name, width / 2 + 6.0, width / 2 + 12.0 + _LETTER * len(label))


def _strips(drawn: Layout, boxes: Sequence[Box]) -> tuple[list[_Strip], float, float]:
    """Cut the layers into strips of equal height, each as wide as its contents."""
    count = max(1, ceil(drawn.depth / _ROWS))
    rows = max(1, ceil(drawn.depth / count))
    low, high = [float("inf")] * count, [float("-inf")] * count
    for box in boxes:
        index = drawn.layers[box.name] // rows
        low[index] = min(low[index], drawn.x[box.name] - box.left)
        high[index] = max(high[index], drawn.x[box.name] + box.right)
    for arc in drawn.arcs:
        middle = (arc.x + arc.next_x) / 2
        for layer, x in ((arc.layer, arc.x), (arc.layer, middle), (arc.layer + 1, arc.next_x), (arc.layer + 1, middle)):
            low[layer // rows] = min(low[layer // rows], x - 5.0)
            high[layer // rows] = max(high[layer // rows], x + 5.0)
    strips, left = [], _SIDE
    for index in range(count):
        if low[index] > high[index]:
            continue
        strips.append(_Strip(index * rows, rows, left - low[index], left))
        left += high[index] - low[index] + _GUTTER
    return strips, left - _GUTTER + _SIDE, 2 * _TOP + (rows - 1) * _PITCH + _NODE


def _at(strips: Sequence[_Strip], layer: int, x: float) -> tuple[float, float]:
    strip = next(strip for strip in strips if strip.first <= layer < strip.first + strip.rows)
    return x + strip.shift, _TOP + _NODE / 2 + (layer - strip.first) * _PITCH


def _look(arc: Arc, ahead: Sequence[str], assignment: Assignment, devices: Mapping[str, str]) -> str:
    """The CSS classes of a step of an edge that leads to the readers `ahead`: the type that it carries, whether it
    changes type (in mid-lane: if it does so in the same way for all of them), and whether it leaves a device."""
    written = writes(assignment, arc.source)
    int8_read = [reads(assignment, reader) for reader in ahead]
    changes = {"" if reads_int8 == written else "to-int8" if reads_int8 else "to-float" for reads_int8 in int8_read}
    change = changes.pop() if len(changes) == 1 else ""
    wire = all(len({devices[end] for end in (arc.source, reader) if end in devices}) > 1 for reader in ahead)
    return " ".join(name for name in ("arc", change or ("q" if written else ""), "wire" if wire else "") if name)


def _arc(arc: Arc, class_: str, strips: Sequence[_Strip]) -> list[tuple[str, str]]:
    x0, y0 = _at(strips, arc.layer, arc.x)
    x1, y1 = _at(strips, arc.layer + 1, arc.next_x)
    if y1 > y0:
        return [(_curve(x0, y0, x1, y1), class_)]
    middle = (arc.x + arc.next_x) / 2
    foot, _ = _at(strips, arc.layer, middle)
    head, _ = _at(strips, arc.layer + 1, middle)
    half = _PITCH * 0.75
    return [(_curve(x0, y0, foot, y0 + half), f"{class_} cut"), (_curve(head, y1 - half, x1, y1), f"{class_} cut")]


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    middle = (y0 + y1) / 2
    straight = abs(x1 - x0) < 0.6
    bend = f"V{y1:.1f}" if straight else f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return f"M{x0:.1f} {y0:.1f}{bend}"


def _title(
    material: Material, block: Block, times: Mapping[tuple[str, str], float], assignment: Assignment, device: str
) -> str:
    lines = [block.name, block.kind.replace("+", " + ")]
    if material.plan is not None:
        lines.append(f"planned in {form_of(assignment, block.name)}" + (f" on {device}" if device else ""))
    if block.movement:
        lines.append("only moves values; its time is counted with its flow")
    else:
        precisions = [
            precision.name for precision in material.profile.precisions if (block.name, precision.name) in times
        ]
        lines += [f"{name}: {ms(times[block.name, name])}" for name in precisions]
    if material.error is not None:
        alone = {
            block_error.precision: block_error.error
            for block_error in material.error.alone
            if block_error.block == block.name
        }
        lines += [f"error alone in {name}: {shown(material.metric.basis, error)}" for name, error in alone.items()]
    if block.refusal:
        lines.append(f"not int8: {block.refusal}")
    return "\n".join(lines)


def _legend(counts: Counter[str], changing: bool, places: Sequence[str]) -> Legend:
    items = [(name, f"{text}: {counts[name]}") for name, text in _LEGEND if counts[name]]
    if changing:
        items += [("arc to-int8", "becomes int8"), ("arc to-float", "becomes float")]
    if len(places) > 1:
        items.append(("arc wire", "leaves its device"))
        items += [("", f"{index + 1}· runs on {place}") for index, place in enumerate(places)]
    return Legend(items)
