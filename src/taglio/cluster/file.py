"""Read the cluster file (TOML): devices and links. Errors name the key and the fix.

docs/cluster.md has an example and every key. Devices without a link between them are not connected. Units are part of
the keys and converted only here: a megabyte is 10⁶ bytes, a megabit 10⁶ bits.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from taglio import artifact
from taglio.cluster.devices import LEAST_FACTOR, MOST_FACTOR, NAME, Cluster, Device, Link, nearest
from taglio.errors import BadOption
from taglio.runtimes.session import RUNTIMES

T = TypeVar("T", bound=Struct)
# Far beyond any device or link, in the units of the keys. Numbers beyond become 0 or infinite in plans.
_Amount = Annotated[float, Meta(ge=0.0, le=1e12)]
_Positive = Annotated[float, Meta(ge=1e-9, le=1e12)]
_Text = Annotated[str, Meta(min_length=1)]


class BadCluster(BadOption):
    """The cluster file cannot be read or describes an impossible cluster."""


class _Strict(Struct, forbid_unknown_fields=True, frozen=True):
    """A table of the file, in the units of its keys."""


class _LinkKeys(_Strict, frozen=True, kw_only=True):
    bandwidth_mbit_s: _Positive
    latency_ms: _Amount | UnsetType = UNSET
    joules_per_mb: _Amount | UnsetType = UNSET
    gap_ms: _Amount | UnsetType = UNSET


class _LinkTable(_LinkKeys, frozen=True, kw_only=True):
    source: _Text = msgspec.field(name="from")
    target: _Text = msgspec.field(name="to")
    both: bool = False


class _Scale(_Strict, frozen=True):
    of: _Text
    factor: Annotated[float, Meta(ge=LEAST_FACTOR, le=MOST_FACTOR)]


class _DeviceKeys(_Strict, frozen=True):
    threads: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    runtime: _Text | UnsetType = UNSET
    memory_mb: _Positive | UnsetType = UNSET
    active_watts: _Amount | UnsetType = UNSET
    energy_cap_joules: _Amount | UnsetType = UNSET
    cpus: _Positive | UnsetType = UNSET
    send_ms: _Amount | UnsetType = UNSET
    receive_ms: _Amount | UnsetType = UNSET
    send_ms_per_mb: _Amount | UnsetType = UNSET
    receive_ms_per_mb: _Amount | UnsetType = UNSET
    never: tuple[_Text, ...] | UnsetType = UNSET
    int8: bool | UnsetType = UNSET


class _DeviceTable(_DeviceKeys, frozen=True):
    profile: _Text | UnsetType = UNSET
    scale: _Scale | UnsetType = UNSET


class _Copy(_Strict, frozen=True):
    like: _Text


class _File(_Strict, frozen=True):
    start: _Text | UnsetType = UNSET
    device: dict[str, dict[str, Any]] = {}
    link: list[dict[str, Any]] = []


# What messages of msgspec call a type, in TOML's words.
_WORDS = {
    "`object`": "a table",
    "`array`": "a list",
    "`str`": "text in quotes",
    "`float`": "a number",
    "`int`": "a whole number",
    "`bool`": "true or false",
}
# The field of a Device or Link that a key sets, and the key's unit in the field's; other keys are called like theirs.
_FIELDS = {
    "memory_mb": ("memory_bytes", 1e6),
    "send_ms": ("send_s", 1e-3),
    "receive_ms": ("receive_s", 1e-3),
    "send_ms_per_mb": ("send_byte_s", 1e-9),
    "receive_ms_per_mb": ("receive_byte_s", 1e-9),
    "bandwidth_mbit_s": ("bandwidth_bytes_per_s", 1.25e5),
    "latency_ms": ("latency_s", 1e-3),
    "joules_per_mb": ("joules_per_byte", 1e-6),
    "gap_ms": ("gap_s", 1e-3),
}


def load(path: Path) -> Cluster:
    """The cluster in a file. Raises BadCluster with the key and the fix."""
    return parse(text_of(path), str(path))


def text_of(path: Path) -> str:
    """The text of a cluster file. Raises BadCluster for one that cannot be read or is not in UTF-8."""
    try:
        data = artifact.read_bytes(path)
    except OSError as error:
        raise BadCluster(f"{path}: cannot be read ({error.strerror}): give a cluster file") from None
    try:
        return data.decode("utf-8-sig")  # editors on Windows write a byte-order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadCluster(f"{path}: line {line} is not text in UTF-8: save the cluster file in UTF-8") from None


def parse(text: str, file: str = "cluster") -> Cluster:
    """The cluster in a file's `text`. Raises BadCluster."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadCluster(f"{file}: {error}: not valid TOML") from None
    except (ValueError, RecursionError):  # Python's own limits
        raise BadCluster(f"{file}: nests too deep, or has a number of thousands of digits: write it anew") from None
    reader = _Reader(file)
    return reader.cluster(reader.table("", tables, _File))


