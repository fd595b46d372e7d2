"""Plans: what runs where, in which form and when, and Pareto fronts. Simulates and plans nothing."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from taglio.errors import plural
from taglio.flow.pareto import Front, FrontPoint
from taglio.plan.result import Plan
from taglio.report.material import Material
from taglio.report.parts import Axis, Chart, Heading, Mark, NamedValues, Part, Table, Text
from taglio.report.units import MISSING, allowed, ms, shown, size

_TITLES = {"energy": "energy, J", "throughput": "requests/s"}


def placement(material: Material) -> list[Part]:
    """Devices and timeline of a plan on several devices; empty for one machine."""
    plan = material.plan
    if plan is None or not plan.usage or (len(plan.usage) == 1 and not plan.crossings):
        return []
    return [Heading("Devices"), *decisions(plan), Heading("One request"), _timeline(plan)]


def decisions(plan: Plan, *, shared: bool = False) -> list[Part]:
    """What runs where, what is sent, and what is predicted; `shared` if other models run on the same devices."""
    if not plan.usage:
        counts = sorted(
            Counter((block_placement.device, block_placement.precision) for block_placement in plan.placements).items()
        )
        table = Table(["device", "form", "blocks"], [[*what, count] for what, count in counts], words=frozenset({1}))
        return [table, _totals(plan)]
    turns = ["Devices in one row take requests in turn."] if any(use.replicas for use in plan.usage) else []
    notes = [Text(note, "small") for note in (*turns, *plan.binding, *plan.notes)]
    return [_devices(plan), _crossings(plan), _totals(plan, shared=shared), *notes]


def _devices(plan: Plan) -> Table:
    int8 = set(plan.assignment())
    rows: list[list[object]] = []
    for use in plan.usage:
        blocks = [block_placement.block for block_placement in plan.placements if block_placement.device == use.device]
        rows.append(
            [
                ", ".join(use.machines),
                len(blocks),
                sum(name in int8 for name in blocks),
                ms(use.predicted_busy_s),
                f"{use.predicted_joules:.3g}\u00a0J" if use.predicted_joules else MISSING,
                size(use.peak_bytes or use.weight_bytes),
                MISSING if use.memory_bytes is None else size(use.memory_bytes),
                "assumed" if use.assumed else "measured",
            ]
        )
    return Table(
        ["device", "blocks", "in int8", "busy", "energy", "memory", "limit", "times"], rows, words=frozenset({7})
    )


def _crossings(plan: Plan) -> Table:
    rows = [
        [
            crossing.tensor,
            crossing.source,
            crossing.target,
            crossing.precision,
            size(crossing.bytes),
            ms(crossing.predicted_s),
        ]
        for crossing in plan.crossings
    ]
    head = ["tensor", "from", "to", "form", "size", "time"]
    return Table(head, rows, f"{plural(len(rows), 'tensor')} between devices", words=frozenset({1, 2, 3}))


def _totals(plan: Plan, *, shared: bool = False) -> NamedValues:
    """What is predicted for one request, and how sure it is."""
    latency, metric, limits = plan.predicted_latency_s, plan.limits.metric, plan.limits
    summed = "" if plan.summed_s is None else f"; sum of all parts {ms(plan.summed_s)}"
    facts = [("status", f"{plan.status}, gap {plan.gap:.2%}")]
    if plan.usage:
        facts.insert(0, ("planned for", f"{plan.objective}, from {plan.start} and back"))
    if plan.shapes:
        facts.append(("shapes", measured_at(plan.shapes)))
    ends = list(dict.fromkeys((ms(latency.low), ms(latency.high))))
    interval = "" if ends == [ms(latency.value)] else f" ({' … '.join(ends)})"
    facts.append(("latency", f"{ms(latency.value)}{interval}{summed}"))
    woken = [piece for piece in plan.pieces if piece.waking_s > 0.0]
    if woken:
        total_s, count = sum(piece.waking_s for piece in woken), plural(len(woken), "component")
        facts.append(("waking", f"{ms(total_s)} of the latency, in {count} on devices that wait for their inputs"))
    if plan.predicted_rate_per_s is not None:
        alone = " if alone on its devices" if shared else ""
        busiest = f" ({plan.busiest} is busiest)" if plan.busiest and plan.crossings else ""
        facts.append(("capacity", f"{plan.predicted_rate_per_s.value:.4g} requests/s{alone}{busiest}"))
    if plan.predicted_joules is not None:
        facts.append(("energy", f"{plan.predicted_joules.value:.4g} J per request"))
    guess = plan.predicted_error
    error = f"predicted {shown(metric, guess.value)} (upper end {shown(metric, guess.high)})"
    error += "" if plan.measured_error is None else f", measured {shown(metric, plan.measured_error)}"
    error += "" if limits.max_error is None else f", {allowed(metric, limits.max_error)}"
    also = [(bound.metric.title, allowed(bound.metric, bound.max_error)) for bound in limits.also]
    return NamedValues([*facts, (metric.title, error), *also])


def measured_at(shapes: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """The shapes of the timings of a model with dynamic dimensions."""
    counts = Counter(
        ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in shape_of.items())
        for shape_of in shapes
    )
    if len(counts) == 1:
        return f"times are for {next(iter(counts))}; dimensions stay dynamic in the built model"
    occurrences = "; ".join(f"{count} of {len(shapes)}: {text}" for text, count in counts.items())
    return f"times are means over shapes as they occur ({occurrences}); dimensions stay dynamic in the built model"


def _timeline(plan: Plan) -> Table:
    """A row for each use of a device or link, by start time."""
    rows: list[list[object]] = []
    for use in plan.timeline:
        seconds, what = use.end_s - use.start_s, f"{use.what} (sending)" if use.transfer else use.what
        rows.append([use.on, what, ms(use.start_s), ms(use.end_s), ms(seconds)])
    caption = "A device runs one component at a time and a link sends one tensor at a time"
    return Table(["on", "what", "from", "to", "time"], rows, caption, words=frozenset({1}))


def pareto(material: Material) -> list[Part]:
    """The workspace's front; empty if it has none."""
    front = material.pareto
    return [Heading(f"Plans by latency and {front.axis}"), *points(front)] if front is not None else []


