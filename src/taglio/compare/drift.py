"""Correct for machine drift: ONNX Runtime's float model runs between the rounds of every back end, and rows of
different back ends are compared by their ratio to it, not by their seconds. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from taglio.compare.row import Latency, Row


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


def even_s(latency: Latency, machine: Drift | None) -> float:
    """Median seconds of a row, corrected to the machine's usual speed."""
    if machine is None or not latency.reference_s:
        return latency.median_s
    return latency.median_s * machine.usual_s / latency.reference_s
