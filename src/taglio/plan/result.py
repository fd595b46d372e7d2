"""What a plan says, and the limits it was asked to keep. Solves nothing."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from taglio.graph import Graph
from taglio.quantize.precision import FLOAT32, Precision
from taglio.scheme import Scheme

# "measured": not solved for (float, all int8, worst excluded), but faster by the clock than what was.
Status = Literal["optimal", "time limit", "infeasible", "measured"]
LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must keep: the largest output error, blocks held in float or in int8 by name, blocks held on a device
    or kept off one as (block, device), and what one request may take and how many a second there must be room for."""

    max_error: float | None
    float_blocks: tuple[str, ...] = ()
    int8_blocks: tuple[str, ...] = ()
    device_pins: tuple[tuple[str, str], ...] = ()
    device_exclusions: tuple[tuple[str, str], ...] = ()
    max_latency_s: float | None = None
    max_energy_joules: float | None = None
    min_rate_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """One block's device and precision name."""

    block: str
    device: str
    precision: str


@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted number and the ends between which `coverage` of measurements should fall."""

    low: float
    value: float
    high: float
    coverage: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement of every block, with what it is predicted to take and to change.

    `gap` is the solver's proven relative distance from the fastest plan under the same tables and limits; of one that
    was not solved for, its predicted distance behind the fastest that was. Errors are relative L2, the largest over
    outputs; the upper end of `predicted_error` was held against `limits.max_error` unless measuring the plan itself
    allowed more (`measured_error`).
    """

    model_sha256: str
    scheme: Scheme
    precisions: tuple[Precision, ...]
    limits: Limits
    placements: tuple[Placement, ...]
    status: Status
    gap: float
    predicted_latency_s: Interval
    predicted_error: Interval
    measured_error: float | None = None
    notes: tuple[str, ...] = field(default=())

    def assignment(self) -> dict[str, Precision]:
        """Precision by block, blocks in float32 left out."""
        by_name = {precision.name: precision for precision in self.precisions}
        return {each.block: by_name[each.precision] for each in self.placements if each.precision != FLOAT32.name}

    def fingerprint(self) -> str:
        """SHA-256 of what decides the components: model, scheme and placements."""
        rows = [f"{each.block}\t{each.device}\t{each.precision}" for each in self.placements]
        return hashlib.sha256("\n".join([self.model_sha256, str(self.scheme), *rows]).encode()).hexdigest()

    def devices(self) -> dict[str, str]:
        """Device by block."""
        return {each.block: each.device for each in self.placements}


def placements(
    graph: Graph, assignment: Mapping[str, Precision], devices: Mapping[str, str] | None = None
) -> tuple[Placement, ...]:
    """Placements of every block of `graph`, float32 and the local machine where nothing else is said."""
    return tuple(
        Placement(block.name, (devices or {}).get(block.name, LOCAL), assignment.get(block.name, FLOAT32).name)
        for block in graph.blocks
    )