@dataclass(slots=True)
class _Reader:
    """Reads the tables of a file into devices, their scales and links; `numbers` are the links' places in the file."""

    file: str
    devices: dict[str, Device] = field(default_factory=dict)
    scales: dict[str, _Scale] = field(default_factory=dict)
    links: dict[tuple[str, str], Link] = field(default_factory=dict)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    def fail(self, message: str) -> BadCluster:
        """The error, with the file."""
        return BadCluster(f"{self.file}: {message}")

    def table(self, name: str, value: Mapping[str, Any], kind: type[T]) -> T:
        """A table's values, checked."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self.fail(_explained(name, value, kind, str(error))) from None

    def cluster(self, whole: _File) -> Cluster:
        """The cluster that the whole file describes."""
        if not whole.device:
            raise self.fail("has no devices: write [device.NAME] for each machine")
        if whole.start is UNSET:
            first = next(iter(whole.device))
            raise self.fail(f'has no start device, where inputs come from: write start = "{first}" at the top')
        for name, value in whole.device.items():
            self.read_device(name, value, whole.device)
        for number, value in enumerate(whole.link, 1):
            self.read_link(number, self.table(f"link {number}", value, _LinkTable))
        for name, scale in self.scales.items():
            self.scale(name, scale)
        self.copy_alike()
        if whole.start not in self.devices:
            raise self.fail(f'start = "{whole.start}", no such device{nearest(whole.start, self.devices)}')
        return Cluster(whole.start, tuple(self.devices.values()), tuple(self.links.values()))

    def read_device(self, name: str, value: Mapping[str, Any], names: Iterable[str]) -> None:
        where = f"device.{name}"
        alike = [other for other in names if other != name and other.lower() == name.lower()]
        if alike:  # one file of times for both, where file names ignore case
            raise self.fail(f'device "{name}" and device "{alike[0]}" differ only in case: rename one of them')
        if not NAME.fullmatch(name):
            raise self.fail(f'device "{name}": write a name of letters, digits, "-", "_" and "."')
        if "like" in value:
            self.devices[name] = Device(name, like=self.table(where, value, _Copy).like)
            return
        table = self.table(where, value, _DeviceTable)
        if table.runtime not in (UNSET, *RUNTIMES):
            raise self.fail(f'{where}.runtime = "{table.runtime}" is not known{nearest(str(table.runtime), RUNTIMES)}')
        if table.scale is not UNSET:
            if table.profile is not UNSET:
                raise self.fail(f"{where}: has a profile and a scale: keep one of them")
            self.scales[name] = table.scale
        profile = f"profiles/{name}.json" if table.profile is UNSET else table.profile
        self.devices[name] = Device(name, profile=profile, **_in_fields(table, _DeviceKeys))

    def read_link(self, number: int, table: _LinkTable) -> None:
        where, ends = f"link {number}", (table.source, table.target)
        for name in ends:
            if name not in self.devices:
                raise self.fail(f'{where}: "{name}", no such device{nearest(name, self.devices)}')
        if table.source == table.target:
            raise self.fail(f"{where}: from {table.source} to itself: nothing is sent within a device, remove it")
        for pair in (ends, ends[::-1]) if table.both else (ends,):
            if pair in self.numbers:
                raise self.fail(
                    f"links {self.numbers[pair]} and {number} both go from {pair[0]} to {pair[1]}: keep one of them"
                )
            self.numbers[pair] = number
            self.links[pair] = self.link(where, table, pair)

    def link(self, where: str, table: _LinkKeys, ends: tuple[str, str]) -> Link:
        link = replace(Link(*ends, 0.0), **_in_fields(table, _LinkKeys))
        if link.gap_s > link.latency_s:
            gap, latency = (f"{seconds * 1e3:.6g}" for seconds in (link.gap_s, link.latency_s))
            raise self.fail(
                f"{where}: gap_ms = {gap} is more than latency_ms = {latency}, which it is part of: give less"
            )
        return link

    def scale(self, name: str, scale: _Scale) -> None:
        """Give a device the file of times that its scale names, or that of the device that its scale names."""
        profile = scale.of
        if not profile.endswith(".json"):
            where = f'device.{name}.scale of "{scale.of}"'
            if scale.of not in self.devices:
                raise self.fail(f"{where}, no such device{nearest(scale.of, self.devices)}")
            if scale.of in self.scales or self.devices[scale.of].like:
                raise self.fail(f"{where}, which has no profile of its own: name a device that has one")
            profile = self.devices[scale.of].profile
        self.devices[name] = replace(self.devices[name], profile=profile, scale=scale.factor)

    def copy_alike(self) -> None:
        """Make the devices that are declared to be `like` another equal to it, with the same links."""
        for name, copy in self.devices.items():
            if not copy.like:
                continue
            message = f'device "{name}" is like "{copy.like}"'
            if copy.like not in self.devices:
                raise self.fail(f"{message}, no such device{nearest(copy.like, self.devices)}")
            first = self.devices[copy.like]
            if first.like:
                raise self.fail(f'{message}, which is like "{first.like}": name that')
            scale = 1.0 if first.scale is None else first.scale
            self.devices[name] = replace(first, name=name, like=first.name, scale=scale)
            for (source, target), link in list(self.links.items()):
                if first.name in (source, target) and name not in (source, target):
                    ends = (name, target) if source == first.name else (source, name)
                    self.links[ends] = replace(link, source=ends[0], target=ends[1])


def _explained(name: str, value: Any, kind: type[Struct], message: str) -> str:
    """An error of msgspec in the table called `name`, with the key, its value and what it must be."""
    reason, _, place = message.partition(" - at `$")
    keys = [key for key in place.rstrip("`").split(".") if key]
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    where = ".".join(filter(None, [name, *keys]))
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", reason):
        key, able = unknown[1], _Scale if keys else kind
        return f'{where}{": " if where else ""}unknown key "{key}"{nearest(key, able.__struct_encode_fields__)}'
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return f'{where}: has no "{missing[1]}"'
    seen = "" if value is None or isinstance(value, dict | list) else f" = {value!r:.80}"
    for name_of_type, words in _WORDS.items():
        reason = reason.replace(name_of_type, words)
    return f"{where}{seen}: {reason[0].lower()}{reason[1:]}"


def _in_fields(table: Struct, kind: type[Struct]) -> dict[str, Any]:
    """The fields that the keys of `kind` in a table set, in the fields' units."""
    values = {}
    for key in kind.__struct_fields__:
        if (value := getattr(table, key)) is not UNSET:
            name, unit = _FIELDS.get(key, (key, None))
            values[name] = value if unit is None else value * unit
    return values


