"""A plan and the limits it must keep, as values. Solves nothing."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from taglio.error.loss import RELATIVE, Bound, Metric
from taglio.model.graph import Graph
from taglio.quantize.precision import FLOAT32, Precision, form_of
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME

# "measured": not from the solver but from a simple rule (search/rules.py), and fastest when timed.
Status = Literal["optimal", "time limit", "infeasible", "measured"]
LOCAL = "local"
# A plan within this share of the optimum is the same plan to its user: predictions are good to a few per cent.
GAP = 5e-3


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must keep: the largest output error, blocks pinned to float or to int8 by name, blocks pinned to a
    device or excluded from one as (block, device), latency and energy per request, and the least request rate.

    Memory must suffice for the states of a session of `max_steps`.

    `max_error` is a loss of `metric` (error/loss.py); `also` are limits on further metrics, checked by measuring.
    """

    max_error: float | None
    float_blocks: tuple[str, ...] = ()
    int8_blocks: tuple[str, ...] = ()
    metric: Metric = RELATIVE
    device_pins: tuple[tuple[str, str], ...] = ()
    device_exclusions: tuple[tuple[str, str], ...] = ()
    max_latency_s: float | None = None
    max_energy_joules: float | None = None
    min_rate_per_s: float | None = None
    also: tuple[Bound, ...] = ()
    max_steps: int = 1

    @property
    def allowed_error(self) -> float:
        """`max_error`; infinite if there is no limit."""
        return inf if self.max_error is None else self.max_error


