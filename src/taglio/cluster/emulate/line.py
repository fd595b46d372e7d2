"""The emulated links: one process that reads every device's packets and delivers each when its link would. A program.

Every directed link is a queue. A packet starts when the link is free, occupies it for bytes / bandwidth, and arrives
`latency` later. There is no token bucket: no byte passes faster than the link. Bytes are those of IP packets, headers
included. Devices without a direct link reach each other over other devices' links, as if routed; those links are
occupied as by any packet.

Why not tc: netem, which delays, is missing from many kernels, and a token bucket must be as large as one packet of
offloaded TCP (64 kB), which then passes at once.
"""

import gc
import heapq
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

import msgspec

from taglio.cluster.emulate import record

LARGEST_PACKET = 65_535
# How often the file of links is looked at.
_LOOK_S = 0.02


class EmulatedLink(msgspec.Struct, frozen=True):
    """A directed link between two devices (by index), with its current settings. A cut link drops everything."""

    source: int
    target: int
    bandwidth_bytes_per_s: float
    latency_s: float
    cut: bool = False


Links = tuple[EmulatedLink, ...]


@dataclass(slots=True)
class _Queue:
    way: EmulatedLink
    free_s: float = 0.0


def routes(ways: Sequence[EmulatedLink], devices: int) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """The links from each device to each other: the direct one, else the route of least delay for a packet of 1,500
    bytes (Dijkstra). Unreachable pairs are left out."""
    cost = {(way.source, way.target): way.latency_s + 1500 / way.bandwidth_bytes_per_s for way in ways}
    paths: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
    for start in range(devices):
        todo: list[tuple[float, int, tuple[tuple[int, int], ...]]] = [(0.0, start, ())]
        seen: set[int] = set()
        while todo:
            delay, device, path = heapq.heappop(todo)
            if device in seen:
                continue
            seen.add(device)
            if device != start:
                paths[start, device] = ((start, device),) if (start, device) in cost else path
            for (source, target), link_s in cost.items():
                if source == device and target not in seen:
                    heapq.heappush(todo, (delay + link_s, target, (*path, (source, target))))
    return paths


class Line:
    """The queues and the packets in them. Times are from time.monotonic()."""

    def __init__(self, devices: Sequence[int], ways: Sequence[EmulatedLink]) -> None:
        self.devices = devices  # file descriptors of the devices' interfaces, in the order of their addresses
        self.queues: dict[tuple[int, int], _Queue] = {}
        self.set(ways)
        self.paths = {
            ends: tuple((self.queues[hop], hop[1]) for hop in path) for ends, path in routes(ways, len(devices)).items()
        }
        self.waiting: list[tuple[float, int, bytes, tuple[tuple[_Queue, int], ...], int]] = []
        self.number = 0

    def set(self, ways: Sequence[EmulatedLink]) -> None:
        """Apply new link settings; packets already queued keep their times."""
        for way in ways:
            self.queues.setdefault((way.source, way.target), _Queue(way)).way = way

    def take(self, index: int) -> None:
        """Read packets that device `index` has sent, and queue them: at most 16 before the next device's turn."""
        for _ in range(16):
            try:
                packet = os.read(self.devices[index], LARGEST_PACKET)
            except OSError:  # no more packets, or the interface is not up yet
                return
            if packet[0] >> 4 == 4:  # IP version 4
                path = self.paths.get((index, packet[19] - 1))  # the last byte of its destination address
                if path is not None:
                    self.queue(time.monotonic(), packet, path, 0)

    def queue(self, now_s: float, packet: bytes, path: tuple[tuple[_Queue, int], ...], hop: int) -> None:
        """Queue a packet on link number `hop` of its path."""
        link = path[hop][0]
        start_s, way = max(now_s, link.free_s), link.way
        # A full queue drops the packet. It is so long that TCP reaches its own window first (the kernel's largest is
        # 6 MB), because a lost packet would be measured as the engine's time.
        if way.cut or (start_s - now_s) * way.bandwidth_bytes_per_s > 16_000_000:
            return
        link.free_s = start_s + len(packet) / way.bandwidth_bytes_per_s
        self.number += 1
        heapq.heappush(self.waiting, (link.free_s + way.latency_s, self.number, packet, path, hop))

    def hand_on(self) -> float | None:
        """Deliver due packets; returns seconds until the next is due, None if none waits."""
        while self.waiting:
            now_s = time.monotonic()
            due_s, _, packet, path, hop = self.waiting[0]
            if due_s > now_s:
                return due_s - now_s
            heapq.heappop(self.waiting)
            if hop + 1 < len(path):
                self.queue(due_s, packet, path, hop + 1)
                continue
            with suppress(OSError):  # the device's own queue is full, or it is gone
                os.write(self.devices[path[hop][1]], packet)
        return None

    def run(self, links: Path, owner: int) -> None:
        """Carry packets over links as the file `links` says, until the other end of the pipe `owner` is closed."""
        inner = {descriptor: index for index, descriptor in enumerate(self.devices)}
        looked_s, seen = 0.0, (0, 0)
        while True:
            if (now_s := time.monotonic()) > looked_s + _LOOK_S:
                looked_s, status = now_s, links.stat()
                version = status.st_ino, status.st_mtime_ns
                if version != seen:  # another file has replaced it
                    seen = version
                    self.set(read(links))
            wait_s = min(_LOOK_S, inf if (due_s := self.hand_on()) is None else due_s)
            for descriptor in select.select([owner, *inner], [], [], wait_s)[0]:
                if descriptor == owner:
                    return
                self.take(inner[descriptor])


def read(links: Path) -> Links:
    """The links in a file."""
    return msgspec.json.decode(links.read_bytes(), type=Links)


def main() -> None:
    """Run the process, and remove the emulation at its end. Standard input: a pipe that the owner keeps open.
    Arguments: the folder of the emulation's record, and the devices' descriptors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which needs the links until its end
    emulation = record.load(Path(sys.argv[1]))
    line = Line([int(word) for word in sys.argv[2:]], read(emulation.links))
    with suppress(OSError):  # real-time priority; without permission for it, timing is only less precise
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    gc.disable()  # packets create no reference cycles
    line.run(emulation.links, sys.stdin.fileno())
    record.remove(emulation)


if __name__ == "__main__":
    main()
