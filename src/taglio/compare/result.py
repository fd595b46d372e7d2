"""The result of a comparison: rows, layers, and the state of each back end. A value; measures nothing."""

from dataclasses import dataclass

from taglio.compare.ranking import Drift
from taglio.compare.row import Layer, Row
from taglio.profile.machine import Machine

COMPARISON = "comparison"


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

    `silence_s` is the timeout per row, `memory_limit_bytes` the limit of a back end's process (None: this system does
    not report memory per process, so nothing is limited). `versions` are by back end. `absent` gives, by back end, the
    reason why it has no layers. `recommended` is the id of the fastest row within `max_error`, "" if there is none.
    `stopped` means that Ctrl-C ended it before the last row.
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
    memory_limit_bytes: int | None
    backends: tuple[str, ...]
    versions: dict[str, dict[str, str]]
    conversions: tuple[Conversion, ...]
    rows: tuple[Row, ...]
    layers: tuple[Layer, ...]
    absent: dict[str, str]
    drift: Drift | None
    recommended: str
    stopped: bool
    wall_s: float
