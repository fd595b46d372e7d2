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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import inf

import msgspec

from taglio.cluster.devices import Link
from taglio.cluster.emulate import record
from taglio.cluster.emulate.record import EmulationRecord

LARGEST_PACKET = 65_535
# The devices that a link goes from and to.
Ends = tuple[str, str]


@dataclass(slots=True)
class _Queue:
    """The packets on a link, which is free from `free_s` on. A link that is cut (None) drops all of them."""

    link: Link | None
    free_s: float = 0.0


def routes(links: Sequence[Link]) -> dict[Ends, tuple[Ends, ...]]:
    """The links from each device to each other: the direct one, else the route of least delay for a packet of 1,500
    bytes (Floyd and Warshall). Unreachable pairs are left out."""
    direct = {(link.source, link.target): link for link in links}
    delays_s = {ends: link.seconds(1500) for ends, link in direct.items()}
    paths: dict[Ends, tuple[Ends, ...]] = {ends: (ends,) for ends in direct}
    devices = dict.fromkeys(name for ends in direct for name in ends)
    for via, source, target in product(devices, repeat=3):
        first, second = (source, via), (via, target)
        if source == target or first not in paths or second not in paths:
            continue
        delay_s = delays_s[first] + delays_s[second]
        if delay_s < delays_s.get((source, target), inf):
            delays_s[source, target] = delay_s
            paths[source, target] = paths[first] + paths[second]
    return {ends: (ends,) if ends in direct else path for ends, path in paths.items()}


class Line:
    """The queues and the packets in them. Times are from time.monotonic()."""

    def __init__(self, devices: Mapping[str, int], links: Sequence[Link]) -> None:
        """`devices` are the file descriptors of the devices' interfaces, in the order of their addresses."""
        self.descriptors = [*devices.values()]
        self.queues = {(link.source, link.target): _Queue(link) for link in links}
        # By the sender's descriptor and the last byte of the receiver's address; each link with its end's descriptor.
        last_bytes = {name: index + 1 for index, name in enumerate(devices)}
        self.paths = {
            (devices[source], last_bytes[target]): tuple((self.queues[hop], devices[hop[1]]) for hop in path)
            for (source, target), path in routes(links).items()
        }
        self.waiting: list[tuple[float, int, bytes, tuple[tuple[_Queue, int], ...], int]] = []
        self.number = 0

    def set(self, links: Sequence[Link]) -> None:
        """Apply new settings; links that are missing are cut. Packets already queued keep their times."""
        settings = {(link.source, link.target): link for link in links}
        for ends, queue in self.queues.items():
            queue.link = settings.get(ends)

    def take(self, descriptor: int) -> None:
        """Read packets that a device has sent, and queue them: at most 16 before the next device's turn."""
        for _ in range(16):
            try:
                packet = os.read(descriptor, LARGEST_PACKET)
            except OSError:  # no more packets, or the interface is not up yet
                return
            if packet[0] >> 4 == 4:  # IP version 4
                path = self.paths.get((descriptor, packet[19]))  # the last byte of its destination address
                if path is not None:
                    self.queue(time.monotonic(), packet, path, 0)

    def queue(self, now_s: float, packet: bytes, path: tuple[tuple[_Queue, int], ...], hop: int) -> None:
        """Queue a packet on link number `hop` of its path."""
        queue = path[hop][0]
        start_s, link = max(now_s, queue.free_s), queue.link
        # A full queue drops the packet. It is so long that TCP reaches its own window first (the kernel's largest is
        # 6 MB), because a lost packet would be measured as the engine's time.
        if link is None or (start_s - now_s) * link.bandwidth_bytes_per_s > 16_000_000:
            return
        queue.free_s = start_s + len(packet) / link.bandwidth_bytes_per_s
        self.number += 1
        heapq.heappush(self.waiting, (queue.free_s + link.latency_s, self.number, packet, path, hop))

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
                os.write(path[hop][1], packet)
        return None

    def run(self, owner: int) -> None:
        """Carry packets until the other end of the pipe `owner` is closed. Each line that comes from it has the links
        from then on."""
        text = b""
        while True:
            for descriptor in select.select([owner, *self.descriptors], [], [], self.hand_on())[0]:
                if descriptor != owner:
                    self.take(descriptor)
                    continue
                if not (more := os.read(owner, LARGEST_PACKET)):
                    return
                *lines, text = (text + more).split(b"\n")
                for links in lines:
                    self.set(decoded(links))


def decoded(links: bytes) -> tuple[Link, ...]:
    """The links in a line from the owner."""
    return msgspec.json.decode(links, type=tuple[Link, ...])


def main() -> None:
    """Run the process, and remove the emulation at its end. Standard input: a pipe that the owner keeps open, whose
    first line has the links. Arguments: the owner's process id, and NAME=DESCRIPTOR for each device."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which needs the links until its end
    devices = {name: int(descriptor) for name, _, descriptor in (word.partition("=") for word in sys.argv[2:])}
    emulation = EmulationRecord(int(sys.argv[1]), tuple(devices))
    try:
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as owner:  # lines after the first stay there
            line = Line(devices, decoded(owner.readline()))
        with suppress(OSError):  # real-time priority; without permission for it, timing is only less precise
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        gc.disable()  # packets create no reference cycles
        line.run(sys.stdin.fileno())
    finally:
        record.remove(emulation)


if __name__ == "__main__":
    main()
