"""A comparison as one self-contained HTML page: recommendation, plots, every row and layer. Measures nothing."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from taglio.compare.drift import even_s
from taglio.compare.recommend import best, standings
from taglio.compare.result import COMPARISON, Comparison
from taglio.compare.row import Layer, Row
from taglio.report import written
from taglio.report.comparison_table import conditions
from taglio.report.parts import (
    Axis,
    Bar,
    Bars,
    Chart,
    Columns,
    Heading,
    Items,
    Legend,
    Mark,
    Part,
    Table,
    Text,
)
from taglio.report.units import MISSING, ms, percent, plural, size, times
from taglio.report.written import Section, Written

_SYMBOLS = ("circle", "square", "diamond")
_COLORS = 7  # for back ends in the style sheet
_BARS = 30
_NOTHING = 1e-3  # per cent: smaller errors are float rounding, and drawn as 0
FILE = f"{COMPARISON}.html"


def write(folder: Path, result: Comparison) -> Written:
    """Write the page into `folder`. Raises BadArtifact if it cannot be written."""
    text, lacks = render(result)
    return written.write(folder / FILE, text, lacks)


def render(result: Comparison) -> tuple[str, list[str]]:
    """The page as text, and a list of what it lacks: a section that fails is replaced by a sentence."""
    lacks: list[str] = []
    fastest = f"Fastest row of each back end (error limit {percent(result.max_error)})"
    named: list[tuple[str, str, Callable[[], list[Part]]]] = [
        ("plots", "Error against latency and size", lambda: _plots(result)),
        ("standings", fastest, lambda: _standings(result)),
        *((backend, backend, partial(_backend, result, backend)) for backend in result.backends),
    ]
    top = written.drawn("Summary", [lambda: _summary(result)], lacks)
    sections = [Section(id_, title, written.drawn(title, [draw], lacks)) for id_, title, draw in named]
    return written.render(f"{result.model} compared – taglio", result.model, top, sections), lacks


def _summary(result: Comparison) -> list[Part]:
    steps = [
        f"{step.source} → {step.target} by {step.tool}: outputs differ by {percent(step.distance)}"
        for step in result.conversions
    ]
    samples = f"{result.calibration_samples} samples for calibration, {result.held_out_samples} held out"
    lines = [
        str(result.machine),
        f"{plural(result.threads, 'thread')}; rows of one back end ran in turns after a warm-up; medians",
        *conditions(result),
        f"{result.data}: {samples}",
        *steps,
    ]
    told: list[Part] = [Heading("Every back end, measured", 1), Text(result.recommendation, "lede")]
    return [*told, Items([("", line) for line in lines])]


def _plots(result: Comparison) -> list[Part]:
    rows = [row for row in result.rows if row.latency is not None and row.checked is not None]
    if not rows:
        return [Text("No row was measured.", "absent")]
    chosen = best(result.rows, result.max_error)

    def milliseconds(row: Row) -> float:
        return even_s(row.latency, result.drift) * 1e3 if row.latency is not None else 0.0

    def megabytes(row: Row) -> float:
        return row.checked.size_bytes / 1e6 if row.checked is not None else 0.0

    def scatter(title: str, value: Callable[[Row], float]) -> Chart:
        marks = []
        for row in rows:
            index = result.backends.index(row.wanted.backend)
            error = (row.checked.error_to_original or 0.0) * 100 if row.checked else 0.0
            text = f"{row.wanted.id}\n{milliseconds(row):.2f} ms, {error:.3f} %, {megabytes(row):.2f} MB"
            symbol, label = _SYMBOLS[index % len(_SYMBOLS)], row.wanted.id if row is chosen else ""
            drawn = error if error >= _NOTHING else 0.0
            marks.append(Mark(value(row), drawn, f"b{index % _COLORS}", text, label, symbol, ring=row is chosen))
        broken = 0.0 < result.max_error * 100 < max((mark.y for mark in marks), default=0.0)
        limit = (result.max_error * 100, f"limit {percent(result.max_error)}") if broken else None
        axis = Axis("error against the original, %", "log", zero=True)
        return Chart(f"{title} and error of {plural(len(rows), 'row')}", Axis(title, "log"), axis, marks, limit=limit)

    legend = []
    for index, backend in enumerate(result.backends):
        own = [row for row in result.rows if row.wanted.backend == backend]
        count = sum(row.latency is not None for row in own)
        if count:
            legend.append((f"c{index % _COLORS}", f"{backend}: {count} of {len(own)}"))
    if chosen is not None:
        legend.append(("ring", f"recommended: {chosen.wanted.id}"))
    note = Text(f"Point at a mark for its row. Errors below {_NOTHING:g} % are drawn at 0.", "small")
    latency, disk = scatter("latency per inference, ms", milliseconds), scatter("size of the model, MB", megabytes)
    return [Legend(legend), note, Columns([[latency], [disk]])]


def _standings(result: Comparison) -> list[Part]:
    head = ("back end", "row", "latency", "× float", "× ORT", "error against the original", "size", "rows measured")
    rows: list[Sequence[object]] = []
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
                _ratio(latency.speedup),
                _ratio(latency.against_reference),
                percent(checked.error_to_original),
                size(checked.size_bytes),
                counted,
            )
        )
    text = "Latency corrected for drift; × ORT is the speed relative to ONNX Runtime's float model in the same rounds."
    return [Text(text, "small"), Table(head, rows, words=frozenset({1}))]


def _backend(result: Comparison, backend: str) -> list[Part]:
    rows = [row for row in result.rows if row.wanted.backend == backend]
    layers = [layer for layer in result.layers if layer.backend == backend]
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.get(backend, {}).items())
    support = [each for each in result.support if each.backend == backend]
    parts: list[Part] = [Text(versions, "small"), _rows(rows), *_reasons(rows)]
    if support:
        cells = [(each.way, each.operator, "yes" if each.works else "no", each.reason) for each in support]
        head = ("way", "operator", "works", "why not")
        parts.append(Table(head, cells, "Operators, found by trying", words=frozenset({1, 2, 3})))
    if layers:
        parts += [_speedups(layers), _layers(layers)]
    if backend in result.absent:
        parts.append(Text(f"Layers: {result.absent[backend]}", "absent"))
    return parts


def _rows(rows: Sequence[Row]) -> Table:
    head = ["row", "latency", "spread", "× float", "× ORT", "error against its float", "against the original", "top-1"]
    head += ["size", "in int8", "types", "symmetric", "per channel", "engine", "operators in int8"]
    labelled = any(row.checked is not None and row.checked.accuracy is not None for row in rows)
    kept = [index for index, name in enumerate(head) if labelled or name != "top-1"]
    cells = [_cells(row) for row in rows]
    words = frozenset(range(len(kept) - 5, len(kept)))
    return Table([head[index] for index in kept], [[each[index] for index in kept] for each in cells], words=words)


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
        _ratio(latency.speedup),
        _ratio(latency.against_reference),
        percent(checked.error_to_float),
        percent(checked.error_to_original),
        percent(checked.accuracy),
        size(checked.size_bytes),
        f"{sum(checked.int8_operators.values())} of {sum(checked.operators.values())}",
        *facts,
        int8,
    )


def _reasons(rows: Sequence[Row]) -> list[Part]:
    """Why rows were not measured, and notes on measured ones: each once, with its rows."""
    found: dict[str, list[str]] = {}
    for row in rows:
        said = (f"{row.status}: {row.reason}",) if row.reason else row.checked.notes if row.checked else ()
        for each in said:
            found.setdefault(each, []).append(row.wanted.id.partition("/")[2])
    items = [("all rows" if len(names) == len(rows) else ", ".join(names), text) for text, names in found.items()]
    return [Items(items)] if items else []


def _ratio(value: float | None) -> str:
    return MISSING if value is None else times(value)


def _yes(value: bool | None) -> str:
    return MISSING if value is None else "yes" if value else "no"


def _speedups(layers: Sequence[Layer]) -> Part:
    known = sorted((each for each in layers if each.speedup), key=lambda each: -(each.float_s or 0.0))[:_BARS]
    if not known:
        return Text("No layer has both times.", "absent")
    ratios = [(each.name, each.speedup or 1.0) for each in known]
    bars = [Bar(name, 1.0, ratio, times(ratio), "int8" if ratio >= 1.0 else "float") for name, ratio in ratios]
    return Bars(bars, f"Speed-up of the {plural(len(known), 'slowest layer')} (left of 1: int8 is slower)")


def _layers(layers: Sequence[Layer]) -> Table:
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
            _ratio(each.speedup),
            percent(each.error),
            each.note,
        )
        for each in layers
    ]
    return Table(head, rows, "Layer by layer", words=frozenset({1, 9}))
