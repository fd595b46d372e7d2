"""One emulated cluster on this machine, from creation to removal, and taglio's devices in it. Imports no engine: they
start by the command that starts them anywhere."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from taglio import artifact
from taglio.cluster import file as cluster_file
from taglio.cluster.devices import EMULATION, Cluster, nearest
from taglio.cluster.emulate import line, namespaces, quota, record
from taglio.cluster.emulate.namespaces import TUN, CannotEmulate
from taglio.cluster.emulate.record import EmulationRecord
from taglio.errors import BadOption
from taglio.progress import Progress, reported

# Join the control group last, so that starting up does not use its quota.
_JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def missing() -> str | None:
    """The missing requirement and its fix; None if a cluster can be emulated here."""
    if sys.platform != "linux":
        return f"emulation uses network namespaces, which {sys.platform} lacks: use Linux, or a Linux virtual machine"
    if os.geteuid() != 0:
        return "emulation makes network namespaces, which takes root: run it with sudo, or in a privileged container"
    for command, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(command) is None:
            return f"the command {command} is missing: install the package {package}"
    if not TUN.exists():
        return f"there is no {TUN}: modprobe tun, or give the container --device {TUN}"
    if not os.access(TUN, os.R_OK | os.W_OK):
        return f"{TUN} may not be opened: give the container --device {TUN} --cap-add NET_ADMIN"
    if quota.hierarchy() is None:
        return "no cgroup hierarchy with the cpu controller can be written: mount cgroup2, or run outside the container"
    return None


class RunningEmulation:
    """A running emulation, of this process or another."""

    def __init__(self, record: EmulationRecord) -> None:
        self.record = record

    @property
    def addresses(self) -> dict[str, str]:
        """Address by device."""
        return {name: namespaces.address(index) for index, name in enumerate(self.record.devices)}

    def start(
        self, device: str, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[Any]":
        """Start a command in a device; `options` are subprocess.Popen's. Its environment has TAGLIO_EMULATION (the
        emulation's folder), TAGLIO_DEVICE and TAGLIO_ADDRESSES ("camera=10.77.0.1 server=10.77.0.2"). Raises BadOption
        for an unknown device."""
        names, folder = self.record.devices, self.record.folder
        if device not in names:
            raise BadOption(f'no device "{device}"{nearest(device, names)}')
        variables = {
            EMULATION: str(folder),
            "TAGLIO_DEVICE": device,
            "TAGLIO_DEVICES": str(folder / str(names.index(device))),  # where a taglio device keeps its files
            "TAGLIO_ADDRESSES": " ".join(f"{name}={address}" for name, address in self.addresses.items()),
        }
        words = ["nsenter", f"--net={namespaces.FOLDER / self.record.namespace(device)}", "sh", "-c", _JOIN]
        words.append(str(self.record.group / device))
        return subprocess.Popen([*words, *command], env={**(environment or os.environ), **variables}, **options)

    def become(self, now: Cluster) -> None:
        """Change links and quotas to those of `now`, such as those of another file. Links that the emulation was
        not started with are not added, and packets keep their routes; links missing from `now` are cut. Raises
        BadOption for a device that the emulation lacks."""
        base = cluster_file.parse(self.record.cluster_text, self.record.cluster_file)
        for device in now.devices:
            base.device(device.name)
        kept = {(way.source, way.target): way for way in ways(now, base)}
        cut = (msgspec.structs.replace(way, cut=True) for way in ways(base))
        self._set(tuple(kept.get((way.source, way.target), way) for way in cut))
        for device in now.devices:
            quota.limit(self.record.group / device.name, device.cpus)

    def _set(self, links: line.Links) -> None:
        """Write the links for the process that carries them, which reads them within moments."""
        artifact.write_bytes(self.record.links, msgspec.json.encode(links))


def joined(folder: str | None) -> RunningEmulation:
    """The running emulation in `folder`, or the only one. Raises BadOption if there is none or more than one."""
    emulations = [emulation for emulation in record.running() if not folder or emulation.folder == Path(folder)]
    if len(emulations) != 1:
        what = f"{len(emulations)} emulations are" if emulations else "no emulation is"
        raise BadOption(f"{what} running: start one with taglio cluster emulate CLUSTER, or select one by {EMULATION}")
    return RunningEmulation(emulations[0])


class Emulation(RunningEmulation):
    """A context manager: creates the emulation on entry and removes it with everything that runs in it on exit. If this
    process is killed, the one that carries the links removes it."""

    def __init__(self, file: Path) -> None:
        self.file, self.cluster = file, cluster_file.load(file)

    def __enter__(self) -> Self:
        """Raises CannotEmulate or OSError, with nothing left behind."""
        if (why := missing()) is not None:
            raise CannotEmulate(why)
        self.record = _planned(self.cluster, self.file)
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> None:
        record.remove(self.record)  # of a process with the same id, killed together with the one that carried its links
        self.record.folder.mkdir(parents=True)
        self.record.folder.chmod(0o700)
        record.save(self.record)
        descriptors = []
        for index, device in enumerate(self.cluster.devices):
            group = self.record.group / device.name
            quota.create(self.record.group.parent, group)
            quota.limit(group, device.cpus)
            descriptors.append(namespaces.create(self.record.namespace(device.name), index))
        self._set(ways(self.cluster))
        self._line = subprocess.Popen(
            [sys.executable, "-m", "taglio.cluster.emulate.line", str(self.record.folder), *map(str, descriptors)],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
        )
        for descriptor in descriptors:
            os.close(descriptor)

    def close(self) -> None:
        """Kill everything that runs in it and remove it."""
        if hasattr(self, "_line"):
            self._line.stdin and self._line.stdin.close()
            self._line.wait(timeout=30.0)
        record.remove(self.record)  # if the process did not start, or has died

    @contextmanager
    def without_quotas(self) -> Iterator[None]:
        """Lift the CPU quotas for a while, to set devices up."""
        for device in self.cluster.devices:
            quota.limit(self.record.group / device.name, inf)
        yield
        for device in self.cluster.devices:
            quota.limit(self.record.group / device.name, device.cpus)


def ways(cluster: Cluster, order: Cluster | None = None) -> line.Links:
    """The links between devices, by the devices' indices in `order` (default: the cluster)."""
    index = {device.name: number for number, device in enumerate((order or cluster).devices)}
    return tuple(
        line.EmulatedLink(index[link.source], index[link.target], link.bandwidth_bytes_per_s, link.latency_s)
        for link in cluster.links
    )


