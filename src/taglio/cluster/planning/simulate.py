"""Discrete-event simulation of components on devices and links. Decides no placement and measures nothing.

Each device runs one component at a time, each directed link sends one transfer at a time. A device picks the first of
the ready components; a link serves first come, first served. A transfer occupies its link for `busy_s` and arrives
`delay_s` later (bandwidth occupies, latency only delays). A component starts when all its inputs have arrived, and its
outputs leave when it ends, as in a session; its device is free for the next component once it has handed all outputs to
the network. While a device receives (the last part of a transfer), its running component pauses. Equal inputs give
equal timelines.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

from taglio.plan.result import Span


@dataclass(frozen=True, slots=True)
class ComponentTask:
    """A component, its seconds on its device, and the device's seconds for sending its outputs afterwards; `nodes` are
    its blocks in a problem."""

    name: str
    device: str
    seconds: float
    sending_s: float = 0.0
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor sent from one device to another (or to itself: loopback), once for all tasks that read it there.

    `source` is the index of the task that writes it, None for an input; `targets` are the tasks that read it, none if
    only the caller does. The last `receiving_s` of the transfer, at most all of it, are work of the target device.
    `value` is its index in a problem, `int8` whether it is sent as int8.
    """

    name: str
    source: int | None
    targets: tuple[int, ...]
    link: tuple[str, str]
    busy_s: float
    delay_s: float
    bytes: float = 0.0
    receiving_s: float = 0.0
    value: int = -1
    int8: bool = False


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The tasks and transfers of one request of one model, tasks in a valid running order."""

    tasks: tuple[ComponentTask, ...]
    transfers: tuple[Transfer, ...]

    def busy_s(self) -> dict[str, float]:
        """Busy seconds of each device and link."""
        busy: dict[str, float] = {}
        for name, seconds in [
            *((task.device, task.seconds) for task in self.tasks),
            *((link_name(transfer.link), transfer.busy_s) for transfer in self.transfers),
        ]:
            busy[name] = busy.get(name, 0.0) + seconds
        return busy


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans sorted by start, and when each task and then each transfer ended."""

    spans: tuple[Span, ...]
    ends_s: tuple[float, ...]

    @property
    def end_s(self) -> float:
        """When all had ended."""
        return max(self.ends_s, default=0.0)


def simulate(pipeline: Pipeline) -> Timeline:
    """The timeline of a request. Raises ValueError if tasks wait for each other in a cycle."""
    return _Simulation(pipeline).timeline()


def link_name(link: tuple[str, str]) -> str:
    """A link's name in a timeline."""
    return f"{link[0]} -> {link[1]}"


@dataclass(slots=True)
class _Station:
    """A device or a link: what waits for it (a key, the order of arrival, and what starts it), and whether it is busy.
    For a device also the end of its running component, and until when it receives."""

    waiting: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    occupied: bool = False
    ends_s: float = 0.0
    receives_s: float = 0.0


