"""The actor on a device: opens components, runs each when its messages have arrived, and sends the outputs straight to
the devices that read them.

Several requests may be in flight; components run one at a time, among the ready ones the oldest request's first, as the
planner assumes.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, PriorityQueue, SimpleQueue
from typing import Any, TypeVar

import numpy as np

from taglio.cluster.engine.parcel import ComponentStep, Parcel, SessionStep, merged
from taglio.cluster.engine.resident import Resident
from taglio.cluster.engine.wiring import Message, wire
from taglio.components.build import Manifest, Piece, State
from taglio.errors import BadData, BadDevice, TaglioError, with_kind
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.session import Session, opener

# Threads of an actor: for arriving messages, and one for the stream of those to the caller's process.
MESSAGES, STREAM = "messages", "stream"
# Most sessions whose states are kept; the least recently used is dropped first.
SESSIONS = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Opened:
    """A component of this device, open: the messages that it reads (by index) and sends, and the states it keeps."""

    piece: Piece
    session: Session
    reads: tuple[int, ...]
    sends: tuple[tuple[int, Message], ...]
    states: tuple[State, ...] = ()


@dataclass(slots=True)
class _OpenRequest:
    """A request's tensors so far, and the components that wait for more; its session and step, if any."""

    left: set[str]
    session: SessionStep | None
    parcels: dict[int, Parcel] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class _ReadyComponent:
    """A component, the `place`-th on this device, with all its inputs. The smallest runs first."""

    request: int
    place: int
    component: str
    parcels: list[Parcel] = field(compare=False)
    session: SessionStep | None = field(compare=False)


class SessionStates:
    """The states that components keep of `most` sessions from step to step. They are lost with the device: the sender
    repeats the steps (runner.py), or reports that the session is lost."""

    def __init__(self, most: int = SESSIONS) -> None:
        self._most = most
        self._kept: dict[str, dict[str, tuple[int, dict[str, np.ndarray]]]] = {}

    def before(self, component: str, states: Sequence[State], step: SessionStep | None) -> dict[str, np.ndarray]:
        """The states that a step reads, by input; a request without a session is a first step. Raises BadDevice if the
        previous step was not run here."""
        if step is None or step.number == 0 or not states:
            return {state.past: state.first() for state in states}
        done, values = self._kept.get(component, {}).get(step.session, (0, {}))
        if done != step.number:
            raise BadDevice(
                f'component {component} was asked for step {step.number} of session "{step.session}" but has run '
                f"{done} of its steps: its state is lost, start the session again"
            )
        return values

    def keep(
        self, component: str, states: Sequence[State], step: SessionStep | None, written: Mapping[str, np.ndarray]
    ) -> None:
        """Keep the states that a step wrote, unless it was the last one."""
        if step is None or not states:
            return
        mine = self._kept.setdefault(component, {})
        mine.pop(step.session, None)
        if not step.last:
            mine[step.session] = step.number + 1, {state.past: written[state.present] for state in states}
        if len(mine) > self._most:
            del mine[next(iter(mine))]


