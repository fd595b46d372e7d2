"""What the user states: models to place, the objective, and limits, each of which can be lifted. Solves nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, Literal

from taglio.cluster.devices import Cluster, nearest
from taglio.error.model import ErrorModel
from taglio.errors import BadOption
from taglio.model.graph import Graph
from taglio.plan.result import Limits
from taglio.profile.result import Profile
from taglio.quantize.precision import Precision


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A model to place: its profile on every device (scaled if assumed), error model, limits and requests per second
    (None: not given). `noise_limits` bounds the noise sum of outputs by name."""

    name: str
    graph: Graph
    profiles: Mapping[str, Profile]
    error: ErrorModel | None
    limits: Limits
    rate_per_s: float | None = None
    noise_limits: Mapping[str, float] | None = None

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions to choose from."""
        return next(iter(self.profiles.values())).precisions

    @property
    def needed_per_s(self) -> float:
        """Requests per second that the devices must have time for; 0 if no rate is given."""
        return max(self.rate_per_s or 0.0, self.limits.min_rate_per_s or 0.0)

    def with_limits(self, **changes: Any) -> "Workload":
        """A copy with other limits."""
        return replace(self, limits=replace(self.limits, **changes))


Kind = Literal["latency", "throughput", "energy", "sum", "weights"]
_KINDS: tuple[Kind, ...] = ("latency", "throughput", "energy", "sum")


@dataclass(frozen=True, slots=True)
class Objective:
    """`latency`: the critical path of one request; `throughput`: the busiest device or link; `energy`: joules of one
    request; `sum`: its seconds added up, as if nothing ran in parallel; `weights`: latency and energy, weighted.

    The minimised sum counts a second of a request `latency` times and a joule `energy` times.
    """

    kind: Kind = "latency"
    latency: float = 1.0
    energy: float = 0.0

    def __str__(self) -> str:
        return f"latency={self.latency:g},energy={self.energy:g}" if self.kind == "weights" else self.kind

    def amount(self, value: float) -> str:
        """A value of this objective, with its unit."""
        if self.kind == "throughput":
            return f"{1.0 / value:.4g} requests/s"
        if self.kind == "energy":
            return f"{value:.4g} J"
        return f"{value:.4g} weighed" if self.kind == "weights" else f"{value * 1e3:.4g} ms"

    @property
    def simulated(self) -> bool:
        """Whether the critical path is minimised, rather than a sum."""
        return self.kind == "latency" or (self.kind == "weights" and self.latency > 0.0)


def parse_objective(text: str) -> Objective:
    """Parse `latency`, `throughput`, `energy`, `sum`, or weights such as `latency=1,energy=0.5` (per second and joule).
    Raises BadOption."""
    if "=" in text:
        return Objective("weights", *_weights(text))
    for kind in _KINDS:
        if text.strip() == kind:
            return Objective(kind, 0.0, 1.0) if kind == "energy" else Objective(kind)
    raise BadOption(f'`objective` "{text}" is not known{nearest(text, _KINDS)}, or weights: latency=1,energy=0.5')


def _weights(text: str) -> tuple[float, float]:
    weights = {"latency": 0.0, "energy": 0.0}
    for word in (part.strip() for part in text.split(",") if part.strip()):
        name, _, value = word.partition("=")
        if name not in weights:
            raise BadOption(f'`objective` "{text}": weights are for latency and energy, as in latency=1,energy=0.5')
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = -1.0
        if not isfinite(weights[name]) or weights[name] < 0.0:
            raise BadOption(f'`objective` "{text}": the weight of {name} must be a number of at least 0')
    if not any(weights.values()):
        raise BadOption(f'`objective` "{text}": one weight must be above 0')
    return weights["latency"], weights["energy"]


Case = tuple[Sequence[Workload], Cluster]
Text = Callable[[Any], str]


def _rate(value: float) -> str:
    return f"{value:.4g} requests/s"


def _joules(value: float) -> str:
    return f"{value:.4g} J"


# By field of `Limits`: what it limits, and how its value is written.
_OF_MODELS: Mapping[str, tuple[str, Text]] = {
    "max_latency_s": ("the latency limit", lambda seconds: f"{seconds * 1e3:.4g} ms"),
    "max_energy_joules": ("the energy limit", _joules),
    "min_rate_per_s": ("the least request rate", _rate),
    "float_blocks": ("the blocks pinned to float", lambda blocks: str(len(blocks))),
    "int8_blocks": ("the blocks pinned to int8", lambda blocks: str(len(blocks))),
    "device_pins": ("the blocks pinned to a device", lambda blocks: str(len(blocks))),
    "device_exclusions": ("the blocks kept off a device", lambda blocks: str(len(blocks))),
}
# By field of `Device`: the same, and the value that limits nothing.
_OF_DEVICES: Mapping[str, tuple[str, Text, object]] = {
    "memory_bytes": ("the memory", lambda size: f"{size / 1e6:.4g} MB", inf),
    "energy_cap_joules": ("the energy cap", _joules, inf),
    "never": ("the never list", ", ".join, ()),
    "int8": ("the ban on int8", lambda _: "int8 = false", True),
}


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """A limit of a model (its index) or of a device (its name): what it limits, the field, and its value."""

    name: str
    owner: int | str
    field: str
    value: Any
    text: Text

    def __str__(self) -> str:
        return f"{self.name} ({self.text(self.value)})"

    def lifted(self, case: Case) -> Case:
        """The problem without the limit."""
        works, cluster = case
        if isinstance(self.owner, str):
            return works, cluster.with_device(self.owner, **{self.field: _OF_DEVICES[self.field][2]})
        work = works[self.owner]
        if self.field == "max_error":
            work = replace(work, noise_limits=None)
        elif self.field == "rate_per_s":
            work = replace(work, rate_per_s=None)
        else:
            work = work.with_limits(**{self.field: () if isinstance(self.value, tuple) else None})
        return [*works[: self.owner], work, *works[self.owner + 1 :]], cluster


def limits_of(workloads: Sequence[Workload], cluster: Cluster) -> list[Limit]:
    """Every limit of the models and devices."""
    all_limits = []
    for index, work in enumerate(workloads):
        limits, of = work.limits, f" of {work.name}" if len(workloads) > 1 else ""
        if work.noise_limits:
            all_limits.append(Limit(f"the error limit{of}", index, "max_error", limits.max_error, limits.metric.text))
        for key, (name, text) in _OF_MODELS.items():
            if getattr(limits, key) not in (None, ()):
                all_limits.append(Limit(f"{name}{of}", index, key, getattr(limits, key), text))
        if work.rate_per_s is not None:
            all_limits.append(Limit(f"the request rate{of}", index, "rate_per_s", work.rate_per_s, _rate))
    for device in cluster.devices:
        for key, (name, text, nothing) in _OF_DEVICES.items():
            if getattr(device, key) != nothing:
                all_limits.append(Limit(f"{name} of {device.name}", device.name, key, getattr(device, key), text))
    return all_limits