class _Simulation:
    def __init__(self, pipeline: Pipeline) -> None:
        self._tasks, self._transfers = pipeline.tasks, pipeline.transfers
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = count()
        self._spans: list[Span] = []
        self._servers: dict[str, _Station] = {}
        self._touched: dict[str, None] = {}
        self._ends_s: list[float | None] = [None] * (len(self._tasks) + len(self._transfers))
        # By task, how many transfers have not arrived; by task (None: the inputs), what it sends.
        self._missing = [0] * len(self._tasks)
        self._sends: dict[int | None, list[int]] = {}
        for index, transfer in enumerate(self._transfers):
            self._sends.setdefault(transfer.source, []).append(index)
            for target in transfer.targets:
                self._missing[target] += 1

    def timeline(self) -> Timeline:
        self._at(0.0, self._arrive)
        while self._events:
            now = self._events[0][0]
            self._touched = {}
            while self._events and self._events[0][0] == now:  # handle simultaneous events before anything starts
                heappop(self._events)[2](now)
            for name in self._touched:
                server = self._servers[name]
                if server.waiting and not server.occupied:
                    server.occupied = True
                    heappop(server.waiting)[2](now)
        ends_s = tuple(end_s for end_s in self._ends_s if end_s is not None)
        if len(ends_s) < len(self._ends_s):
            raise ValueError(f"{len(self._ends_s) - len(ends_s)} components and transfers wait for each other")
        spans = tuple(sorted(self._spans, key=lambda span: (span.start_s, span.end_s, span.on, span.what)))
        return Timeline(spans, ends_s)

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heappush(self._events, (time, next(self._sequence), event))

    def _wait(self, name: str, key: float, start: Callable[[float], None]) -> None:
        """Queue for a device or link."""
        waiting = self._servers.setdefault(name, _Station()).waiting
        heappush(waiting, (key, next(self._sequence), start))
        self._touched[name] = None

    def _free(self, name: str, _now: float = 0.0) -> None:
        self._servers[name].occupied = False
        self._touched[name] = None

    def _arrive(self, now: float) -> None:
        self._leave(None, now)
        for task, missing in enumerate(self._missing):
            if not missing:  # no transfers to wait for
                self._ready(task)

    def _ready(self, index: int) -> None:
        """A component's inputs have arrived."""
        self._wait(self._tasks[index].device, index, partial(self._begin, index))

    def _begin(self, index: int, now: float) -> None:
        task = self._tasks[index]
        server = self._servers[task.device]
        server.ends_s = now + task.seconds + max(0.0, server.receives_s - now)
        self._at(server.ends_s, partial(self._ran, index, now))

    def _ran(self, index: int, began_s: float, now: float) -> None:
        task = self._tasks[index]
        name = task.device
        if self._servers[name].ends_s > now:  # it was paused meanwhile
            self._at(self._servers[name].ends_s, partial(self._ran, index, began_s))
            return
        self._spans.append(Span(task.device, task.name, 0, began_s, now, transfer=False))
        if task.sending_s > 0.0:
            self._at(now + task.sending_s, partial(self._free, name))
        else:
            self._free(name)
        self._ends_s[index] = now
        self._leave(index, now)

    def _leave(self, task: int | None, now: float) -> None:
        """Send a component's outputs, first come, first served on each link."""
        for index in self._sends.get(task, ()):
            transfer = self._transfers[index]
            if transfer.busy_s == 0.0 and transfer.delay_s == 0.0:
                self._at(now, partial(self._arrived, index))
            else:
                self._wait(link_name(transfer.link), now, partial(self._send, index))

    def _send(self, index: int, now: float) -> None:
        transfer = self._transfers[index]
        name, taken_s = link_name(transfer.link), transfer.busy_s + transfer.delay_s
        self._spans.append(Span(name, transfer.name, 0, now, now + taken_s, transfer=True))
        self._at(now + transfer.busy_s, partial(self._sent, index))
        if transfer.receiving_s > 0.0:
            self._at(now + max(0.0, taken_s - transfer.receiving_s), partial(self._reached, transfer))

    def _sent(self, index: int, now: float) -> None:
        transfer = self._transfers[index]
        self._free(link_name(transfer.link))
        self._at(now + transfer.delay_s, partial(self._arrived, index))

    def _reached(self, transfer: Transfer, now: float) -> None:
        """The target begins to receive: what it runs pauses."""
        server = self._servers.setdefault(transfer.link[1], _Station())
        until = max(server.receives_s, now + min(transfer.busy_s + transfer.delay_s, transfer.receiving_s))
        if server.ends_s > now:
            server.ends_s += until - max(server.receives_s, now)
        server.receives_s = until

    def _arrived(self, index: int, now: float) -> None:
        self._ends_s[len(self._tasks) + index] = now
        for target in self._transfers[index].targets:
            self._missing[target] -= 1
            if not self._missing[target]:
                self._ready(target)