def written(cluster: Cluster) -> str:
    """The text of a file that describes `cluster`."""
    lines = ["# links measured by taglio cluster probe", f'start = "{cluster.start}"']
    copies = {device.name for device in cluster.devices if device.like}
    for device in cluster.devices:
        lines += ["", f'[device."{device.name}"]']
        if device.like:
            lines.append(f'like = "{device.like}"')
            continue
        lines += _lines_of(device, _DeviceKeys, Device(""))
        if device.scale is None:
            lines.append(f'profile = "{device.profile}"')
        else:
            lines.append(f'scale = {{ of = "{device.profile}", factor = {device.scale:.9g} }}')
    for link in cluster.links:
        if not copies & {link.source, link.target}:
            numbers = _lines_of(link, _LinkKeys, Link("", "", 0.0))
            lines += ["", "[[link]]", f'from = "{link.source}"', f'to = "{link.target}"', *numbers]
    return "\n".join(lines) + "\n"


def _lines_of(value: Device | Link, kind: type[Struct], default: Device | Link) -> list[str]:
    """A line per field that is not the default, in the units of the keys."""
    lines = []
    for key in kind.__struct_fields__:
        name, unit = _FIELDS.get(key, (key, 1.0))
        field = getattr(value, name)
        if field != getattr(default, name):
            lines.append(f"{key} = {f'{field / unit:.9g}' if isinstance(field, float) else json.dumps(field)}")
    return lines
