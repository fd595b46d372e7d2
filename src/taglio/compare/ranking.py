"""Rank rows, and the best row of each back end. Pure functions.

Rows of different back ends are compared at the machine's usual speed: ONNX Runtime's float model runs between the
rounds of every back end, and shows how fast the machine was."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from taglio.compare.row import Row


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


def best(rows: Sequence[Row], max_error: float, machine: Drift | None) -> Row | None:
    """The fastest measured row, corrected for drift, whose error from the original is at most `max_error`."""
    within = [
        row for row in rows if row.latency and row.checked and (row.checked.error_to_original or 0.0) <= max_error
    ]
    return min(within, key=lambda row: seconds(row, machine), default=None)


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
    unsorted = []
    for backend in backends:
        backend_rows = [row for row in rows if row.wanted.backend == backend]
        row = best(backend_rows, max_error, machine)
        value = None if row is None else seconds(row, machine)
        unsorted.append(
            Standing(backend, row, value, sum(row.latency is not None for row in backend_rows), len(backend_rows))
        )
    return tuple(sorted(unsorted, key=lambda standing: float("inf") if standing.seconds is None else standing.seconds))
