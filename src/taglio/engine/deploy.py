"""Bring components to their devices and have them opened there. Runs no request.

Each device gets only what it does not have, by content hash, and says what it opened; that is held against the manifest
before any request.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taglio.components.build import Manifest, read
from taglio.engine.connect import Connection, on, refusal, same_version
from taglio.engine.host import ANSWERS, MESSAGES, WATCH, Host, Job, Loaded
from taglio.engine.library import ray
from taglio.engine.replan import Planned
from taglio.engine.resident import clock_name
from taglio.engine.store import CHUNK_BYTES
from taglio.engine.wiring import Wiring, wire
from taglio.errors import BadDevice
from taglio.profile.stopwatch import Progress

LANES = 8
_PATIENCE_S = 120.0
_PINGS = 50


@dataclass(frozen=True, slots=True)
class Clock:
    """A device's monotonic clock less ours, in seconds, and half the round trip that it was read over."""

    offset_s: float
    uncertain_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """Components that are ready to run: the actors by device, what each opened, and what was sent."""

    manifest: Manifest
    wiring: Wiring
    hosts: Mapping[str, Any]
    loaded: tuple[Loaded, ...]
    clocks: Mapping[str, Clock]
    sent_bytes: int


def deploy(
    connection: Connection,
    planned: Planned,
    progress: Progress | None = None,
) -> Deployment:
    """Send and open the components of a plan. Raises BadDevice for a device that cannot run its own."""
    library = ray()
    folder, cluster = planned.folder, planned.cluster
    manifest = read(folder, model_sha256=planned.plan.model_sha256)
    wiring = wire(manifest)
    names = list(dict.fromkeys(piece.device for piece in manifest.pieces))
    connection.need(names)
    groups = {MESSAGES: LANES, ANSWERS: LANES, WATCH: 1}
    actor = library.remote(num_cpus=0, max_restarts=0, concurrency_groups=groups)(Host)
    hosts = {name: actor.options(**on(name)).remote() for name in names}
    clocks, sent, loaded = {}, 0, []
    opening = {}
    for done, name in enumerate(names):
        host, pieces = hosts[name], [piece for piece in manifest.pieces if piece.device == name]
        device = cluster.device(name)
        try:
            found = library.get(host.facts.remote(), timeout=_PATIENCE_S)
            same_version(found)
            if found.threads < device.threads:
                raise BadDevice(
                    f'device "{name}" was started with {found.threads} threads, the cluster file gives it '
                    f"{device.threads}: start it with --threads {device.threads}, or write threads = {found.threads}"
                )
            if device.runtime not in found.runtimes:
                raise BadDevice(
                    f'device "{name}" has no {device.runtime}, only {", ".join(found.runtimes)}: install it there or '
                    "change runtime in the cluster file"
                )
            clocks[name] = Clock(0.0, 0.0) if found.clock == clock_name() else _clock(host)
            files = {piece.sha256: (folder / piece.file, piece.size_bytes) for piece in pieces}
            sent += send(host, files, progress)
            jobs = [Job(piece, wiring.reads[piece.name], wiring.sends(piece.name)) for piece in pieces]
            peers = {other: each for other, each in hosts.items() if other != name}
            opening[name] = host.load.remote(jobs, device.runtime, device.threads, peers)
        except Exception as error:
            raise refusal(name, error) from None
        if progress:
            progress("deploying", done + 1, 2 * len(names))
    for done, (name, answer) in enumerate(opening.items()):
        try:
            loaded += library.get(answer, timeout=_PATIENCE_S)
        except Exception as error:
            raise refusal(name, error) from None
        if progress:
            progress("deploying", len(names) + done + 1, 2 * len(names))
    _hold(manifest, loaded)
    return Deployment(manifest, wiring, hosts, tuple(loaded), clocks, sent)


def send(host: Any, files: Mapping[str, tuple[Path, int]], progress: Progress | None = None) -> int:
    """Send what the actor's device lacks of `files` (path and bytes by hash); the bytes sent."""
    library = ray()
    total = 0
    for sha256 in library.get(host.missing.remote(list(files)), timeout=_PATIENCE_S):
        path, size_bytes = files[sha256]
        library.get(host.begin.remote(sha256, size_bytes), timeout=_PATIENCE_S)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                library.get(host.append.remote(sha256, chunk), timeout=_PATIENCE_S)
                total += len(chunk)
                if progress:
                    progress(f"sending {path.name}", file.tell(), size_bytes)
        library.get(host.finish.remote(sha256), timeout=_PATIENCE_S)
    return total


def _hold(manifest: Manifest, loaded: list[Loaded]) -> None:
    """Raise BadDevice where a device opened something else than was planned."""
    opened = {each.component: each for each in loaded}
    for piece in manifest.pieces:
        each = opened[piece.name]
        if (each.sha256, each.device) != (piece.sha256, piece.device):
            raise BadDevice(
                f'device "{each.device}" opened {each.sha256[:12]} as {piece.name}, planned is {piece.sha256[:12]} on '
                f'"{piece.device}"'
            )


def _clock(host: Any) -> Clock:
    library = ray()
    trips = []
    for _ in range(_PINGS):
        before = time.monotonic()
        there = library.get(host.clock.remote(), timeout=_PATIENCE_S)
        after = time.monotonic()
        trips.append((after - before, there - (before + after) / 2.0))
    trip, offset = min(trips)
    return Clock(offset, trip / 2.0)
