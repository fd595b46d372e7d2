"""What a comparison ends with: rows, layers, and what was said of the back ends. A value; measures nothing."""

from dataclasses import dataclass

from taglio.compare.drift import Drift
from taglio.compare.row import Layer, Row, Support
from taglio.profile.machine import Machine

COMPARISON = "comparison"


@dataclass(frozen=True, slots=True)
class Conversion:
    """One step from the user's model to a back end's: its tool, the relative L2 distance of the outputs where it
    was measured at this step, and the file."""

    source: str
    target: str
    tool: str
    distance: float | None
    path: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """One model on one machine in every back end that was asked for.

    `silence_s` is the limit of a row, `memory_limit_bytes` that of a back end's process (None: this system does not say
    what a process holds, and nothing is limited). `versions` are by back end. `absent` holds, by back end, why it has
    no layers. `kept` rows come from the same comparison, stopped before; `stopped` says that this one was, too.
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
    support: tuple[Support, ...]
    drift: Drift | None
    recommendation: str
    kept: int
    stopped: bool
    wall_s: float
