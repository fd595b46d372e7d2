"""Discrete-event simulation of components on devices and links. Decides no placement and measures nothing.

Each device runs one component at a time, each directed link sends one transfer at a time. A device picks, among the
ready components, the first of the oldest request; a link serves first come, first served. A transfer occupies its link
for `busy_s` and arrives `delay_s` later (bandwidth occupies, latency only delays). A component starts when all its
inputs have arrived, and its outputs leave when it ends, as in a session; its device is free for the next component once
it has handed all outputs to the network. While a device receives (the last part of a transfer), its running component
pauses. Equal inputs give equal timelines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count


@dataclass(frozen=True, slots=True)
class Task:
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

    `source` is the index of the task that writes it, None for a request's input; `targets` are the tasks that read it;
    `answers` tells whether the caller reads it at the target. The last `receiving_s` of the transfer, at most all of
    it, are work of the target device. `value` is its index in a problem, `int8` whether it is sent as int8.
    """

    name: str
    source: int | None
    targets: tuple[int, ...]
    link: tuple[str, str]
    busy_s: float
    delay_s: float
    bytes: float = 0.0
    answers: bool = False
    receiving_s: float = 0.0
    value: int = -1
    int8: bool = False


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The tasks and transfers of one request of one model, tasks in a valid running order. `processors` maps devices
    that use another device's processor to that device."""

    tasks: tuple[Task, ...]
    transfers: tuple[Transfer, ...]
    processors: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A request of `pipeline` that arrives at `arrival_s`."""

    pipeline: int = 0
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """One busy span of a device or link: `on` is a device, or "a -> b"; the end of a transfer includes its delay."""

    on: str
    what: str
    request: int
    start_s: float
    end_s: float
    transfer: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans sorted by start, each request's end, and busy seconds of each device and link."""

    spans: tuple[Span, ...]
    ends_s: tuple[float, ...]
    busy_s: dict[str, float]

    @property
    def end_s(self) -> float:
        """When the last request ended."""
        return max(self.ends_s, default=0.0)


def simulate(pipelines: Sequence[Pipeline], requests: Sequence[Request] = (Request(),)) -> Timeline:
    """The timeline of `requests`. Raises ValueError if tasks wait for each other in a cycle."""
    return _Run(pipelines, requests).timeline()


def link_name(link: tuple[str, str]) -> str:
    """A link's name in a timeline."""
    return f"{link[0]} -> {link[1]}"


@dataclass(slots=True)
class _State:
    """One request under way: its pipeline, by task how many transfers have not arrived, by task (None: the input) what
    it sends, and how many tasks and transfers have not ended."""

    index: int
    pipeline: Pipeline
    missing: list[int]
    sends: dict[int | None, list[Transfer]]
    unfinished: int
    end_s: float


@dataclass(slots=True)
class _Server:
    """A device or a link: what waits for it (two sort keys, and what starts it), and whether it is busy. For a device
    also the end of its running component, and until when it receives."""

    waiting: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    occupied: bool = False
    ends_s: float = 0.0
    receives_s: float = 0.0


