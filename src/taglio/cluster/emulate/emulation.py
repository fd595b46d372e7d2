"""One emulated cluster on this machine, from creation to removal, and taglio's devices in it. Imports no engine: they
start by the command that starts them anywhere."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import IO, Any

import msgspec

from taglio.cluster import file as cluster_file
from taglio.cluster.devices import Cluster, nearest
from taglio.cluster.emulate import namespaces, quota, record
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


class Emulation:
    """This process's emulation of the cluster in a file. `links` is the pipe to the process that carries its links."""

    links: IO[bytes]  # once that process is started

    def __init__(self, file: Path) -> None:
        self.file, self.cluster = file, cluster_file.load(file)
        if len(self.cluster.devices) > 254:  # the addresses of one network
            raise CannotEmulate(f"{len(self.cluster.devices)} devices: at most 254 can be emulated")
        self.record = EmulationRecord(os.getpid(), tuple(device.name for device in self.cluster.devices))

    @property
    def addresses(self) -> dict[str, str]:
        """Address by device."""
        return {name: namespaces.address(index) for index, name in enumerate(self.record.devices)}

    def start(
        self, device: str, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[Any]":
        """Start a command in a device; `options` are subprocess.Popen's. Its environment has TAGLIO_DEVICE and
        TAGLIO_ADDRESSES ("camera=10.77.0.1 server=10.77.0.2"). Raises BadOption for an unknown device."""
        group, folder = self._group(device), self.record.folder
        variables = {
            "TAGLIO_DEVICE": device,
            # Where a taglio device keeps its files.
            "TAGLIO_DEVICES": str(folder / str(self.record.devices.index(device))),
            "TAGLIO_ADDRESSES": " ".join(f"{name}={address}" for name, address in self.addresses.items()),
        }
        words = ["nsenter", f"--net={namespaces.FOLDER / self.record.namespace(device)}", "sh", "-c", _JOIN]
        words.append(str(group))
        return subprocess.Popen([*words, *command], env={**(environment or os.environ), **variables}, **options)

    def become(self, now: Cluster) -> None:
        """Change links and quotas to those of `now`. Links that the emulation was not started with are not added, and
        packets keep their routes; links missing from `now` are cut. Raises BadOption for a device that the emulation
        lacks."""
        cpus = {self._group(device.name): device.cpus for device in now.devices}
        self.links.write(msgspec.json.encode(now.links) + b"\n")
        self.links.flush()
        for group, share in cpus.items():
            quota.limit(group, share)

    def _group(self, device: str) -> Path:
        """The control group of a device. Raises BadOption for an unknown one."""
        if device not in self.record.devices:
            raise BadOption(f'no device "{device}"{nearest(device, self.record.devices)}')
        return self.record.group / device


@contextmanager
def emulated(file: Path) -> Iterator[Emulation]:
    """An emulation of the cluster in a file, removed at the end with everything that runs in it. If this process is
    killed, the one that carries the links removes it. Raises CannotEmulate or OSError, with nothing left behind."""
    emulation = Emulation(file)
    if (why := missing()) is not None:
        raise CannotEmulate(why)
    # Of a process with the same id, which was killed together with the one that carried its links.
    record.remove(emulation.record)
    with ExitStack() as stack:
        # If the process that carries the links was not started, or has died.
        stack.callback(record.remove, emulation.record)
        descriptors = _created(emulation)
        owner, devices = str(emulation.record.owner), zip(emulation.record.devices, descriptors, strict=True)
        carrier = subprocess.Popen(
            [sys.executable, "-m", "taglio.cluster.emulate.line", owner, *(f"{name}={fd}" for name, fd in devices)],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
        )
        stack.callback(carrier.communicate, timeout=30.0)  # it ends when its standard input is closed
        for descriptor in descriptors:
            os.close(descriptor)
        assert carrier.stdin is not None, "it is a pipe"
        emulation.links = carrier.stdin
        emulation.become(emulation.cluster)
        yield emulation


def _created(emulation: Emulation) -> list[int]:
    """Create the groups and namespaces of an emulation; returns the descriptors of the devices' interfaces."""
    made = emulation.record
    made.folder.mkdir(parents=True)
    made.folder.chmod(0o700)
    descriptors = []
    for index, device in enumerate(made.devices):
        quota.create(made.group.parent, made.group / device)
        descriptors.append(namespaces.create(made.namespace(device), index))
    return descriptors


def processors(cluster: Cluster) -> float:
    """Processors that all devices use at once: with more than the machine has, they wait for each other."""
    return sum(min(device.cpus, device.threads) for device in cluster.devices)


def start_devices(emulation: Emulation, progress: Progress | None = None) -> None:
    """Start every device, the start device as head, without quotas: a start takes seconds of a whole core.

    Raises CannotEmulate with the output of a device that does not start.
    """
    cluster = emulation.cluster
    names = [device.name for device in cluster.devices if device.name != cluster.start]
    emulation.become(replace(cluster, devices=tuple(replace(device, cpus=inf) for device in cluster.devices)))
    _wait(cluster.start, start_device(emulation, cluster.start))
    starting = [(name, start_device(emulation, name)) for name in names]
    for name, process in reported(starting, "starting devices", progress):
        _wait(name, process)
    emulation.become(cluster)


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
