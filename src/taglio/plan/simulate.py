"""Discrete-event simulation of components on devices and links. Decides no placement and measures nothing.

Each device runs one component at a time, each directed link sends one transfer at a time. A device picks, among the
ready components, the first of the oldest request; a link serves first come, first served. A transfer occupies its link
for `busy_s` and arrives `delay_s` later (bandwidth occupies, latency only delays). A component starts when all its
inputs have arrived, and its outputs leave when it ends, as in a session; its device is free for the next component once
it has handed all outputs to the network. While a device receives (the last part of a transfer), its running component
pauses. Equal inputs give equal timelines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush


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
    arrivals_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    busy_s: dict[str, float]

    @property
    def end_s(self) -> float:
        """When the last request ended."""
        return max(self.ends_s, default=0.0)

    def latencies_s(self) -> tuple[float, ...]:
        """Seconds from each request's arrival to its end."""
        return tuple(end - arrival for arrival, end in zip(self.arrivals_s, self.ends_s, strict=True))


def simulate(pipelines: Sequence[Pipeline], requests: Sequence[Request] = (Request(),)) -> Timeline:
    """The timeline of `requests`. Raises ValueError if tasks wait for each other in a cycle."""
    return _Run(pipelines, requests).timeline()


def link_name(link: tuple[str, str]) -> str:
    """A link's name in a timeline."""
    return f"{link[0]} -> {link[1]}"


@dataclass(slots=True)
class _State:
    """One request under way."""

    pipeline: Pipeline
    missing: list[int]  # by task: transfers that have not arrived
    sends: dict[int | None, list[int]]
    unfinished: int
    end_s: float


@dataclass(slots=True)
class _Server:
    """A device or a link: its queue of (two sort keys, request, index), and whether it is busy. For a device also the
    start and end of its running component, and until when it receives."""

    link: bool
    waiting: list[tuple[float, int, int, int]] = field(default_factory=list)
    occupied: bool = False
    began_s: float = 0.0
    ends_s: float = 0.0
    receives_s: float = 0.0