@dataclass(frozen=True, slots=True)
class Placement:
    """One block's device, precision name and least level: blocks of one device and level are a component
    (cluster/planning/schedule.py)."""

    block: str
    device: str
    precision: str
    level: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted number and the interval that should contain nine of ten measurements."""

    low: float
    value: float
    high: float

    @classmethod
    def around(cls, value: float, ratio: float) -> "Interval":
        """The interval of a time, or of a quantity in proportion to a time, from a profile with this
        `interval_ratio`."""
        return cls(value / (1.0 + ratio), value, value * (1.0 + ratio))

    def times(self, factor: float) -> "Interval":
        """The same with the number and its interval multiplied by `factor`."""
        return Interval(factor * self.low, factor * self.value, factor * self.high)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A copy of a tensor sent to another device, or to another component on the same one: its precision, bytes per
    request, and predicted seconds."""

    tensor: str
    source: str
    target: str
    precision: str
    bytes: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """A component's device, blocks and predicted seconds. `waking_s` is the part of these seconds that the device needs
    because it was idle until the component's inputs came."""

    component: str
    device: str
    blocks: int
    predicted_s: float
    waking_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Use of a device by one request of a stream: busy seconds with messages and requests, joules of its components,
    bytes of weights, peak bytes with live activations, and the device's memory (None: not given). `assumed` times are
    another device's, scaled; `runtime` runs the model there. `replicas` are the devices that take turns at its
    requests, each used so; empty: itself alone."""

    device: str
    predicted_busy_s: float
    predicted_joules: float
    weight_bytes: float
    peak_bytes: float
    memory_bytes: float | None
    assumed: bool
    runtime: str = NAME
    replicas: tuple[str, ...] = ()

    @property
    def machines(self) -> tuple[str, ...]:
        """The devices that run its components."""
        return self.replicas or (self.device,)


@dataclass(frozen=True, slots=True)
class Span:
    """One busy span of a device or link: `on` is a device, or "a -> b"; the end of a transfer includes its delay."""

    on: str
    what: str
    request: int
    start_s: float
    end_s: float
    transfer: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement of every block, with predicted cost and error.

    `gap` is the solver's proven relative distance from the fastest plan under the same tables and limits. For a plan
    that is not from the solver, it is the predicted distance behind the solver's fastest plan. Errors are losses of the
    metric in `limits`. The upper end of `predicted_error` keeps `limits.max_error`, unless the plan was measured to
    keep it (`measured_error`).

    On several devices `predicted_latency_s` is that of the simulated `timeline` of one request plus the start device's
    fixed cost per request; `summed_s` adds the seconds of all components and crossings, as if nothing ran in parallel.
    `predicted_rate_per_s` is the rate at which the `busiest` device or link is always busy.
    Inputs come from, and outputs go to, the device `start`. Times are means over inputs of `shapes`, empty if the model
    fixes its shapes. `runtime` is the place of a plan for one machine; devices of a cluster have their own (`usage`).
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
    objective: str = "latency"
    start: str = LOCAL
    crossings: tuple[Crossing, ...] = ()
    pieces: tuple[PlannedPiece, ...] = ()
    usage: tuple[DeviceUse, ...] = ()
    summed_s: float | None = None
    predicted_joules: Interval | None = None
    predicted_rate_per_s: Interval | None = None
    busiest: str = ""
    timeline: tuple[Span, ...] = ()
    shapes: tuple[dict[str, tuple[int, ...]], ...] = ()
    binding: tuple[str, ...] = ()
    runtime: str = NAME

    def assignment(self) -> dict[str, Precision]:
        """Precision by block, without the blocks in float32."""
        by_name = {precision.name: precision for precision in self.precisions}
        return {
            placement.block: by_name[placement.precision]
            for placement in self.placements
            if placement.precision != FLOAT32.name
        }

    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the components: model, scheme and placements."""
        rows = [
            f"{placement.block}\t{placement.device}\t{placement.precision}\t{placement.level}"
            for placement in self.placements
        ]
        rows += [f"{crossing.tensor}\t{crossing.target}\t{crossing.precision}" for crossing in self.crossings]
        rows += [self.runtime] if self.runtime != NAME else []
        rows += [f"{use.device}\t{use.runtime}" for use in self.usage if use.runtime != NAME]
        return hashlib.sha256("\n".join([self.model_sha256, str(self.scheme), *rows]).encode()).hexdigest()

    def runtime_on(self, device: str) -> str:
        """The runtime of a device's components."""
        return next((use.runtime for use in self.usage if use.device == device), self.runtime)

    def devices(self) -> dict[str, str]:
        """Device by block."""
        return {placement.block: placement.device for placement in self.placements}

    def machines(self) -> dict[str, tuple[str, ...]]:
        """The devices that run each device's components: itself, or several that take turns."""
        return {use.device: use.machines for use in self.usage}

    def without(self, gone: Collection[str]) -> "Plan | None":
        """The same components on the replicas that are left when some devices are gone, at no less than the predicted
        rate; None if a device that the plan needs has none left."""
        left = {
            name: tuple(machine for machine in machines if machine not in gone)
            for name, machines in self.machines().items()
        }
        if not all(left.values()):
            return None
        usage = tuple(replace(use, replicas=left[use.device]) if use.replicas else use for use in self.usage)
        rate, share = self.predicted_rate_per_s, min(len(left[use.device]) / len(use.machines) for use in self.usage)
        return replace(self, usage=usage, predicted_rate_per_s=None if rate is None else rate.times(share))

    def levels(self) -> dict[str, int]:
        """Least level by block, without the blocks whose least level is 0."""
        return {placement.block: placement.level for placement in self.placements if placement.level}

    def copies(self) -> dict[tuple[str, str], frozenset[str]]:
        """Precisions in which each tensor is sent, by (tensor, target device)."""
        copies: dict[tuple[str, str], frozenset[str]] = {}
        for crossing in self.crossings:
            if crossing.source != crossing.target:
                key = (crossing.tensor, crossing.target)
                copies[key] = copies.get(key, frozenset()) | {crossing.precision}
        return copies

    def wire_only(self, graph: Graph) -> dict[tuple[str, str], Scheme]:
        """Scheme by (tensor, float block) if a float tensor is quantised only for the wire; "" is the caller."""
        places, assignment, copies = self.devices(), self.assignment(), self.copies()
        schemes: dict[tuple[str, str], Scheme] = {}
        for tensor in graph.tensors:
            written = assignment.get(tensor.producer or "")
            if written is not None and written.int8_output:
                continue
            readers = [*tensor.consumers, *([""] if tensor.name in graph.outputs else [])]
            for reader in readers:
                target = places[reader] if reader else self.start
                if reader not in assignment and copies.get((tensor.name, target)) == frozenset({"int8"}):
                    schemes[tensor.name, reader] = self.scheme
        return schemes


def placements(graph: Graph, assignment: Mapping[str, Precision]) -> tuple[Placement, ...]:
    """Placements of every block of `graph` on the local machine; float32 where `assignment` has no other form."""
    return tuple(Placement(block.name, LOCAL, form_of(assignment, block.name)) for block in graph.blocks)