class Host(Resident):
    """One device's components. Made an actor by deploy.py."""

    def __init__(self, device: str = "", threads: int = 0, store: Path | None = None) -> None:
        super().__init__(device, threads, store)
        self._components: dict[str, _Opened] = {}
        self._peers: dict[str, list[Callable[[Parcel], None]]] = {}
        self._role = self.device
        self._waiting: PriorityQueue[_ReadyComponent] = PriorityQueue()
        self._turn = threading.Lock()  # one component runs at a time
        self._lock = threading.Lock()
        self._requests: dict[int, _OpenRequest] = {}
        self._states = SessionStates()
        self._outbox: SimpleQueue[Parcel] = SimpleQueue()
        # Called with each message to the caller's process; if this is that process, it sets another function.
        self.deliver: Callable[[Parcel], None] = self._outbox.put

    def call(self, function: Callable[..., T], *given: Any) -> T:
        """What a function returns on this device."""
        return function(*given)

    def load(self, manifest: Manifest, role: str, threads: int, peers: Mapping[str, Sequence[Any]]) -> None:
        """Open the components of the device `role`, whose turn this one takes, each in its runtime, and run each once
        on zeros if it can; `peers` are the hosts that messages are sent to, by device; several take turns.

        Raises BadModel if the runtime refuses a component, BadArtifact if its file was changed.
        """
        wiring, self._role = wire(manifest), role
        for piece in manifest.pieces:
            if piece.device == role:
                session = opener(piece.runtime)(self.verified(piece.files), SessionOptions(threads))
                with suppress(Exception):  # zeros may choose a branch for other shapes; a request tells what fails too
                    session.run(
                        [port.name for port in piece.outputs],
                        {port.name: np.zeros(port.shape, port.dtype) for port in piece.inputs},
                    )
                reads, sends = wiring.reads[piece.name], wiring.sends(piece.name)
                self._components[piece.name] = _Opened(piece, session, reads, sends, manifest.kept_by(piece))
        self._peers = {name: [post(host) for host in hosts] for name, hosts in peers.items()}

    def take(self, parcel: Parcel) -> None:
        """Receive a message, and run the components that are ready, unless another thread does."""
        self._note(parcel)
        while not self._waiting.empty() and self._turn.acquire(blocking=False):
            try:
                with suppress(Empty):  # another thread was quicker
                    work = self._waiting.get_nowait()
                    for message in self._send(work.component, self._run(work)):
                        self._note(message)
            finally:
                self._turn.release()

    def _note(self, parcel: Parcel) -> None:
        """Queue the components that now have all inputs."""
        with self._lock:
            request = self._requests.setdefault(parcel.request, _OpenRequest(set(self._components), parcel.session))
            request.parcels[parcel.message] = parcel
            for place, (name, component) in enumerate(self._components.items()):
                if name in request.left and all(index in request.parcels for index in component.reads):
                    parcels = [request.parcels[index] for index in component.reads]
                    self._waiting.put(_ReadyComponent(parcel.request, place, name, parcels, request.session))
                    request.left.discard(name)
            if not request.left:
                del self._requests[parcel.request]

    def outbox(self) -> Iterator[Parcel]:
        """The messages to the caller's process, as they are made. It has no end: a stream that breaks off tells the
        caller that this process has ended."""
        while True:
            yield self._outbox.get()

    def _send(self, component: str, made: Parcel) -> list[Parcel]:
        """Send a component's messages, out of what it made; returns those to components on this device."""
        here = []
        for index, message in self._components[component].sends:
            tensors = {name: made.tensors[name] for name in message.names} if made.error is None else {}
            parcel = replace(made, message=index, tensors=tensors)
            if message.device == self._role:
                here.append(parcel)
            elif message.device in self._peers:
                at_turn(self._peers[message.device], made.request)(parcel)
            else:
                self.deliver(parcel)
        return here

    def _run(self, work: _ReadyComponent) -> Parcel:
        """Run a component: all that it made, as one parcel, or its error, for whoever waits for the answer."""
        made = Parcel(work.request, -1, self.device, {}, session=work.session)
        try:
            component = self._components[work.component]
            tensors, steps, hops = merged(work.parcels, self.device)
            tensors.update(self._states.before(work.component, component.states, work.session))
            feed = {port.name: tensors[port.name] for port in component.piece.inputs}
            names = [port.name for port in component.piece.outputs]
            start = time.monotonic()
            values = dict(zip(names, component.session.run(names, feed), strict=True))
            end = time.monotonic()
            self._states.keep(work.component, component.states, work.session, values)
        except TaglioError as error:
            return replace(made, error=error)
        except MemoryError:
            return replace(made, error=BadDevice(f'device "{self.device}" has no memory to run {work.component}'))
        except Exception as error:  # the runtime refuses the inputs
            return replace(made, error=BadData(f"{work.component} failed: {with_kind(error)}"))
        step = ComponentStep(work.component, self.device, start, end)
        return replace(made, tensors=values, steps=(*steps, step), hops=hops)


def at_turn(replicas: Sequence[T], request: int) -> T:
    """The one of several replicas that has a request."""
    return replicas[request % len(replicas)]


def post(host: Any) -> Callable[[Parcel], None]:
    """A function that sends a message to a host without waiting."""
    take: Callable[[Parcel], None] = host.take.options(concurrency_group=MESSAGES, num_returns=0).remote
    return take
