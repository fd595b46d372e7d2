"""The result of a comparison: rows, conversions and versions. A value; measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from taglio.compare.row import Row
from taglio.profile.machine import Machine

COMPARISON = "comparison"


def best(rows: Sequence[Row], max_error: float) -> Row | None:
    """The fastest row whose error from the original is at most `max_error`; None if there is none.

    Rows of different back ends are compared by their speed relative to ONNX Runtime's float model, which ran between
    their rounds: it does not depend on how fast the machine was at that time.
    """
    within = [
        row for row in rows if row.latency and row.checked and (row.checked.error_to_original or 0.0) <= max_error
    ]
    return max(within, key=lambda row: (row.latency and row.latency.against_reference) or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class Conversion:
    """One conversion step from the user's model to a back end's: its tool, the relative L2 distance of the outputs if
    measured at this step, and the file."""

    source: str
    target: str
    tool: str
    distance: float | None
    path: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """One model on one machine in all requested back ends.

    `silence_s` is the timeout per row, `memory_limit_bytes` the limit of a back end's process. `versions` are by back
    end. `recommended` is the id of the fastest row within `max_error`, "" if there is none. `stopped` means that Ctrl-C
    ended it before the last row.
    """

    model: str
    model_sha256: str
    kind: str
    machine: Machine
    threads: int
    data: str
    calibration_samples: int
    held_out_samples: int
    max_error: float
    silence_s: float
    memory_limit_bytes: int
    backends: tuple[str, ...]
    versions: dict[str, dict[str, str]]
    conversions: tuple[Conversion, ...]
    rows: tuple[Row, ...]
    recommended: str
    stopped: bool
    wall_s: float
