"""Read the cluster file (TOML): devices, links and named scenarios. Errors name the line and the fix.

    start = "camera"                       # where requests come from and answers go

    [device.camera]
    threads = 1
    runtime = "onnxruntime"                # default: the runtime of its profile
    memory_mb = 512
    active_watts = 4.5
    cpus = 0.5                             # only for taglio emulate: half a processor
    send_ms = 2                            # CPU cost per message sent and received, and per megabyte of it: it limits
    receive_ms = 3                         # the request rate, and components pause for it
    send_ms_per_mb = 3
    receive_ms_per_mb = 12
    request_ms = 1                         # cost per request on the start device, besides its components
                                           # (taglio cluster probe measures all of these)
    profile = "profile.json"               # measured times, a file in each model's own folder

    [device.server]
    scale = { of = "camera", factor = 0.1 } # assumed: 0.1 x the camera's times

    [device.second]
    like = "server"                        # the same again, with the same links: such devices can take turns

    [[link]]
    from = "camera"
    to = "server"
    both = true
    bandwidth_mbit_s = 50
    latency_ms = 5
    gap_ms = 1                             # part of the latency for which the next message waits (cluster probe)

    [[scenario.congested.link]]
    from = "camera"
    to = "server"
    bandwidth_mbit_s = 5

Devices without a link between them are not connected. Units are part of the keys and converted only here: a megabyte is
10⁶ bytes, a megabit 10⁶ bits.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from pathlib import Path
from typing import Any

from taglio import artifact
from taglio.cluster.devices import FACTORS, LEAST_FACTOR, MOST_FACTOR, Cluster, Device, Link, nearest
from taglio.errors import BadOption
from taglio.runtimes.session import RUNTIMES, WHOLE

_MEGA = 1e6
_BITS = 8.0


class BadCluster(BadOption):
    """The cluster file cannot be read or describes an impossible cluster."""


def load(path: Path, scenario: str | None = None) -> Cluster:
    """The cluster in a file, with the changes of `scenario` applied. Raises BadCluster with the line and the fix."""
    try:
        data = artifact.read_bytes(path)
    except OSError as error:
        raise BadCluster(f"{path}: cannot be read ({error.strerror}): give a cluster file") from None
    try:
        text = data.decode("utf-8-sig")  # editors on Windows write a byte-order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadCluster(f"{path}:{line}: is not text in UTF-8: save the cluster file in UTF-8") from None
    return parse(text, str(path), scenario)


def parse(text: str, file: str = "cluster", scenario: str | None = None) -> Cluster:
    """The cluster in a file's `text`; checks every scenario, applies `scenario`. Raises BadCluster."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = re.search(r"\(at line (\d+), column \d+\)", str(error))
        where = f"{file}:{position[1]}" if position else file
        raise BadCluster(f"{where}: {re.sub(r' *[(]at .*[)]', '', str(error))}: not valid TOML") from None
    except (ValueError, RecursionError):  # Python's own limits
        raise BadCluster(f"{file}: nests too deep, or has a number of thousands of digits: write it anew") from None
    lines = _lines(text)
    base = _Reader(file, lines).cluster(tables)
    changed = {
        name: _scenario(file, lines, base, name, changes) for name, changes in tables.get("scenario", {}).items()
    }
    if scenario is None:
        return base
    if scenario not in changed:
        raise BadCluster(f'{file}: has no scenario "{scenario}"{nearest(scenario, changed)}')
    return changed[scenario]


_Path = tuple[str | int, ...]


def _lines(text: str) -> dict[_Path, int]:
    """Line number by path (table names, array indices, key), which tomllib does not report."""
    line_of: dict[_Path, int] = {}
    counts: dict[tuple[str, ...], int] = {}
    here: _Path = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := re.match(r"\s*\[(\[?)([^\[\]]+)\]", line):
            names = tuple(part.strip().strip("\"'") for part in re.findall(r'"[^"]*"|\'[^\']*\'|[^.\s]+', header[2]))
            here = names
            if header[1]:
                counts[names] = counts.get(names, -1) + 1
                here = (*names, counts[names])
            line_of.setdefault(here, number)
        elif key := re.match(r"\s*(?:\"([^\"]+)\"|'([^']+)'|([A-Za-z0-9_-]+))\s*=", line):
            line_of.setdefault((*here, next(name for name in key.groups() if name)), number)
    return line_of


