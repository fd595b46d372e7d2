"""The delay line without any namespace: routes, and packets through socket pairs."""

import socket
import time
from collections.abc import Iterator

import pytest

from taglio.cluster.emulate import line as carrying
from taglio.cluster.emulate.line import QUEUE_BYTES, Line, Way, routes


class Clock:
    """Stands still while packets are on their way through this process."""

    process_time = staticmethod(time.process_time)

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(carrying, "time", clock)
    return clock


def packet(target: int, size: int) -> bytes:
    """An IPv4 packet to the device at index `target`, as far as the line looks at it."""
    return bytes([0x45, *[0] * 18, target + 1]) + bytes(size - 20)


def test_a_pair_takes_its_own_link_even_where_a_way_round_is_quicker() -> None:
    ways = [Way(0, 1, 1e6, 0.001), Way(1, 2, 1e6, 0.001), Way(0, 2, 1e6, 0.5), Way(2, 0, 1e6, 0.0)]
    found = routes(ways, 3)
    assert found[0, 2] == ((0, 2),)
    assert found[1, 0] == ((1, 2), (2, 0))
    assert found[2, 1] == ((2, 0), (0, 1))


def test_what_cannot_be_reached_has_no_route() -> None:
    assert set(routes([Way(0, 1, 1e6, 0.0)], 3)) == {(0, 1)}


def carried(line: Line, ends: list[socket.socket], target: int, limit_s: float, clock: Clock) -> list[float]:
    """Seconds until each packet that arrives at `target` within `limit_s`."""
    start_s, arrived = clock.now_s, list[float]()
    ends[target].setblocking(False)
    while clock.now_s < start_s + limit_s:
        line.take(0)
        line.hand_on()
        try:
            ends[target].recv(65535)
        except BlockingIOError:
            clock.now_s += 1e-4
        else:
            arrived.append(clock.now_s - start_s)
    return arrived


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    found = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)]
    for inner, _ in found:
        inner.setblocking(False)
    yield found
    for each in (end for pair in found for end in pair):
        each.close()


def test_packets_occupy_a_link_one_after_another(
    pairs: list[tuple[socket.socket, socket.socket]], clock: Clock
) -> None:
    line = Line([inner.fileno() for inner, _ in pairs], [Way(0, 1, 100e3, 0.02), Way(1, 2, 1e6, 0.03)])
    ends = [outer for _, outer in pairs]
    for _ in range(3):
        pairs[0][1].send(packet(1, 1000))
    # 10 ms each on the link, then 20 ms.
    assert carried(line, ends, 1, 0.1, clock) == pytest.approx([0.03, 0.04, 0.05], abs=2e-4)
    pairs[0][1].send(packet(2, 1000))
    assert carried(line, ends, 2, 0.1, clock) == pytest.approx([0.01 + 0.02 + 0.001 + 0.03], abs=2e-4)


def test_a_cut_link_drops_and_a_full_one_too(pairs: list[tuple[socket.socket, socket.socket]], clock: Clock) -> None:
    line = Line([inner.fileno() for inner, _ in pairs], [Way(0, 1, 1e9, 0.0)])
    line.set([Way(0, 1, 1e9, 0.0, cut=True)])
    pairs[0][1].send(packet(1, 100))
    assert carried(line, [outer for _, outer in pairs], 1, 0.05, clock) == []
    assert line.counts().links[0].dropped_packets == 1
    line.set([Way(0, 1, 1e3, 0.0)])
    queue = line.queues[0, 1]
    for _ in range(QUEUE_BYTES // 50_000 + 10):
        line.queue(clock.now_s, packet(1, 50_000), line.paths[0, 1], 0)
    assert queue.dropped > 1
    assert queue.passed_bytes <= QUEUE_BYTES + 100_000


def test_what_is_no_packet_to_a_device_is_left_alone(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    line = Line([inner.fileno() for inner, _ in pairs], [Way(0, 1, 1e9, 0.0)])
    for strange in (b"\x60" + bytes(60), packet(77, 40), packet(2, 40)):  # IPv6, no such address, no way there
        pairs[0][1].send(strange)
    line.take(0)
    assert line.waiting == []
