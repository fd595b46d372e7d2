"""Send components to their devices and open them there. Runs no request.

Each device gets only the files that it lacks, by content hash, and opens those of its components by their hashes.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taglio import artifact
from taglio.cluster.devices import Cluster, Device
from taglio.cluster.engine.connect import Connection, on, refusal
from taglio.cluster.engine.host import MESSAGES, STREAM, Host
from taglio.cluster.engine.library import ray
from taglio.cluster.engine.replan import Planned
from taglio.cluster.engine.resident import CHUNK_BYTES, DeviceFacts, clock_name
from taglio.cluster.engine.wiring import Wiring, wire
from taglio.components.build import Manifest, read
from taglio.errors import BadDevice, plural
from taglio.progress import Progress
from taglio.runtimes.places import AUTO


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """A device's monotonic clock minus ours, in seconds, and half the round trip of reading it."""

    offset_s: float
    uncertain_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """Components that are ready to run: the hosts by device, and the bytes sent.

    `actors` are the hosts in other processes; `here` is the host in this process, if this is the start device.
    `places` are the devices that take turns, by the device whose components they run.
    """

    manifest: Manifest
    wiring: Wiring
    actors: Mapping[str, Any]
    here: Host | None
    clocks: Mapping[str, ClockOffset]
    sent_bytes: int
    places: Mapping[str, tuple[str, ...]]

    def hosts(self) -> dict[str, Any]:
        """All hosts by device, with calls that wait for the result."""
        hosts: dict[str, Any] = {name: Calls(actor) for name, actor in self.actors.items()}
        return hosts if self.here is None else {**hosts, self.here.device: self.here}


class Calls:
    """An actor's methods as plain methods that wait for the result."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._actor, name)
        return lambda *given: ray().get(method.remote(*given), timeout=120.0)


def deploy(connection: Connection, planned: Planned) -> Deployment:
    """Send and open the components of a plan. Raises BadDevice for a device that cannot run its components."""
    manifest = read(planned.folder, model_sha256=planned.plan.model_sha256)
    return open_components(connection, manifest, planned.folder, planned.cluster, planned.plan.machines())


def open_components(
    connection: Connection,
    manifest: Manifest,
    folder: Path,
    cluster: Cluster,
    machines: Mapping[str, tuple[str, ...]] | None = None,
) -> Deployment:
    """Send and open the components in `folder`; `machines` are the devices that run a device's components in turn
    (default: itself). Raises BadDevice.

    On the start device, its components are opened in this process: inputs and outputs are here.
    """
    wiring = wire(manifest)
    places = {piece.device: (machines or {}).get(piece.device, (piece.device,)) for piece in manifest.pieces}
    stands_for = {name: device for device, names in places.items() for name in names}
    connection.need(list(stands_for))
    own = connection.here
    here = Host(own.name, own.threads, own.folder / "components") if own.name == cluster.start else None
    actors = {}
    for name in stands_for:
        if here is not None and name == here.device:
            continue
        # One thread receives messages while another runs components.
        actor = ray().remote(num_cpus=0, max_restarts=0, concurrency_groups={MESSAGES: 2, STREAM: 1})(Host)
        actors[name] = actor.options(**on(name)).remote()
    hosts: dict[str, Any] = {name: Calls(actor) for name, actor in actors.items()}
    if here is not None and here.device in stands_for:
        hosts[here.device] = here

    def opened(name: str) -> tuple[ClockOffset, int]:
        host, role = hosts[name], stands_for[name]
        pieces = [piece for piece in manifest.pieces if piece.device == role]
        facts = admitted(host, cluster.device(name), pieces[0].runtime)
        sent_bytes = sum(send(host, piece.files, folder) for piece in pieces)
        clock = ClockOffset(0.0, 0.0) if facts.clock == clock_name() else _clock(host)
        others = {other: names for other, names in places.items() if other != role and names[0] in actors}
        peers = {other: [actors[name] for name in names] for other, names in others.items()}
        host.load(manifest, role, cluster.device(name).threads, peers)
        return clock, sent_bytes

    clocks, sent_bytes = {}, 0
    with ThreadPoolExecutor(len(hosts)) as pool:
        for name, answer in [(name, pool.submit(opened, name)) for name in hosts]:
            try:
                clocks[name], device_bytes = answer.result()
            except Exception as error:
                raise refusal(name, error) from None
            sent_bytes += device_bytes
    return Deployment(manifest, wiring, actors, here, clocks, sent_bytes, places)


def admitted(host: Any, device: Device, runtime: str) -> DeviceFacts:
    """The facts of a host's device. Raises BadDevice if it differs from the cluster file or lacks the runtime that it
    is to run in."""
    facts: DeviceFacts = host.facts()
    ours, theirs = artifact.version_of("taglio"), facts.versions.get("taglio", "none")
    if theirs != ours:
        raise BadDevice(
            f'device "{device.name}" has taglio {theirs}, this machine has {ours}: install the same version on both'
        )
    if facts.threads < device.threads:
        raise BadDevice(
            f'device "{device.name}" was started with {plural(facts.threads, "thread")}, the cluster file gives it '
            f"{device.threads}: start it with --threads {device.threads}, or write threads = {facts.threads}"
        )
    if runtime not in (AUTO, *facts.runtimes):
        raise BadDevice(
            f'device "{device.name}" has no {runtime}, only {", ".join(facts.runtimes)}: install it there, or give it '
            "another runtime in the cluster file, and plan again"
        )
    return facts


def send(host: Any, files: Mapping[str, str], folder: Path, progress: Progress | None = None) -> int:
    """Send those of a model's `files` in `folder` (hash by name) that the host's device lacks; returns the bytes
    sent."""
    total = 0
    for name in host.missing(files):
        size_bytes, offset = (folder / name).stat().st_size, 0
        with (folder / name).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                host.receive(files, name, size_bytes, offset, chunk)
                offset += len(chunk)
                if progress:
                    progress(f"sending {name}", offset, size_bytes)
        total += offset
    return total


def _clock(host: Any) -> ClockOffset:
    """The clock by the shortest of fifty round trips."""
    trips = []
    for _ in range(50):
        before = time.monotonic()
        there = host.call(time.monotonic)
        after = time.monotonic()
        trips.append((after - before, there - (before + after) / 2.0))
    trip, offset = min(trips)
    return ClockOffset(offset, trip / 2.0)
