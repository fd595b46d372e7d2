"""A comparison as one self-contained HTML page: recommendation, plots, every row and layer. Measures nothing."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path

from taglio.compare.drift import Drift, even_s
from taglio.compare.recommend import best, standings
from taglio.compare.result import COMPARISON, Comparison
from taglio.compare.row import Layer, Row
from taglio.report import written
from taglio.report.comparison_table import conditions
from taglio.report.page_charts import Bar, Chart, drawn, logarithmic, waterfall
from taglio.report.page_markup import MISSING, Html, join, ms, percent, plural, size, table, tag, times
from taglio.report.written import Written

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_SHAPES = ("circle", "square", "diamond")
_COLORS = ("#2f6f4f", "#a8481e", "#2a5ca8", "#8a3f8f", "#8f7a14", "#147a85", "#6b6b6b")
_BARS = 30
_NOTHING = 1e-3  # per cent: an error below it is float's rounding, and drawn as none


FILE = f"{COMPARISON}.html"


def write(folder: Path, result: Comparison) -> Written:
    """Write the page into `folder`. Raises BadArtifact where the disk refuses."""
    text, lacks = render(result)
    return written.write(folder / FILE, text, lacks)


def render(result: Comparison) -> tuple[str, list[str]]:
    """The page as text, and what it lacks: a section that fails is replaced by a sentence."""
    lacks: list[str] = []

    def section(title: str, *draw: Callable[[], Sequence[Html]]) -> Html:
        parts = [
            part
            for each in draw
            for part in written.drawn(each, title, lacks, lambda why: [tag("p", why, class_="absent")])
        ]
        return tag("section", tag("h2", title), *parts)

    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", f"{result.model} compared – taglio"),
        tag("style", Html((files("taglio.report") / "page_style.css").read_text() + _colors(result))),
    )
    latency = partial(_milliseconds, drift=result.drift)
    sections = [
        tag("header", tag("p", tag("b", "taglio"), tag("span", result.model), class_="brand"),
            tag("h1", "Every back end, measured"), tag("p", result.recommendation, class_="lede"), _conditions(result)),
        section(
            "Error against latency and size",
            lambda: [_legend(result)],
            lambda: [tag("div",
                _scatter(result, "latency of one inference, ms", latency),
                _scatter(result, "size of the model, MB", _megabytes),
                class_="columns",
            )],
        ),
        section(f"The fastest row of each back end within {percent(result.max_error)}", lambda: [_standings(result)]),
        *(section(backend, partial(_backend, result, backend)) for backend in result.backends),
    ]  # fmt: skip
    body = tag("body", tag("main", *sections))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n", lacks


def _colors(result: Comparison) -> str:
    rules = [f" .b{i} {{ fill: {_COLORS[i % len(_COLORS)]}; fill-opacity: .65; }}" for i in range(len(result.backends))]
    return "".join(rules)


def _conditions(result: Comparison) -> Html:
    steps = [
        f"{step.source} → {step.target} by {step.tool}: outputs differ by {percent(step.distance)}"
        for step in result.conversions
    ]
    lines = [
        str(result.machine),
        f"{plural(result.threads, 'thread')}; rows of one back end ran in turns after a warm-up; medians",
        *conditions(result),
        f"{result.data}: {result.calibration_samples} samples calibrated, {result.held_out_samples} held out",
        *steps,
    ]
    return tag("p", *(join(line, tag("br")) for line in lines), class_="small")


def _legend(result: Comparison) -> Html:
    """A swatch for each back end that has a row in the charts, and the ring of the recommended one."""
    items = []
    for index, backend in enumerate(result.backends):
        rows = [row for row in result.rows if row.wanted.backend == backend]
        count = sum(row.latency is not None for row in rows)
        if count:
            items.append(tag("li", _swatch(index, _SHAPES[index % len(_SHAPES)]), f"{backend}: {count} of {len(rows)}"))
    chosen = best(result.rows, result.max_error)
    if chosen is not None:
        swatch = _swatch(result.backends.index(chosen.wanted.backend), "ring")
        items.append(tag("li", swatch, f"recommended: {chosen.wanted.id}"))
    words = f"Point at a mark for its row. Errors below {_NOTHING:g} % are drawn at 0."
    return join(tag("ul", *items, class_="legend"), tag("p", words, class_="small"))


def _swatch(index: int, shape: str) -> Html:
    return tag("svg", drawn(shape, 10, 10, 4.5, f"b{index}"), width=20, height=20, aria_hidden="true")


def _standings(result: Comparison) -> Html:
    head = ("back end", "row", "latency", "× float", "× ORT", "from the original", "size", "rows measured")
    rows = []
    for each in standings(result.rows, result.backends, result.max_error):
        counted = f"{each.measured} of {each.total}"
        if each.row is None or each.row.latency is None or each.row.checked is None:
            rows.append((each.backend, "none", *[MISSING] * 5, counted))
            continue
        latency, checked = each.row.latency, each.row.checked
        rows.append(
            (
                each.backend,
                each.row.wanted.id.partition("/")[2],
                ms(each.seconds),
                MISSING if latency.speedup is None else times(latency.speedup),
                MISSING if latency.against_reference is None else times(latency.against_reference),
                percent(checked.error_to_original),
                size(checked.size_bytes),
                counted,
            )
        )
    words = (
        "Latency at the machine's usual speed; × ORT is the speed over ONNX Runtime's float model in the same rounds."
    )
    return join(tag("p", words, class_="small"), table(head, rows, words=frozenset({1})))


def _milliseconds(row: Row, drift: Drift | None) -> float:
    assert row.latency is not None
    return even_s(row.latency, drift) * 1e3


def _megabytes(row: Row) -> float:
    assert row.checked is not None
    return row.checked.size_bytes / 1e6


def _scatter(result: Comparison, title: str, value: Callable[[Row], float]) -> Html:
    rows = [row for row in result.rows if row.latency is not None and row.checked is not None]
    if not rows:
        return tag("p", "No row was measured.", class_="absent")
    errors = [(row.checked.error_to_original or 0.0) * 100 if row.checked else 0.0 for row in rows]
    errors = [error if error >= _NOTHING else 0.0 for error in errors]
    chart = Chart(
        logarithmic(title, [value(row) for row in rows]),
        logarithmic("error from the original, %", errors, zero=True),
        f"{title} and error of {plural(len(rows), 'row')}",
    )
    if 0.0 < result.max_error * 100 < max(errors, default=0.0):
        chart.area_above(result.max_error * 100, "beyond")
        chart.across(result.max_error * 100, "upper", f"{percent(result.max_error)} allowed")
    chosen = best(result.rows, result.max_error)
    for row, error in zip(rows, errors, strict=True):
        index = result.backends.index(row.wanted.backend)
        shape = "ring" if row is chosen else _SHAPES[index % len(_SHAPES)]
        what = f"{row.wanted.id}: {_milliseconds(row, result.drift):.2f} ms, {error:.3f} %, {_megabytes(row):.2f} MB"
        chart.mark(shape, value(row), error, f"b{index}", what)
    for row, error in zip(rows, errors, strict=True):
        if row is chosen:
            chart.label(value(row), error, row.wanted.id)
    return tag("figure", chart.draw())


def _backend(result: Comparison, backend: str) -> list[Html]:
    rows = [row for row in result.rows if row.wanted.backend == backend]
    layers = [layer for layer in result.layers if layer.backend == backend]
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.get(backend, {}).items())
    support = [each for each in result.support if each.backend == backend]
    parts = [tag("p", versions, class_="small"), _rows(rows), *_reasons(rows)]
    if support:
        parts.append(
            table(
                ("way", "operator", "works", "why not"),
                [(each.way, each.operator, "yes" if each.works else "no", each.reason) for each in support],
                caption="Operators, found by trying",
                words=frozenset({1, 2, 3}),
            )
        )
    if layers:
        parts += [_speedups(layers), _layers(layers)]
    if backend in result.absent:
        parts.append(tag("p", f"Layers: {result.absent[backend]}", class_="absent"))
    return parts


def _rows(rows: Sequence[Row]) -> Html:
    head = ["row", "latency", "spread", "× float", "× ORT", "error from its float", "from the original", "top-1"]
    head += ["size", "in int8", "types", "symmetric", "per channel", "engine", "operators in int8"]
    labelled = any(row.checked is not None and row.checked.accuracy is not None for row in rows)
    kept = [index for index, name in enumerate(head) if labelled or name != "top-1"]
    cells = [_cells(row) for row in rows]
    return table(
        [head[index] for index in kept],
        [[each[index] for index in kept] for each in cells],
        words=frozenset(range(len(kept) - 5, len(kept))),
    )


def _cells(row: Row) -> tuple[object, ...]:
    wanted, checked, latency = row.wanted, row.checked, row.latency
    facts = (wanted.types, _yes(wanted.symmetric), _yes(wanted.per_channel), wanted.engine)
    name = wanted.id.partition("/")[2]
    if latency is None or checked is None:
        return (name, row.status, *[MISSING] * 8, *facts, "")
    int8 = ", ".join(f"{count} {kind}" for kind, count in checked.int8_operators.items())
    return (
        name,
        ms(latency.median_s),
        ms(latency.deviation_s),
        MISSING if latency.speedup is None else times(latency.speedup),
        MISSING if latency.against_reference is None else times(latency.against_reference),
        percent(checked.error_to_float),
        percent(checked.error_to_original),
        percent(checked.accuracy),
        size(checked.size_bytes),
        f"{sum(checked.int8_operators.values())} of {sum(checked.operators.values())}",
        *facts,
        int8,
    )


def _reasons(rows: Sequence[Row]) -> list[Html]:
    """Why rows were not measured, and what is to be known of those that were: each once, with its rows."""
    found: dict[str, list[str]] = {}
    for row in rows:
        said = (f"{row.status}: {row.reason}",) if row.reason else row.checked.notes if row.checked else ()
        for each in said:
            found.setdefault(each, []).append(row.wanted.id.partition("/")[2])
    items = [
        tag("li", tag("b", "all rows" if len(names) == len(rows) else ", ".join(names)), f" – {text}")
        for text, names in found.items()
    ]
    return [tag("ul", *items, class_="small")] if items else []


def _yes(value: bool | None) -> str:
    return MISSING if value is None else "yes" if value else "no"


def _speedups(layers: Sequence[Layer]) -> Html:
    known = sorted((each for each in layers if each.speedup), key=lambda each: -(each.float_s or 0.0))[:_BARS]
    if not known:
        return tag("p", "No layer has both times.", class_="absent")
    ratios = [(each.name, each.speedup or 1.0) for each in known]
    bars = [Bar(name, 1.0, ratio, times(ratio), "int8" if ratio >= 1.0 else "float") for name, ratio in ratios]
    caption = tag(
        "p", f"Speed-up of the {plural(len(known), 'slowest layer')}: left of 1 int8 is slower", class_="small"
    )
    return join(caption, waterfall(bars))


def _layers(layers: Sequence[Layer]) -> Html:
    head = ("layer", "kind", "MFLOPs", "output", "in int8", "float", "int8", "speed-up", "error alone", "note")
    rows = [
        (
            each.name,
            each.kind,
            MISSING if each.flops is None else f"{each.flops / 1e6:.2f}",
            MISSING if each.float_bytes is None else size(each.float_bytes),
            MISSING if each.int8_bytes is None else size(each.int8_bytes),
            ms(each.float_s),
            ms(each.int8_s),
            MISSING if each.speedup is None else times(each.speedup),
            percent(each.error),
            each.note,
        )
        for each in layers
    ]
    return table(head, rows, caption="Layer by layer", words=frozenset({1, 9}))
