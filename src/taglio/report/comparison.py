"""A comparison as one self-contained HTML page, and on the terminal. Measures nothing."""

from collections.abc import Sequence
from pathlib import Path

from taglio.compare.result import COMPARISON, Comparison, best
from taglio.compare.row import Row
from taglio.errors import plural
from taglio.memory import size_text
from taglio.report import console, written
from taglio.report.parts import Axis, Chart, Heading, Legend, Mark, NamedValues, Part, Table, Text
from taglio.report.units import MISSING, ms, percent, size, times
from taglio.report.written import Section

_SYMBOLS = ("circle", "square", "diamond")
_COLORS = 7  # for back ends in the style sheet
FILE = f"{COMPARISON}.html"


def write(folder: Path, comparison: Comparison) -> Path:
    """Write the page into `folder`; returns its path. Raises BadArtifact if it cannot be written."""
    return written.write(folder / FILE, render(comparison))


def render(comparison: Comparison) -> str:
    """The page as text."""
    sections = [
        Section("plots", "Error against latency", _plot(comparison)),
        Section("standings", _fastest(comparison), _standings(comparison)),
        *(Section(backend, backend, _backend(comparison, backend)) for backend in comparison.backends),
    ]
    heading, advice = Heading("Every back end, measured", 1), Text(_answer(comparison), "lede")
    top = [heading, advice, *_conditions(comparison)]
    return written.render(f"{comparison.model} compared – taglio", comparison.model, top, sections)


def show(comparison: Comparison, page: Path) -> None:
    """Print the conditions, the rows of every back end, and the fastest rows."""
    console.say(f"{comparison.model} ({comparison.kind})")
    console.show(_conditions(comparison))
    for backend in comparison.backends:
        console.show([Heading(backend), *_backend(comparison, backend)])
    console.show([Heading(_fastest(comparison)), *_standings(comparison)])
    console.say(f"\n{_answer(comparison)}")
    console.say(f"took {comparison.wall_s:.0f} s; wrote {page} and {page.with_suffix('.json')}")


def _answer(comparison: Comparison) -> str:
    limit = f"an error of {percent(comparison.max_error)}"
    row = next((row for row in comparison.rows if row.wanted.id == comparison.recommended), None)
    if row is None:
        return f"No row is within {limit}."
    file = row.checked.file if row.checked else ""
    return f"The fastest row within {limit} is {comparison.recommended}" + (f", the model {file}." if file else ".")


def _conditions(comparison: Comparison) -> list[Part]:
    """Where and how rows were measured, their limits, and how steady the machine was."""
    calibration = f"{plural(comparison.calibration_samples, 'sample')} for calibration"
    lines = [
        str(comparison.machine),
        f"{plural(comparison.threads, 'thread')}; rows of one back end are interleaved, after a warm-up; times are "
        "medians",
        f"timeout per row {comparison.silence_s:.0f} s; memory limit {size_text(comparison.memory_limit_bytes)}",
        f"{comparison.data}: {calibration}, {comparison.held_out_samples} held out",
    ]
    if comparison.stopped:
        lines.append("stopped before the last row")
    lines += [
        f"{step.source} → {step.target} by {step.tool}: outputs differ by {percent(step.distance)}"
        for step in comparison.conversions
    ]
    return [Text(line, "small") for line in lines]


def _plot(comparison: Comparison) -> list[Part]:
    measured = [
        (row, row.latency.median_s * 1e3, row.checked)
        for row in comparison.rows
        if row.latency is not None and row.checked is not None
    ]
    if not measured:
        return [Text("No row was measured.")]
    marks = []
    for row, milliseconds, checked in measured:
        index = comparison.backends.index(row.wanted.backend)
        error = (checked.error_to_original or 0.0) * 100
        text = f"{row.wanted.id}\n{milliseconds:.2f} ms, {error:.3f} %, {size(checked.size_bytes)}"
        is_recommended = row.wanted.id == comparison.recommended
        symbol, label = _SYMBOLS[index % len(_SYMBOLS)], row.wanted.id if is_recommended else ""
        drawn = error if error >= 0.001 else 0.0  # smaller errors are float rounding
        marks.append(Mark(milliseconds, drawn, f"b{index % _COLORS}", text, label, symbol, ring=is_recommended))
    broken = 0.0 < comparison.max_error * 100 < max(mark.y for mark in marks)
    limit = (comparison.max_error * 100, f"limit {percent(comparison.max_error)}") if broken else None
    x, y = Axis("latency per inference, ms", "log"), Axis("error against the original, %", "log", zero=True)
    chart = Chart(f"latency and error of {plural(len(marks), 'row')}", x, y, marks, limit=limit)
    note = Text("Hover over a point to see its row. Errors below 0.001 % are drawn at 0.", "small")
    return [_legend(comparison), note, chart]