class _Run:
    def __init__(self, pipelines: Sequence[Pipeline], requests: Sequence[Request]) -> None:
        self._requests = requests
        self._events: list[tuple[float, int, str, int, int]] = []
        self._sequence = 0
        self._spans: list[Span] = []
        self._servers: dict[str, _Server] = {}
        self._busy_s: dict[str, float] = {}
        self._processor = dict(pair for pipeline in pipelines for pair in pipeline.processors)
        sends = [_sends(pipeline) for pipeline in pipelines]
        self._states = []
        for request in requests:
            pipeline = pipelines[request.pipeline]
            missing = [0] * len(pipeline.tasks)
            for transfer in pipeline.transfers:
                for target in transfer.targets:
                    missing[target] += 1
            count = len(pipeline.tasks) + len(pipeline.transfers)
            self._states.append(_State(pipeline, missing, sends[request.pipeline], count, request.arrival_s))

    def timeline(self) -> Timeline:
        for index, each in enumerate(self._requests):
            self._at(each.arrival_s, "arrive", index, 0)
        while self._events:
            now = self._events[0][0]
            touched: dict[str, None] = {}
            while self._events and self._events[0][0] == now:  # handle simultaneous events before anything starts
                _, _, what, request, index = heappop(self._events)
                getattr(self, f"_{what}")(now, request, index, touched)
            for server in touched:
                self._start(now, server)
        for index, state in enumerate(self._states):
            if state.unfinished:
                raise ValueError(f"request {index}: {state.unfinished} components and transfers wait for each other")
        spans = tuple(sorted(self._spans, key=lambda each: (each.start_s, each.end_s, each.on, each.what)))
        arrivals = tuple(each.arrival_s for each in self._requests)
        ends = tuple(state.end_s for state in self._states)
        return Timeline(spans, arrivals, ends, self._busy_s)

    def _at(self, time: float, what: str, request: int, index: int) -> None:
        self._sequence += 1
        heappush(self._events, (time, self._sequence, what, request, index))

    def _arrive(self, now: float, request: int, _index: int, touched: dict[str, None]) -> None:
        state = self._states[request]
        for transfer in state.sends.get(None, ()):
            self._queue(now, request, transfer, touched)
        for task, missing in enumerate(state.missing):
            if not missing:  # no transfers to wait for
                self._ready(request, task, touched)

    def _ran(self, now: float, request: int, task: int, touched: dict[str, None]) -> None:
        state = self._states[request]
        each = state.pipeline.tasks[task]
        server = self._servers[self._runs_on(each.device)]
        if server.ends_s > now:  # it was paused meanwhile
            self._at(server.ends_s, "ran", request, task)
            return
        self._spans.append(Span(each.device, each.name, request, server.began_s, now, transfer=False))
        if each.sending_s > 0.0:
            self._at(now + each.sending_s, "free", request, task)
        else:
            self._free(now, request, task, touched)
        self._done(state, now)
        for transfer in state.sends.get(task, ()):
            self._queue(now, request, transfer, touched)

    def _free(self, _now: float, request: int, task: int, touched: dict[str, None]) -> None:
        processor = self._runs_on(self._states[request].pipeline.tasks[task].device)
        self._servers[processor].occupied = False
        touched[processor] = None

    def _sent(self, now: float, request: int, transfer: int, touched: dict[str, None]) -> None:
        each = self._states[request].pipeline.transfers[transfer]
        name = link_name(each.link)
        self._servers[name].occupied = False
        touched[name] = None
        self._at(now + each.delay_s, "arrived", request, transfer)

    def _reached(self, now: float, request: int, transfer: int, _touched: dict[str, None]) -> None:
        each = self._states[request].pipeline.transfers[transfer]
        server = self._servers.setdefault(self._runs_on(each.link[1]), _Server(link=False))
        until = max(server.receives_s, now + min(each.busy_s + each.delay_s, each.receiving_s))
        if server.ends_s > now:
            server.ends_s += until - max(server.receives_s, now)
        server.receives_s = until

    def _arrived(self, now: float, request: int, transfer: int, touched: dict[str, None]) -> None:
        state = self._states[request]
        self._done(state, now)
        for task in state.pipeline.transfers[transfer].targets:
            state.missing[task] -= 1
            if not state.missing[task]:
                self._ready(request, task, touched)

    def _done(self, state: _State, now: float) -> None:
        state.unfinished -= 1
        state.end_s = max(state.end_s, now)

    def _ready(self, request: int, task: int, touched: dict[str, None]) -> None:
        processor = self._runs_on(self._states[request].pipeline.tasks[task].device)
        server = self._servers.setdefault(processor, _Server(link=False))
        heappush(server.waiting, (float(request), task, request, task))
        touched[processor] = None

    def _runs_on(self, device: str) -> str:
        return self._processor.get(device, device)

    def _queue(self, now: float, request: int, transfer: int, touched: dict[str, None]) -> None:
        each = self._states[request].pipeline.transfers[transfer]
        if each.busy_s == 0.0 and each.delay_s == 0.0:
            self._at(now, "arrived", request, transfer)
            return
        name = link_name(each.link)
        self._sequence += 1
        server = self._servers.setdefault(name, _Server(link=True))
        heappush(server.waiting, (now, self._sequence, request, transfer))
        touched[name] = None

    def _start(self, now: float, name: str) -> None:
        server = self._servers[name]
        if server.occupied or not server.waiting:
            return
        _, _, request, index = heappop(server.waiting)
        pipeline = self._states[request].pipeline
        server.occupied = True
        if server.link:
            sent = pipeline.transfers[index]
            self._busy_s[name] = self._busy_s.get(name, 0.0) + sent.busy_s
            self._spans.append(Span(name, sent.name, request, now, now + sent.busy_s + sent.delay_s, transfer=True))
            self._at(now + sent.busy_s, "sent", request, index)
            if sent.receiving_s > 0.0:
                self._at(now + max(0.0, sent.busy_s + sent.delay_s - sent.receiving_s), "reached", request, index)
        else:
            seconds, device = pipeline.tasks[index].seconds, pipeline.tasks[index].device
            self._busy_s[device] = self._busy_s.get(device, 0.0) + seconds
            server.began_s, server.ends_s = now, now + seconds + max(0.0, server.receives_s - now)
            self._at(server.ends_s, "ran", request, index)


def _sends(pipeline: Pipeline) -> dict[int | None, list[int]]:
    sends: dict[int | None, list[int]] = {}
    for index, transfer in enumerate(pipeline.transfers):
        sends.setdefault(transfer.source, []).append(index)
    return sends