class _Run:
    def __init__(self, pipelines: Sequence[Pipeline], requests: Sequence[Request]) -> None:
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = count()
        self._spans: list[Span] = []
        self._servers: dict[str, _Server] = {}
        self._touched: dict[str, None] = {}
        self._busy_s: dict[str, float] = {}
        self._processor = dict(pair for pipeline in pipelines for pair in pipeline.processors)
        self._states = []
        for index, request in enumerate(requests):
            pipeline = pipelines[request.pipeline]
            sends: dict[int | None, list[Transfer]] = {}
            missing = [0] * len(pipeline.tasks)
            for transfer in pipeline.transfers:
                sends.setdefault(transfer.source, []).append(transfer)
                for target in transfer.targets:
                    missing[target] += 1
            left = len(pipeline.tasks) + len(pipeline.transfers)
            state = _State(index, pipeline, missing, sends, left, request.arrival_s)
            self._states.append(state)
            self._at(request.arrival_s, partial(self._arrive, state))

    def timeline(self) -> Timeline:
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
        for state in self._states:
            if state.unfinished:
                raise ValueError(
                    f"request {state.index}: {state.unfinished} components and transfers wait for each other"
                )
        spans = tuple(sorted(self._spans, key=lambda each: (each.start_s, each.end_s, each.on, each.what)))
        return Timeline(spans, tuple(state.end_s for state in self._states), self._busy_s)

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heappush(self._events, (time, next(self._sequence), event))

    def _server(self, name: str) -> _Server:
        return self._servers.setdefault(name, _Server())

    def _runs_on(self, device: str) -> str:
        return self._processor.get(device, device)

    def _wait(self, name: str, key: float, index: int, start: Callable[[float], None]) -> None:
        """Queue for a device or link."""
        heappush(self._server(name).waiting, (key, index, start))
        self._touched[name] = None

    def _free(self, name: str, _now: float = 0.0) -> None:
        self._servers[name].occupied = False
        self._touched[name] = None

    def _arrive(self, state: _State, now: float) -> None:
        self._leave(state, None, now)
        for task, missing in enumerate(state.missing):
            if not missing:  # no transfers to wait for
                self._ready(state, task)

    def _ready(self, state: _State, task: int) -> None:
        """A component's inputs have arrived: the first of the oldest request goes first."""
        name = self._runs_on(state.pipeline.tasks[task].device)
        self._wait(name, float(state.index), task, partial(self._begin, state, task))

    def _begin(self, state: _State, index: int, now: float) -> None:
        task = state.pipeline.tasks[index]
        server = self._servers[self._runs_on(task.device)]
        self._busy_s[task.device] = self._busy_s.get(task.device, 0.0) + task.seconds
        server.ends_s = now + task.seconds + max(0.0, server.receives_s - now)
        self._at(server.ends_s, partial(self._ran, state, index, now))

    def _ran(self, state: _State, index: int, began_s: float, now: float) -> None:
        task = state.pipeline.tasks[index]
        name = self._runs_on(task.device)
        if self._servers[name].ends_s > now:  # it was paused meanwhile
            self._at(self._servers[name].ends_s, partial(self._ran, state, index, began_s))
            return
        self._spans.append(Span(task.device, task.name, state.index, began_s, now, transfer=False))
        if task.sending_s > 0.0:
            self._at(now + task.sending_s, partial(self._free, name))
        else:
            self._free(name)
        self._done(state, now)
        self._leave(state, index, now)

    def _leave(self, state: _State, task: int | None, now: float) -> None:
        """Send a component's outputs, first come, first served on each link."""
        for sent in state.sends.get(task, ()):
            if sent.busy_s == 0.0 and sent.delay_s == 0.0:
                self._at(now, partial(self._arrived, state, sent))
            else:
                self._wait(link_name(sent.link), now, next(self._sequence), partial(self._send, state, sent))

    def _send(self, state: _State, sent: Transfer, now: float) -> None:
        name, taken_s = link_name(sent.link), sent.busy_s + sent.delay_s
        self._busy_s[name] = self._busy_s.get(name, 0.0) + sent.busy_s
        self._spans.append(Span(name, sent.name, state.index, now, now + taken_s, transfer=True))
        self._at(now + sent.busy_s, partial(self._sent, state, sent))
        if sent.receiving_s > 0.0:
            self._at(now + max(0.0, taken_s - sent.receiving_s), partial(self._reached, sent))

    def _sent(self, state: _State, sent: Transfer, now: float) -> None:
        self._free(link_name(sent.link))
        self._at(now + sent.delay_s, partial(self._arrived, state, sent))

    def _reached(self, sent: Transfer, now: float) -> None:
        """The target begins to receive: what it runs pauses."""
        server = self._server(self._runs_on(sent.link[1]))
        until = max(server.receives_s, now + min(sent.busy_s + sent.delay_s, sent.receiving_s))
        if server.ends_s > now:
            server.ends_s += until - max(server.receives_s, now)
        server.receives_s = until

    def _arrived(self, state: _State, sent: Transfer, now: float) -> None:
        self._done(state, now)
        for task in sent.targets:
            state.missing[task] -= 1
            if not state.missing[task]:
                self._ready(state, task)

    def _done(self, state: _State, now: float) -> None:
        state.unfinished -= 1
        state.end_s = max(state.end_s, now)