def points(front: Front) -> list[Part]:
    """The chart and the table of a front's plans."""
    if not front.points:
        return [Text(f"No plan meets any of the {front.infeasible} limits tried.")]
    metric = front.points[0].plan.limits.metric
    title, scale = metric.axis if front.axis == "error" else (_TITLES[front.axis], 1.0)

    def other(point: FrontPoint) -> str:
        return shown(metric, point.other) if front.axis == "error" else f"{point.other:.4g}"

    marks = [
        Mark(
            point.latency_s * 1e3, point.other * scale, "dot", f"{ms(point.latency_s)}, {other(point)}\n{_where(point)}"
        )
        for point in front.points
    ]
    rows = [
        [ms(point.latency_s), other(point), f"{point.gap:.2%}", _of_models(point, _int8), _where(point)]
        for point in front.points
    ]
    head = ["latency", title.split(",")[0], "gap", "int8 blocks", "devices"]
    without = f" No plan under {front.infeasible} of the limits tried." if front.infeasible else ""
    lede = f"{plural(front.tried, 'plan')} made, {len(front.points)} on the front: no plan is better in both.{without}"
    if front.points[0].others:
        lede += " Latency is the mean over all models' requests; the last two columns list models in the order given."
    chart = Chart(f"latency and {front.axis}", Axis("predicted latency, ms"), Axis(title), marks)
    return [Text(lede), chart, Table(head, rows, words=frozenset({4}))]


def _of_models(point: FrontPoint, text: Callable[[Plan], str]) -> str:
    return "; ".join(map(text, (point.plan, *point.others)))


def _int8(plan: Plan) -> str:
    return str(len(plan.assignment()))


def _where(point: FrontPoint) -> str:
    return _of_models(
        point, lambda plan: ", ".join(dict.fromkeys(block_placement.device for block_placement in plan.placements))
    )