def _legend(comparison: Comparison) -> Legend:
    legend = []
    for index, backend in enumerate(comparison.backends):
        backend_rows = [row for row in comparison.rows if row.wanted.backend == backend]
        count = sum(row.latency is not None for row in backend_rows)
        if count:
            legend.append((f"c{index % _COLORS}", f"{backend}: {count} of {len(backend_rows)}"))
    if comparison.recommended:
        legend.append(("ring", f"recommended: {comparison.recommended}"))
    return Legend(legend)


def _fastest(comparison: Comparison) -> str:
    return f"Fastest row of each back end (error limit {percent(comparison.max_error)})"


def _standings(comparison: Comparison) -> list[Part]:
    head = ("back end", "row", "latency", "× float", "× ORT", "error against the original", "size", "rows measured")
    fastest = {}
    for backend in comparison.backends:
        backend_rows = [row for row in comparison.rows if row.wanted.backend == backend]
        count = f"{sum(row.latency is not None for row in backend_rows)} of {len(backend_rows)}"
        cells: tuple[object, ...] = ("none", *[MISSING] * 5)
        ratio = 0.0
        row = best(backend_rows, comparison.max_error)
        if row is not None and row.latency is not None and row.checked is not None:
            latency, checked = row.latency, row.checked
            ratio = latency.against_reference or 0.0
            speeds = (ms(latency.median_s), times(latency.speedup), times(latency.against_reference))
            cells = (_short(row), *speeds, percent(checked.error_to_original), size(checked.size_bytes))
        fastest[backend, *cells, count] = ratio
    text = "× ORT is the speed relative to ONNX Runtime's float model in the same rounds: back ends are ranked by it."
    ranked = sorted(fastest, key=lambda cells: -fastest[cells])
    return [Text(text, "small"), Table(head, ranked, words=frozenset({1}))]


def _backend(comparison: Comparison, backend: str) -> list[Part]:
    """The rows of a back end, and why others are missing."""
    rows = [row for row in comparison.rows if row.wanted.backend == backend]
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.get(backend, {}).items())
    table = [_rows(rows)] if any(row.status == "measured" for row in rows) else []
    return [*([Text(versions, "small")] if versions else []), *table, *_reasons(rows)]


def _rows(rows: Sequence[Row]) -> Table:
    head = ["row", "latency", "spread", "× float", "× ORT", "error against float", "against the original", "size"]
    head += ["in int8", "types", "engine"]
    return Table(head, list(map(_cells, rows)), words=frozenset({len(head) - 2, len(head) - 1}))


def _cells(row: Row) -> tuple[object, ...]:
    wanted, checked, latency = row.wanted, row.checked, row.latency
    if latency is None or checked is None:
        return (_short(row), row.status, *[MISSING] * 7, wanted.types, wanted.engine)
    seconds = (ms(latency.median_s), ms(latency.deviation_s))
    speeds = (times(latency.speedup), times(latency.against_reference))
    errors = map(percent, (checked.error_to_float, checked.error_to_original))
    in_int8 = f"{sum(checked.int8_operators.values())} of {sum(checked.operators.values())}"
    return (_short(row), *seconds, *speeds, *errors, size(checked.size_bytes), in_int8, wanted.types, wanted.engine)


def _reasons(rows: Sequence[Row]) -> list[Part]:
    """Why rows were not measured, and notes on measured ones: each once, with its rows."""
    rows_by_text: dict[str, list[str]] = {}
    for row in rows:
        texts = (f"{row.status}: {row.reason}",) if row.reason else row.checked.notes if row.checked else ()
        for text in texts:
            rows_by_text.setdefault(text, []).append(_short(row))
    items = []
    for text, names in rows_by_text.items():
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        everything = len(names) == len(rows) > 1
        items.append((f"all {len(rows)} rows" if everything else f"{', '.join(names[:4])}{more}", text))
    return [NamedValues(items)] if items else []


def _short(row: Row) -> str:
    return row.wanted.id.partition("/")[2]
