"""A front of plans as a chart and a table: a part of the report, and a page of its own. Plans nothing."""

from importlib.resources import files
from pathlib import Path

from taglio.plan.pareto import Front, FrontPoint
from taglio.report import written
from taglio.report.page_charts import Chart, linear
from taglio.report.page_markup import Html, join, ms, plural, shown, table, tag
from taglio.report.page_material import Material
from taglio.report.written import Written

_TITLES = {"energy": "energy, J", "throughput": "requests/s"}


def part(material: Material) -> Html:
    """The workspace's front; nothing where it has none."""
    if material.pareto is None:
        return join()
    return join(tag("h3", f"Plans by latency and {material.pareto.axis}"), draw(material.pareto))


def write(path: Path, model: str, front: Front) -> Written:
    """Write a page of its own. Raises BadArtifact where the disk refuses."""
    return written.write(path, render(model, front), [])


def render(model: str, front: Front) -> str:
    """A page of its own."""
    title = f"{model}: latency and {front.axis} – taglio"
    style = Html((files("taglio.report") / "page_style.css").read_text())
    head = tag("head", tag("meta", charset="utf-8"), tag("title", title), tag("style", style))
    body = tag("body", tag("main", tag("h1", title), tag("section", draw(front))))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def draw(front: Front) -> Html:
    """The chart and the table of all points."""
    if not front.points:
        return tag("p", f"No plan under any of {front.infeasible} limits.")
    metric = front.points[0].plan.limits.metric
    title, scale = metric.axis if front.axis == "error" else (_TITLES[front.axis], 1.0)
    xs, ys = [point.latency_s * 1e3 for point in front.points], [scale * point.other for point in front.points]
    chart = Chart(linear("predicted latency, ms", xs), linear(title, ys), f"latency and {front.axis}")
    for point, x, y in zip(front.points, xs, ys, strict=True):
        chart.mark("circle", x, y, "dot", f"{x:.2f} ms, {y:.4g}: {_where(point)}")
    rows: list[list[object]] = [
        [
            ms(point.latency_s),
            shown(metric, point.other) if front.axis == "error" else f"{point.other:.4g}",
            f"{point.gap:.2%}",
            len(point.plan.assignment()),
            _where(point),
        ]
        for point in front.points
    ]
    head = ["latency", title.split(",")[0], "gap", "int8 blocks", "devices"]
    lede = f"{plural(front.tried, 'plan')} made; {plural(len(front.points), 'plan')} no other beats in both."
    return join(tag("p", lede), tag("figure", chart.draw()), table(head, rows, words=frozenset({4})))


def _where(point: FrontPoint) -> str:
    return ", ".join(dict.fromkeys(each.device for each in point.plan.placements))
