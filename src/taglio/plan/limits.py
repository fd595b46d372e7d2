"""The limits of a planning problem, one by one: what each says, and the problem with it loosened. Solves nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from taglio.cluster.devices import Cluster
from taglio.plan.workload import Workload, loosen_error

Case = tuple[Sequence[Workload], Cluster]
Text = Callable[[Any], str]


def _rate(value: float) -> str:
    return f"{value:.4g} requests/s"


def _joules(value: float) -> str:
    return f"{value:.4g} J"


def _count(blocks: Sequence[object]) -> str:
    return str(len(blocks))


# By field of `Limits`: what it limits, and how its value is written.
_OF_MODELS: Mapping[str, tuple[str, Text]] = {
    "max_latency_s": ("the latency limit", lambda seconds: f"{seconds * 1e3:.4g} ms"),
    "max_energy_joules": ("the energy limit", _joules),
    "min_rate_per_s": ("the least request rate", _rate),
    "float_blocks": ("the blocks pinned to float", _count),
    "int8_blocks": ("the blocks pinned to int8", _count),
    "device_pins": ("the blocks pinned to a device", _count),
    "device_exclusions": ("the blocks kept off a device", _count),
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

    @property
    def number(self) -> bool:
        """Whether it is a number; a list or a ban applies or does not."""
        return isinstance(self.value, float | int) and not isinstance(self.value, bool)

    def looser(self, factor: float) -> Any:
        """The value so many times as loose; at infinity it limits nothing."""
        if not self.number:
            return () if isinstance(self.owner, int) else _OF_DEVICES[self.field][2]
        return self.value / factor if "rate" in self.field else self.value * factor

    def loosened(self, case: Case, factor: float) -> Case:
        """The problem with the limit loosened."""
        works, cluster = case
        if isinstance(self.owner, str):
            return works, cluster.with_device(self.owner, **{self.field: self.looser(factor)})
        work = works[self.owner]
        if self.field == "max_error":
            work = replace(work, noise_limits=None) if factor == inf else loosen_error(work, factor)
        elif self.field == "rate_per_s":
            work = replace(work, rate_per_s=self.looser(factor) or None)
        else:
            work = work.with_limits(**{self.field: self.looser(factor)})
        return [*works[: self.owner], work, *works[self.owner + 1 :]], cluster


def limits_of(workloads: Sequence[Workload], cluster: Cluster) -> list[Limit]:
    """Every limit of the models and devices."""
    found = []
    for index, work in enumerate(workloads):
        limits, of = work.limits, f" of {work.name}" if len(workloads) > 1 else ""
        if work.noise_limits:
            found.append(Limit(f"the error limit{of}", index, "max_error", limits.max_error, limits.metric.text))
        for field, (name, text) in _OF_MODELS.items():
            if getattr(limits, field) not in (None, ()):
                found.append(Limit(f"{name}{of}", index, field, getattr(limits, field), text))
        if work.rate_per_s is not None:
            found.append(Limit(f"the request rate{of}", index, "rate_per_s", work.rate_per_s, _rate))
    for device in cluster.devices:
        for field, (name, text, nothing) in _OF_DEVICES.items():
            if getattr(device, field) != nothing:
                found.append(Limit(f"{name} of {device.name}", device.name, field, getattr(device, field), text))
    return found
