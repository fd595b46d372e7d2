"""A comparison as one self-contained HTML page, and on the terminal. Measures nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path

from taglio.compare.result import COMPARISON, Comparison, best
from taglio.compare.row import Row
from taglio.errors import plural
from taglio.memory import size_text
from taglio.report import console, written
from taglio.report.parts import Axis, Chart, Columns, Heading, Legend, Mark, NamedValues, Part, Table, Text
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
        Section("plots", "Error against latency and size", _plots(comparison)),
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
        console.show([Heading(backend), *_backend(comparison, backend, brief=True)])
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


def _plots(comparison: Comparison) -> list[Part]:
    rows = [row for row in comparison.rows if row.latency is not None and row.checked is not None]
    if not rows:
        return [Text("No row was measured.", "absent")]

    def milliseconds(row: Row) -> float:
        return row.latency.median_s * 1e3 if row.latency is not None else 0.0

    def megabytes(row: Row) -> float:
        return row.checked.size_bytes / 1e6 if row.checked is not None else 0.0

    def scatter(title: str, value: Callable[[Row], float]) -> Chart:
        marks = []
        for row in rows:
            index = comparison.backends.index(row.wanted.backend)
            error = (row.checked.error_to_original or 0.0) * 100 if row.checked else 0.0
            text = f"{row.wanted.id}\n{milliseconds(row):.2f} ms, {error:.3f} %, {megabytes(row):.2f} MB"
            is_recommended = row.wanted.id == comparison.recommended
            symbol, label = _SYMBOLS[index % len(_SYMBOLS)], row.wanted.id if is_recommended else ""
            drawn = error if error >= 0.001 else 0.0  # smaller errors are float rounding
            marks.append(Mark(value(row), drawn, f"b{index % _COLORS}", text, label, symbol, ring=is_recommended))
        broken = 0.0 < comparison.max_error * 100 < max((mark.y for mark in marks), default=0.0)
        limit = (comparison.max_error * 100, f"limit {percent(comparison.max_error)}") if broken else None
        axis = Axis("error against the original, %", "log", zero=True)
        return Chart(f"{title} and error of {plural(len(rows), 'row')}", Axis(title, "log"), axis, marks, limit=limit)

    legend = []
    for index, backend in enumerate(comparison.backends):
        backend_rows = [row for row in comparison.rows if row.wanted.backend == backend]
        count = sum(row.latency is not None for row in backend_rows)
        if count:
            legend.append((f"c{index % _COLORS}", f"{backend}: {count} of {len(backend_rows)}"))
    if comparison.recommended:
        legend.append(("ring", f"recommended: {comparison.recommended}"))
    note = Text("Hover over a point to see its row. Errors below 0.001 % are drawn at 0.", "small")
    latency, disk = scatter("latency per inference, ms", milliseconds), scatter("size of the model, MB", megabytes)
    return [Legend(legend), note, Columns([[latency], [disk]])]


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


def _backend(comparison: Comparison, backend: str, *, brief: bool = False) -> list[Part]:
    """The rows of a back end; `brief` for the terminal."""
    rows = [row for row in comparison.rows if row.wanted.backend == backend]
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.get(backend, {}).items())
    parts: list[Part] = [Text(versions, "small")] if versions or not brief else []
    if not brief or any(row.status == "measured" for row in rows):
        parts.append(_rows(rows))
    parts += _reasons(rows, brief=brief)
    return parts


def _rows(rows: Sequence[Row]) -> Table:
    head = ["row", "latency", "spread", "× float", "× ORT", "error against float", "against the original", "top-1"]
    head += ["size", "in int8", "types", "symmetric", "per channel", "engine", "operators in int8"]
    labelled = any(row.checked is not None and row.checked.accuracy is not None for row in rows)
    columns = [index for index, name in enumerate(head) if labelled or name != "top-1"]
    words = range(len(columns) - 5, len(columns))
    details = frozenset({words[1], words[2], words[4]})
    cells = [[cells_of_row[index] for index in columns] for cells_of_row in map(_cells, rows)]
    return Table([head[index] for index in columns], cells, words=frozenset(words), details=details)


def _cells(row: Row) -> tuple[object, ...]:
    wanted, checked, latency = row.wanted, row.checked, row.latency
    facts = (wanted.types, _yes(wanted.symmetric), _yes(wanted.per_channel), wanted.engine)
    if latency is None or checked is None:
        return (_short(row), row.status, *[MISSING] * 8, *facts, "")
    int8 = checked.int8_operators
    seconds = (ms(latency.median_s), ms(latency.deviation_s))
    speeds = (times(latency.speedup), times(latency.against_reference))
    scores = map(percent, (checked.error_to_float, checked.error_to_original, checked.accuracy))
    in_int8 = f"{sum(int8.values())} of {sum(checked.operators.values())}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in int8.items())
    return (_short(row), *seconds, *speeds, *scores, size(checked.size_bytes), in_int8, *facts, kinds)


def _reasons(rows: Sequence[Row], *, brief: bool) -> list[Part]:
    """Why rows were not measured, and notes on measured ones: each once, with its rows."""
    rows_by_text: dict[str, list[str]] = {}
    for row in rows:
        texts = (f"{row.status}: {row.reason}",) if row.reason else row.checked.notes if row.checked else ()
        for text in texts:
            rows_by_text.setdefault(text, []).append(_short(row))
    items = []
    for text, names in rows_by_text.items():
        more = len(names) - 4 if brief else 0
        named = f"{', '.join(names[:4])} and {more} more" if more > 0 else ", ".join(names)
        items.append((f"all {len(rows)} rows" if len(names) == len(rows) > 1 else named, text))
    return [NamedValues(items)] if items else []


def _short(row: Row) -> str:
    return row.wanted.id.partition("/")[2]


def _yes(value: bool | None) -> str:
    return MISSING if value is None else "yes" if value else "no"
