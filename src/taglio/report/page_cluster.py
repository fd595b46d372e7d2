"""Where a plan's blocks run, and when: devices, what travels, and the timeline of one request. Simulates nothing."""

from taglio.plan.result import Plan
from taglio.report.page_charts import Bar, waterfall
from taglio.report.page_markup import MISSING, Html, join, ms, plural, size, table, tag
from taglio.report.page_material import Material


def placement(material: Material) -> Html:
    """Devices and timeline of a plan on several devices; nothing for one machine."""
    plan = material.plan
    if plan is None or not plan.usage or (len(plan.usage) == 1 and not plan.crossings):
        return join()
    return join(tag("h3", "Devices"), _devices(plan), _crossings(plan), tag("h3", "One request"), _timeline(plan))


def _devices(plan: Plan) -> Html:
    int8 = set(plan.assignment())
    rows: list[list[object]] = []
    for use in plan.usage:
        blocks = [each.block for each in plan.placements if each.device == use.device]
        rows.append(
            [
                use.device,
                len(blocks),
                sum(name in int8 for name in blocks),
                ms(use.predicted_busy_s),
                f"{use.predicted_joules:.3g}\u00a0J" if use.predicted_joules else MISSING,
                size(round(use.peak_bytes or use.weight_bytes)),
                MISSING if use.memory_bytes is None else size(round(use.memory_bytes)),
                "assumed" if use.assumed else "measured",
            ]
        )
    head = ["device", "blocks", "in int8", "busy", "energy", "memory", "of", "times"]
    words = frozenset({7})
    lede = f"Predicted for one request, from {plan.start} and back; {plan.objective}, {plan.status}"
    lede += f", gap {plan.gap:.2%}."
    notes = [*plan.binding, *plan.notes]
    told = tag("ul", *(tag("li", each) for each in notes)) if notes else None
    return join(tag("p", lede), table(head, rows, words=words), told)


def _crossings(plan: Plan) -> Html:
    rows: list[list[object]] = [
        [
            tag("code", each.tensor),
            each.source,
            each.target,
            each.precision,
            size(round(each.bytes)),
            ms(each.predicted_s),
        ]
        for each in plan.crossings
    ]
    head = ["tensor", "from", "to", "as", "bytes", "takes"]
    return table(head, rows, caption=f"{plural(len(rows), 'tensor')} on the way", words=frozenset({1, 2, 3}))


def _timeline(plan: Plan) -> Html:
    """A bar for everything that is busy, by when it starts."""
    bars = [
        Bar(
            each.on,
            each.start_s * 1e3,
            each.end_s * 1e3,
            ms(each.end_s - each.start_s),
            "glue" if each.transfer else "int8",
            f"{each.what} on {each.on}: {each.start_s * 1e3:.2f} to {each.end_s * 1e3:.2f} ms",
        )
        for each in plan.timeline
    ]
    total = plan.predicted_latency_s.value
    caption = "Each device runs one component at a time, each link sends one tensor at a time; grey is on its way."
    return tag(
        "figure", waterfall([*bars, Bar("request", 0.0, total * 1e3, ms(total), "total")]), tag("figcaption", caption)
    )
