"""A comparison as terminal tables. Rounds and aligns; computes nothing."""

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from taglio.compare.recommend import standings
from taglio.compare.result import Comparison
from taglio.compare.row import Layer, Row

_LAYERS_SHOWN = 15
_NAMES_SHOWN = 4  # rows named in a note
_NAME_SHOWN = 60  # TFLite's converter joins the names of all layers that it fused


def show(result: Comparison, page: Path | None) -> None:
    """Print the conditions, a table of rows, the layers that gain most, and the recommendation."""
    _say(f"{result.model} ({result.kind}) on {result.machine}, {result.threads} threads")
    _say(f"{result.calibration_samples} samples for calibration, {result.held_out_samples} held out for the error")
    for line in conditions(result):
        _say(line)
    for step in result.conversions:
        distance = "" if step.distance is None else f": outputs differ by {step.distance:.2e}"
        _say(f"{step.source} → {step.target} by {step.tool}{distance}")
    for backend in result.backends:
        rows = [row for row in result.rows if row.wanted.backend == backend]
        versions = ", ".join(f"{name} {version}" for name, version in result.versions.get(backend, {}).items())
        _say(f"\n{backend} {versions}")
        _rows(rows)
        layers = [layer for layer in result.layers if layer.backend == backend]
        if layers:
            _layers(layers)
        if backend in result.absent:
            _say(f"layers: {result.absent[backend]}")
    if len(result.backends) > 1:
        _standings(result)
    _say(f"\n{result.recommendation}")
    wrote = f"; wrote {page} and {page.with_suffix('.json')}" if page else ""
    _say(f"took {result.wall_s:.0f} s{wrote}")


def _standings(result: Comparison) -> None:
    _say(f"\nfastest row of each back end (error limit {result.max_error:.2%}), latency corrected for drift")
    table = _table("back end", "row", "latency", "x float", "x ORT", "of original", "size", "rows measured")
    for each in standings(result.rows, result.backends, result.max_error):
        counted = f"{each.measured} of {each.total}"
        if each.row is None or each.row.latency is None or each.row.checked is None or each.seconds is None:
            table.add_row(each.backend, "none", *[""] * 5, counted)
            continue
        latency, checked = each.row.latency, each.row.checked
        table.add_row(
            each.backend,
            escape(_short(each.row)),
            f"{each.seconds * 1e3:.2f} ms",
            "" if latency.speedup is None else f"{latency.speedup:.2f}",
            "" if latency.against_reference is None else f"{latency.against_reference:.2f}",
            _percent(checked.error_to_original),
            f"{checked.size_bytes / 1e6:.2f} MB",
            counted,
        )
    _print(table)


def conditions(result: Comparison) -> list[str]:
    """Lines about the limits of rows, rows kept from an earlier run, and how steady the machine was."""
    stop = f"timeout per row {result.silence_s:.0f} s"
    if result.memory_limit_bytes is None:
        memory = "; no memory limit: this system does not report the memory of a process"
    else:
        memory = f"; memory limit {result.memory_limit_bytes / 2**30:.1f} GiB"
    lines = [stop + memory]
    if result.kept:
        lines.append(f"{result.kept} rows come from an earlier, interrupted run")
    if result.drift is not None:
        each = result.drift
        lines.append(
            f"ONNX Runtime's float model, timed beside every back end, took {each.fastest_s * 1e3:.2f} to "
            f"{each.slowest_s * 1e3:.2f} ms: compare back ends by x ORT, which is independent of drift"
        )
    return lines


def _rows(rows: list[Row]) -> None:
    if all(row.status != "measured" for row in rows):
        counts = Counter((row.status, row.reason) for row in rows)
        for (ended, why), count in counts.items():
            _say(f"  {f'all {count}' if count == len(rows) else count} row{'s' * (count > 1)} {ended}: {why}")
        return
    labelled = any(row.checked is not None and row.checked.accuracy is not None for row in rows)
    task = ("top-1",) if labelled else ()
    table = _table(
        *("row", "types", "engine", "latency", "±", "x float", "x ORT", "error", "of original"),
        *("size", "int8 kernels", *task),
    )
    for row in rows:
        table.add_row(*_cells(row)[: len(table.columns)])
    _print(table)
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status != "measured":
            reasons.setdefault((row.status, row.reason), []).append(_short(row))
    for (status, reason), names in reasons.items():
        _say(f"  {status}: {', '.join(names)}: {reason}")
    notes: dict[str, list[str]] = {}
    for row in rows:
        for note in row.checked.notes if row.checked else ():
            notes.setdefault(note, []).append(_short(row))
    for note, names in notes.items():
        whose = ", ".join(names[:_NAMES_SHOWN])
        if len(names) > _NAMES_SHOWN:
            whose = f"{whose} and {len(names) - _NAMES_SHOWN} more"
        _say(f"  note: {whose if len(names) < len(rows) else 'all'}: {note}")


def _cells(row: Row) -> list[str]:
    wanted, checked, latency = row.wanted, row.checked, row.latency
    if latency is None:
        return [escape(_short(row)), wanted.types, escape(wanted.engine), row.status, *[""] * 8]
    assert checked is not None
    speedup = "" if latency.speedup is None else f"{latency.speedup:.2f}"
    int8, total = sum(checked.int8_operators.values()), sum(checked.operators.values())
    return [
        escape(_short(row)),
        wanted.types,
        escape(wanted.engine),
        f"{latency.median_s * 1e3:.2f} ms",
        f"{latency.deviation_s * 1e3:.2f}",
        speedup,
        "" if latency.against_reference is None else f"{latency.against_reference:.2f}",
        _percent(checked.error_to_float),
        _percent(checked.error_to_original),
        f"{checked.size_bytes / 1e6:.2f} MB",
        f"{int8} of {total}" if total else "",
        "" if checked.accuracy is None else f"{checked.accuracy:.1%}",
    ]


def _layers(layers: list[Layer]) -> None:
    table = _table("layer", "kind", "MFLOPs", "output", "in int8", "float", "int8", "speed-up", "error alone")
    shown = sorted(layers, key=lambda each: -(each.float_s or 0.0))[:_LAYERS_SHOWN]
    for layer in shown:
        table.add_row(
            escape(layer.name if len(layer.name) <= _NAME_SHOWN else f"{layer.name[: _NAME_SHOWN - 1]}…"),
            escape(layer.kind),
            "" if layer.flops is None else f"{layer.flops / 1e6:.2f}",
            "" if layer.float_bytes is None else f"{layer.float_bytes / 1e3:.1f} kB",
            "" if layer.int8_bytes is None else f"{layer.int8_bytes / 1e3:.1f} kB",
            "" if layer.float_s is None else f"{layer.float_s * 1e3:.3f} ms",
            "" if layer.int8_s is None else f"{layer.int8_s * 1e3:.3f} ms",
            "" if layer.speedup is None else f"{layer.speedup:.2f}",
            _percent(layer.error),
        )
    _print(table)
    if len(layers) > len(shown):
        _say(f"  the slowest {len(shown)} of {len(layers)} layers; all are in the page and in --json")


def _short(row: Row) -> str:
    return row.wanted.id.partition("/")[2]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.3%}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    return table


def _print(table: Table) -> None:
    console = Console(highlight=False)
    Console(width=max(console.width, 170), highlight=False).print(table)


def _say(text: str) -> None:
    Console(highlight=False, soft_wrap=True).print(escape(text))