# Far beyond any device or link, in the units of the keys. Numbers beyond become 0 or infinite in plans.
_LEAST, _MOST = 1e-9, 1e12
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(slots=True)
class _Reader:
    """Reads the tables of a file, or of one of its scenarios at `path`, with the line of each error; `devices` and
    `links` are those so far."""

    file: str
    lines: Mapping[_Path, int]
    path: _Path = ()
    devices: dict[str, Device] = field(default_factory=dict)
    links: dict[tuple[str, str], Link] = field(default_factory=dict)

    def fail(self, path: _Path, message: str) -> BadCluster:
        """The error, with the nearest known line."""
        below = [line for known_path, line in self.lines.items() if path and known_path[: len(path)] == path]
        while path and path not in self.lines:
            path = path[:-1]
        line = min(below) if below else self.lines.get(path)
        return BadCluster(f"{self.file if line is None else f'{self.file}:{line}'}: {message}")

    def table(self, path: _Path, value: Any, keys: Iterable[str]) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.fail(path, f"{_dotted(path)} must be a table: write [{_dotted(path)}] or {{ key = value }}")
        for key in value:
            if key not in keys:
                raise self.fail((*path, key), f'{_dotted(path)}: unknown key "{key}"{nearest(key, keys)}')
        return value

    def fields(self, path: _Path, value: Mapping[str, Any], keys: Mapping[str, "_Key"]) -> dict[str, Any]:
        """The fields that the keys in `value` set, in their units."""
        values = {}
        for name, key in keys.items():
            if name in value:
                read = key.read(self, (*path, name), value[name])
                values[key.field] = read if key.factor is None else read * key.factor
        return values

    def number(self, path: _Path, value: Any, *, zero: bool = True) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise self.fail(path, f"{_dotted(path)} = {value!r} must be a number")
        if value < 0 or (value == 0 and not zero):
            raise self.fail(path, f"{_dotted(path)} = {value!r}: give a number {'of at least' if zero else 'above'} 0")
        if value and not _LEAST <= value <= _MOST:
            raise self.fail(path, f"{_dotted(path)} = {value!r}: give a number from {_LEAST:g} to {_MOST:g}")
        return float(value)

    def factor(self, path: _Path, value: Any) -> float:
        factor = self.above(path, value)
        if not LEAST_FACTOR <= factor <= MOST_FACTOR:
            raise self.fail(path, f"{_dotted(path)} = {value!r}: give a factor {FACTORS}")
        return factor

    def above(self, path: _Path, value: Any) -> float:
        return self.number(path, value, zero=False)

    def threads(self, path: _Path, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(path, f"{_dotted(path)} = {value!r}: give at least 1")
        return value

    def runtime(self, path: _Path, value: Any) -> str:
        runtime = self.text(path, value)
        runtimes = [name for name in RUNTIMES if name not in WHOLE]
        if runtime not in runtimes:
            raise self.fail(path, f'{_dotted(path)} = "{runtime}" is not known{nearest(runtime, runtimes)}')
        return runtime

    def text(self, path: _Path, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise self.fail(path, f'{_dotted(path)} = {value!r}: write a name in quotes, such as "server"')
        return value

    def texts(self, path: _Path, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise self.fail(path, f'{_dotted(path)} = {value!r}: write a list of names, such as ["server"]')
        return tuple(self.text(path, item) for item in value)

    def flag(self, path: _Path, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.fail(path, f"{_dotted(path)} = {value!r}: write true or false")
        return value

    def cluster(self, tables: Mapping[str, Any]) -> Cluster:
        """The cluster that the whole file describes, without its scenarios."""
        self.table((), tables, ("start", "device", "link", "scenario"))
        self.read_devices(tables)
        if not self.devices:
            raise self.fail((), "has no devices: write [device.NAME] for each machine")
        if "start" not in tables:
            first = next(iter(self.devices))
            raise self.fail((), f'has no start device, where inputs come from: write start = "{first}" at the top')
        self.read_links(tables)
        self.copy_alike()
        return self.finished(self.text(("start",), tables["start"]))

    def scenario(self, changes: Any, base: Cluster) -> Cluster:
        """`base`, whose devices and links are here, with the changes of a scenario."""
        path = self.path
        self.table(path, changes, ("start", "device", "link", "without", "cut"))
        self.read_devices(changes)
        self.read_links(changes)
        self.copy_alike()
        for key in self.texts((*path, "cut"), changes.get("cut", [])):
            ends = tuple(part.strip() for part in key.split("->"))
            if len(ends) != 2 or (ends[0], ends[1]) not in self.links:
                links = [f"{a}->{b}" for a, b in self.links]
                raise self.fail((*path, "cut"), f'no link "{key}" to cut{nearest(key, links)}')
            del self.links[ends[0], ends[1]]
        start = self.text((*path, "start"), changes["start"]) if "start" in changes else base.start
        result = self.finished(start)
        for key in self.texts((*path, "without"), changes.get("without", [])):
            try:
                result = result.without(key)
            except BadOption as error:
                raise self.fail((*path, "without"), str(error)) from None
        return result

    def read_devices(self, tables: Mapping[str, Any]) -> None:
        """Read [device.NAME] tables; a device that is known is changed."""
        named = tables.get("device", {})
        if not isinstance(named, Mapping):
            raise self.fail((*self.path, "device"), "write each machine as [device.NAME]")
        for name, value in named.items():
            here: _Path = (*self.path, "device", name)
            alike = [other for other in (*self.devices, *named) if other != name and other.lower() == name.lower()]
            if alike:  # one file of times for both, where file names ignore case
                raise self.fail(
                    here, f'device "{name}" and device "{alike[0]}" differ only in case: rename one of them'
                )
            if not _NAME.fullmatch(name):
                raise self.fail(here, f'device "{name}": write a name of letters, digits, "-", "_" and "."')
            if isinstance(value, Mapping) and "like" in value:
                self.table(here, value, ("like",))  # it has nothing of its own
                self.devices[name] = Device(name, like=self.text((*here, "like"), value["like"]))
                continue
            self.table(here, value, (*_DEVICE, "profile", "scale", "loopback"))
            device = replace(self.devices.get(name, Device(name)), **self.fields(here, value, _DEVICE))
            self.devices[name] = self.times(here, value, device)
            if "loopback" in value:
                own: _Path = (*here, "loopback")
                table = self.table(own, value["loopback"], _LINK)
                self.links[name, name] = self.link(own, table, Link(name, name, 0.0))

    def copy_alike(self) -> None:
        """Make the devices that are declared to be `like` another equal to it, with the same links."""
        for name, copy in self.devices.items():
            if not copy.like:
                continue
            here: _Path = (*self.path, "device", name, "like")
            message = f'device "{name}" is like "{copy.like}"'
            if copy.like not in self.devices:
                raise self.fail(here, f"{message}, no such device{nearest(copy.like, self.devices)}")
            first = self.devices[copy.like]
            if first.like:
                raise self.fail(here, f'{message}, which is like "{first.like}": name that')
            self.devices[name] = replace(
                first, name=name, profile=None, scale_of=first.name, scale_factor=1.0, like=first.name
            )
            for (source, target), link in list(self.links.items()):
                ends = tuple(name if end == first.name else end for end in (source, target))
                if first.name in (source, target) and (source == target or name not in (source, target)):
                    self.links[ends[0], ends[1]] = replace(link, source=ends[0], target=ends[1])

    def times(self, here: _Path, value: Mapping[str, Any], device: Device) -> Device:
        """The device with the source of its times."""
        if "profile" in value and "scale" in value:
            raise self.fail((*here, "scale"), f"{_dotted(here)}: has a profile and a scale: keep one of them")
        if "profile" in value:
            text = self.text((*here, "profile"), value["profile"])
            return replace(device, profile=text, scale_of=None, scale_factor=1.0)
        if "scale" in value:
            scale = self.table((*here, "scale"), value["scale"], ("of", "factor"))
            if "of" not in scale or "factor" not in scale:
                raise self.fail((*here, "scale"), f'{_dotted(here)}: write scale = {{ of = "DEVICE", factor = 3.0 }}')
            of = self.text((*here, "scale", "of"), scale["of"])
            factor = self.factor((*here, "scale", "factor"), scale["factor"])
            return replace(device, profile=None, scale_of=of, scale_factor=factor)
        return device

    def read_links(self, tables: Mapping[str, Any]) -> None:
        """Read [[link]] tables; a link that is known is changed."""
        rows = tables.get("link", [])
        if not isinstance(rows, list):
            raise self.fail((*self.path, "link"), "write each link as [[link]], with two brackets")
        given: dict[tuple[str, str], _Path] = {}
        for index, value in enumerate(rows):
            here: _Path = (*self.path, "link", index)
            self.table(here, value, (*_LINK, "from", "to", "both"))
            for key in ("from", "to"):
                if key not in value:
                    raise self.fail(here, f'link {index + 1} has no "{key}": name the device it goes {key}')
                if (name := self.text((*here, key), value[key])) not in self.devices:
                    raise self.fail((*here, key), f'link {key} "{name}", no such device{nearest(name, self.devices)}')
            source, target = value["from"], value["to"]
            if source == target:
                raise self.fail(here, f"link from {source} to itself: write [device.{source}] loopback = {{ ... }}")
            both = self.flag((*here, "both"), value.get("both", False))
            for pair in ((source, target), (target, source)) if both else ((source, target),):
                if pair in given:
                    message = (
                        f"link from {pair[0]} to {pair[1]} is given twice, first in line {self.lines[given[pair]]}"
                    )
                    raise self.fail(here, f"{message}: keep one of the two")
                given[pair] = here
                self.links[pair] = self.link(here, value, self.links.get(pair, Link(*pair, 0.0)))

    def link(self, here: _Path, value: Mapping[str, Any], base: Link) -> Link:
        link = replace(base, **self.fields(here, value, _LINK))
        if link.bandwidth_bytes_per_s == 0.0:
            ends = f"link {link.source} to {link.target}"
            raise self.fail(here, f"{ends}: has no bandwidth_mbit_s: give its megabits per second")
        if link.gap_s > link.latency_s:
            gap, latency = (f"{seconds * 1e3:.6g}" for seconds in (link.gap_s, link.latency_s))
            raise self.fail(here, f"gap_ms = {gap} is more than latency_ms = {latency}, which it is part of: give less")
        return link

    def finished(self, start: str) -> Cluster:
        """The cluster of the devices and links so far."""
        if start not in self.devices:
            at = (*self.path, "start") if (*self.path, "start") in self.lines else ("start",)
            raise self.fail(at, f'start = "{start}", no such device{nearest(start, self.devices)}')
        for name in self.devices:
            self.refuse_endless_scale(name)
        devices = tuple(
            device if device.profile or device.scale_of else replace(device, profile=f"profiles/{device.name}.json")
            for device in self.devices.values()
        )
        return Cluster(start, devices, tuple(self.links.values()))

    def refuse_endless_scale(self, name: str) -> None:
        """Refuse scales that lead nowhere or in a circle."""
        seen = [name]
        while (of := self.devices[seen[-1]].scale_of) is not None and not of.endswith(".json"):
            here: _Path = (*self.path, "device", seen[-1], "scale")
            here = here if here in self.lines else ("device", seen[-1], "scale")
            if of not in self.devices:
                raise self.fail(here, f'scale of "{of}", no such device{nearest(of, self.devices)}')
            if of in seen:
                raise self.fail(here, f"{' is scaled from '.join([*seen, of])}: one of them needs its own profile")
            seen.append(of)
        factor = prod(self.devices[device].scale_factor for device in seen)
        if not LEAST_FACTOR <= factor <= MOST_FACTOR:
            here = ("device", name, "scale")
            raise self.fail(
                here, f'the times of "{name}" are scaled by {factor:g} in all: give factors {FACTORS} in all'
            )


def _scenario(file: str, lines: Mapping[_Path, int], base: Cluster, name: str, changes: Any) -> Cluster:
    devices = {device.name: device for device in base.devices}
    links = {(link.source, link.target): link for link in base.links}
    reader = _Reader(file, lines, ("scenario", name), devices, links)
    return replace(reader.scenario(changes, base), scenario=name)


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of a table: its field, how its value is read, and for a number the factor to the field's unit."""

    field: str
    read: Callable[[_Reader, _Path, Any], Any] = _Reader.number
    factor: float | None = None


_DEVICE = {
    "threads": _Key("threads", _Reader.threads),
    "runtime": _Key("runtime", _Reader.runtime),
    "memory_mb": _Key("memory_bytes", _Reader.above, _MEGA),
    "idle_watts": _Key("idle_watts"),
    "active_watts": _Key("active_watts"),
    "energy_cap_joules": _Key("energy_cap_joules"),
    "cpus": _Key("cpus", _Reader.above),
    "send_ms": _Key("send_s", factor=1e-3),
    "receive_ms": _Key("receive_s", factor=1e-3),
    "request_ms": _Key("request_s", factor=1e-3),
    "send_ms_per_mb": _Key("send_byte_s", factor=1e-3 / _MEGA),
    "receive_ms_per_mb": _Key("receive_byte_s", factor=1e-3 / _MEGA),
    "never": _Key("never", _Reader.texts),
    "int8": _Key("int8", _Reader.flag),
}
_LINK = {
    "bandwidth_mbit_s": _Key("bandwidth_bytes_per_s", _Reader.above, _MEGA / _BITS),
    "latency_ms": _Key("latency_s", factor=1e-3),
    "joules_per_mb": _Key("joules_per_byte", factor=1.0 / _MEGA),
    "gap_ms": _Key("gap_s", factor=1e-3),
}


def written(cluster: Cluster) -> str:
    """The text of a file that describes `cluster`."""
    lines = ["# links measured by taglio cluster probe", f'start = "{cluster.start}"']
    copies = {device.name for device in cluster.devices if device.like}
    for device in cluster.devices:
        lines += ["", f'[device."{device.name}"]']
        if device.like:
            lines.append(f'like = "{device.like}"')
            continue
        lines += _lines_of(device, _DEVICE, Device(""))
        if device.scale_of is not None:
            lines.append(f'scale = {{ of = "{device.scale_of}", factor = {device.scale_factor:.9g} }}')
        elif device.profile is not None:
            lines.append(f'profile = "{device.profile}"')
        for own in (link for link in cluster.links if link.source == link.target == device.name):
            lines.append(f"loopback = {{ {', '.join(_lines_of(own, _LINK, Link('', '', 0.0)))} }}")
    for link in cluster.links:
        if link.source != link.target and not copies & {link.source, link.target}:
            numbers = _lines_of(link, _LINK, Link("", "", 0.0))
            lines += ["", "[[link]]", f'from = "{link.source}"', f'to = "{link.target}"', *numbers]
    return "\n".join(lines) + "\n"


def _lines_of(value: Device | Link, keys: Mapping[str, _Key], default: Device | Link) -> list[str]:
    """A line per field that is not the default, in the units of the keys."""
    lines = []
    for name, key in keys.items():
        field = getattr(value, key.field)
        if field != getattr(default, key.field):
            number = isinstance(field, float)
            lines.append(f"{name} = {f'{field / (key.factor or 1.0):.9g}' if number else json.dumps(field)}")
    return lines


def _dotted(path: _Path) -> str:
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in path) or "the file"
