"""A machine changes speed while it is measured. ONNX Runtime's float model has a turn between the rounds of every back
end: rows of different back ends are compared by their ratio to it, not by their seconds. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from taglio.compare.row import Latency, Row


@dataclass(frozen=True, slots=True)
class Drift:
    """Seconds of the reference: its median over all groups of rows, and its fastest and slowest group."""

    usual_s: float
    fastest_s: float
    slowest_s: float


def drift(rows: Sequence[Row]) -> Drift | None:
    """What the rows say of the machine; None where none had the reference beside it."""
    seconds = [row.latency.reference_s for row in rows if row.latency and row.latency.reference_s is not None]
    return Drift(median(seconds), min(seconds), max(seconds)) if seconds else None


def even_s(latency: Latency, machine: Drift | None) -> float:
    """Median seconds of a row as if the machine had always had its usual speed."""
    if machine is None or not latency.reference_s:
        return latency.median_s
    return latency.median_s * machine.usual_s / latency.reference_s