def processors(cluster: Cluster) -> float:
    """Processors that all devices use at once: with more than the machine has, they wait for each other."""
    return sum(min(device.cpus, device.threads) for device in cluster.devices)


def _planned(cluster: Cluster, file: Path) -> EmulationRecord:
    """The record of an emulation to create: the names of everything in it."""
    if len(cluster.devices) > 254:  # the addresses of one network
        raise CannotEmulate(f"{len(cluster.devices)} devices: at most 254 can be emulated")
    names = tuple(device.name for device in cluster.devices)
    return EmulationRecord(os.getpid(), str(file), file.read_text(encoding="utf-8"), names)


def start_devices(emulation: Emulation, progress: Progress | None = None) -> None:
    """Start every device, the start device as head, without quotas: a start takes seconds of a whole core.

    Raises CannotEmulate with the output of a device that does not start.
    """
    names = [device.name for device in emulation.cluster.devices if device.name != emulation.cluster.start]
    with emulation.without_quotas():
        _wait(emulation.cluster.start, start_device(emulation, emulation.cluster.start))
        starting = [(name, start_device(emulation, name)) for name in names]
        for name, process in reported(starting, "starting devices", progress):
            _wait(name, process)


def start_device(emulation: Emulation, name: str) -> "subprocess.Popen[str]":
    """Begin to start one device; it is up when the returned process exits with 0."""
    head = emulation.cluster.start
    role = ["--head"] if name == head else ["--address", f"{emulation.addresses[head]}:6379"]
    words = [
        sys.executable, "-m", "taglio", "cluster", "start", "--name", name, *role, "--host", emulation.addresses[name],
        "--threads", str(emulation.cluster.device(name).threads),
        "--token", str(emulation.record.folder / "token"), "--json",
    ]  # fmt: skip
    return emulation.start(name, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _wait(name: str, process: "subprocess.Popen[str]") -> None:
    try:
        said = process.communicate(timeout=180.0)[1].strip().splitlines()
    except subprocess.TimeoutExpired as late:
        process.kill()
        said = [f"not started after {late.timeout:.0f} s"]
    if process.returncode != 0:
        why = said[-1] if said else f"exit code {process.returncode}"
        raise CannotEmulate(f"{name}: {why.removeprefix('taglio: ')} (--bare emulates only the network)")
