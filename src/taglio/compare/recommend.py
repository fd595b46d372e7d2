"""Recommend a row in one sentence with its figures, and rank the best row of each back end. Pure functions.

Rows of different back ends are compared at the machine's usual speed: ONNX Runtime's float model runs between the
rounds of every back end, and tells how fast the machine was."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from taglio.compare.row import Row

_SAME = 0.05  # relative change of a latency by drift below which it is not mentioned


@dataclass(frozen=True, slots=True)
class Drift:
    """Seconds of the reference: the median over all groups of rows, and of its fastest and slowest group."""

    usual_s: float
    fastest_s: float
    slowest_s: float


def drift(rows: Sequence[Row]) -> Drift | None:
    """The machine's drift according to the rows; None if no row has reference times."""
    seconds = [row.latency.reference_s for row in rows if row.latency and row.latency.reference_s is not None]
    return Drift(median(seconds), min(seconds), max(seconds)) if seconds else None


def seconds(row: Row, machine: Drift | None) -> float:
    """Median seconds of a measured row, corrected to the machine's usual speed: comparable between back ends."""
    assert row.latency is not None
    if machine is None or not row.latency.reference_s:
        return row.latency.median_s
    return row.latency.median_s * machine.usual_s / row.latency.reference_s


@dataclass(frozen=True, slots=True)
class Standing:
    """A back end's fastest row within the bound, if any, and its drift-corrected seconds. `measured` of `total` rows
    were measured."""

    backend: str
    row: Row | None
    seconds: float | None
    measured: int
    total: int


def standings(rows: Sequence[Row], backends: Sequence[str], max_error: float) -> tuple[Standing, ...]:
    """One standing per back end, fastest first."""
    machine = drift(rows)
    found = []
    for backend in backends:
        own = [row for row in rows if row.wanted.backend == backend]
        row = best(own, max_error, machine)
        value = None if row is None else seconds(row, machine)
        found.append(Standing(backend, row, value, sum(each.latency is not None for each in own), len(own)))
    return tuple(sorted(found, key=lambda each: float("inf") if each.seconds is None else each.seconds))


def best(rows: Sequence[Row], max_error: float, machine: Drift | None) -> Row | None:
    """The fastest measured row, corrected for drift, whose error from the original is at most `max_error`."""
    return min(_within(rows, max_error), key=lambda row: seconds(row, machine), default=None)


def recommend(rows: Sequence[Row], max_error: float) -> str:
    """The recommendation as one sentence."""
    machine = drift(rows)
    row = best(rows, max_error, machine)
    if row is None or row.latency is None or row.checked is None:
        return f"No row was measured within an error of {max_error:.2%}: see the reasons in the table."
    fit = _within(rows, max_error)
    floats = [each for each in fit if each.wanted.method == "float32"]
    own_s, deviation_s = seconds(row, machine), _deviation_s(row, machine)
    shown, measured = _ms(own_s), _ms(row.latency.median_s)
    head = f"Use {row.wanted.id}: {shown} (± {_ms(deviation_s)})"
    if shown != measured and abs(own_s / row.latency.median_s - 1) > _SAME:
        head += f" at the machine's usual speed ({measured} when it was measured)"
    checked = row.checked
    error = f"error {checked.error_to_original or 0.0:.3%} (limit {max_error:.2%}), {checked.size_bytes / 1e6:.2f} MB"
    fastest = min(floats, key=lambda each: seconds(each, machine), default=None)
    gain = ""
    if fastest is not None and fastest is not row:
        float_s = seconds(fastest, machine)
        gain = f", {float_s / own_s:.2f}× as fast as the fastest float32 ({fastest.wanted.id}, {_ms(float_s)})"
    close = [
        each.wanted.id
        for each in fit
        if each is not row and seconds(each, machine) - _deviation_s(each, machine) <= own_s + deviation_s
    ]
    tie = f"; as fast within noise: {', '.join(close[:3])}" if close else ""
    return f"{head}{gain}, {error}{tie}."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.{2 if seconds >= 1e-3 else 4}f} ms"


def _within(rows: Sequence[Row], max_error: float) -> list[Row]:
    return [row for row in rows if row.latency and row.checked and (row.checked.error_to_original or 0.0) <= max_error]


def _deviation_s(row: Row, machine: Drift | None) -> float:
    assert row.latency is not None
    return row.latency.deviation_s * seconds(row, machine) / row.latency.median_s
