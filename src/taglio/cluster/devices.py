"""Devices and the links between them, as values. Measures nothing, reads no file and is independent of models."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from math import inf, lcm
from typing import Any

from taglio.errors import BadOption

# Names of devices are parts of the names of files.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# Factors on measured times, bandwidths and memories: beyond these, seconds and bytes become 0 or infinite in plans.
LEAST_FACTOR, MOST_FACTOR = 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class Device:
    """A machine. `profile` names a file of measured times in each model's folder (profiles/NAME.json by default). If it
    is another device's, `scale` is the factor on these times: an assumption, marked wherever it is used. `runtime` runs
    its components; "" is the profile's runtime.

    `cpus` is the processor share in emulation; planning uses only measured times. CPU cost per message: `send_s` plus
    `send_byte_s` per byte on the sender, `receive_s` plus `receive_byte_s` per byte on the receiver (LogP's o). `never`
    lists patterns of operator types and block names that it may not run. `like` names the device that it was declared
    to equal. `replicas` are devices that take turns at its requests, itself among them (cluster/planning/place.py);
    empty: itself alone.
    """

    name: str
    runtime: str = ""
    threads: int = 1
    memory_bytes: float = inf
    active_watts: float = 0.0
    energy_cap_joules: float = inf
    never: tuple[str, ...] = ()
    int8: bool = True
    profile: str = ""
    scale: float | None = None
    cpus: float = inf
    send_s: float = 0.0
    receive_s: float = 0.0
    send_byte_s: float = 0.0
    receive_byte_s: float = 0.0
    like: str = ""
    replicas: tuple[str, ...] = ()

    def sending_s(self, count_bytes: float) -> float:
        """Seconds of this device for sending a message of `count_bytes`."""
        return self.send_s + count_bytes * self.send_byte_s

    def receiving_s(self, count_bytes: float) -> float:
        """Seconds of this device for receiving a message of `count_bytes`."""
        return self.receive_s + count_bytes * self.receive_byte_s

    @property
    def assumed(self) -> bool:
        """Whether its times are scaled from another device's instead of measured."""
        return self.scale is not None


@dataclass(frozen=True, slots=True)
class Handling:
    """CPU seconds of a device per message and per byte, as sender and as receiver; stretched by the device's quota like
    all its work."""

    send_s: float
    receive_s: float
    send_byte_s: float = 0.0
    receive_byte_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two devices. `gap_s` is the part of the latency for which the next message waits (g of the
    LogP model, Culler et al. 1993)."""

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    joules_per_byte: float = 0.0
    gap_s: float = 0.0

    def seconds(self, count_bytes: float) -> float:
        """Seconds from sending to arrival of a tensor of `count_bytes`."""
        return self.latency_s + count_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices in file order, links by (source, target), and the start device, where inputs and outputs are."""

    start: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]

    def device(self, name: str) -> Device:
        """The device called `name`. Raises BadOption with the nearest name otherwise."""
        for device in self.devices:
            if device.name == name:
                return device
        raise BadOption(f'no device "{name}"{nearest(name, [device.name for device in self.devices])}')

    def refuse_without_watts(self) -> None:
        """Raise BadOption if nothing takes energy, so that there is none to minimise or to limit."""
        if not any(device.active_watts for device in self.devices) and not any(
            link.joules_per_byte for link in self.links
        ):
            raise BadOption(
                "no device has active_watts and no link joules_per_mb, so every plan takes 0 J: add them to the "
                "cluster file, or leave energy out"
            )

    @property
    def messages_cost(self) -> bool:
        """Whether any device's CPU time per message is known (taglio cluster probe measures it)."""
        return any(device.send_s or device.receive_s for device in self.devices)

    def turns(self, *names: str) -> int:
        """Requests until the same replicas of these devices have their turn together again."""
        return lcm(*(max(1, len(self.device(name).replicas)) for name in names))

    def link(self, source: str, target: str) -> Link | None:
        """The link from `source` to `target`; None if they are not connected. From a device to itself it costs nothing:
        components there are in one process."""
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        return Link(source, target, inf) if source == target else None

    def with_link(self, link: Link) -> "Cluster":
        """A copy with one link set."""
        links = tuple(other for other in self.links if (other.source, other.target) != (link.source, link.target))
        return replace(self, links=(*links, link))

    def with_device(self, name: str, **changes: Any) -> "Cluster":
        """A copy with other values of one device."""
        device = replace(self.device(name), **changes)
        return replace(self, devices=tuple(device if other.name == name else other for other in self.devices))

    def with_handling(self, costs_of: Mapping[str, Handling]) -> "Cluster":
        """A copy with the CPU cost per message of each device, or of the one that it is declared to be like."""
        costs = ((device, costs_of.get(device.like or device.name)) for device in self.devices)
        devices = (replace(device, **asdict(cost)) if cost else device for device, cost in costs)
        return replace(self, devices=tuple(devices))

    def without(self, name: str) -> "Cluster":
        """A copy without one device and its links. Raises BadOption for the start device."""
        gone = self.device(name)
        if name == self.start:
            raise BadOption(f'"{name}" is the start device, where inputs come from: it cannot be removed')
        devices = tuple(device for device in self.devices if device is not gone)
        links = tuple(link for link in self.links if name not in (link.source, link.target))
        return replace(self, devices=devices, links=links)


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error message: ": did you mean ...?" for a typo, or all names."""
    names = list(names)
    close = get_close_matches(name, names, 1, 0.6)
    return f': did you mean "{close[0]}"?' if close else f": there are {', '.join(names) or 'none'}"
