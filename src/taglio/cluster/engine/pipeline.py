"""Send requests through a deployment: inputs to the devices that read them, answers from those that write outputs.

Components send their outputs straight from device to device. No device can call this process, so each has a stream to
it, for messages to the caller and to the start device's host. The stream breaks off when the device ends.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taglio.cluster.engine.deploy import Deployment
from taglio.cluster.engine.host import STREAM, at_turn, post
from taglio.cluster.engine.library import ray
from taglio.cluster.engine.parcel import ComponentStep, Hop, Parcel, SessionStep, merged
from taglio.cluster.engine.replan import Planned
from taglio.cluster.engine.wiring import CALLER
from taglio.errors import with_kind


class Broken(Exception):
    """This pipeline can no longer answer a request."""


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredRequest:
    """One request's outputs in the model's order, when it was sent and answered, and its steps and hops, all by this
    process's clock.

    `attempts` counts how often it was sent, and `planned` is the plan that answered it; both are the server's to say.
    """

    request: int
    outputs: list[np.ndarray]
    sent_s: float
    answered_s: float
    steps: tuple[ComponentStep, ...]
    hops: tuple[Hop, ...]
    attempts: int = 1
    planned: Planned | None = None

    @property
    def latency_s(self) -> float:
        """Seconds from sending to answer."""
        return self.answered_s - self.sent_s


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A request in flight, by its number in its pipeline: its answers so far, and whether there is anything left to
    wait for."""

    request: int
    sent_s: float
    parcels: list[Parcel] = field(default_factory=list)
    settled: threading.Event = field(default_factory=threading.Event)


class RequestPipeline:
    """A deployment with up to `lanes` requests in flight, for one sender and any number of threads that wait."""

    def __init__(self, deployment: Deployment, lanes: int, start: str) -> None:
        self.lanes = lanes
        self.deployment = deployment
        self._start = start
        actors, here, messages = deployment.actors, deployment.here, deployment.wiring.messages
        # The hosts of each device, which take turns.
        self._hosts: dict[str, list[Callable[[Parcel], object]]] = {
            device: [post(actors[name]) for name in names]
            for device, names in deployment.places.items()
            if names[0] in actors
        }
        if here is not None:
            own, take = ThreadPoolExecutor(2), here.take  # two threads, as elsewhere
            self._hosts[here.device] = [lambda parcel: own.submit(take, parcel)]
            here.deliver = self._deliver
        self._inputs = [(index, message) for index, message in enumerate(messages) if message.source == CALLER]
        self._answers = sum(message.device == CALLER for message in messages)
        self._next = 0
        self._flights: dict[int, Flight] = {}
        self._answered_s = 0.0  # the last answer
        self._broken = ""  # why there are no more answers
        self._lock = threading.Lock()
        for name, actor in actors.items():
            stream = actor.outbox.options(concurrency_group=STREAM).remote()
            threading.Thread(target=self._receive, args=(name, stream), name=f"from {name}", daemon=True).start()

    def room(self) -> bool:
        """Whether another request may be sent."""
        return len(self._flights) < self.lanes

    def send(self, feed: Mapping[str, np.ndarray], session: SessionStep | None = None) -> Flight:
        """Send a request, of a model with states a step of a session. Raises Broken if the engine refuses it."""
        flight = Flight(self._next, time.monotonic())
        self._next += 1
        with self._lock:
            if self._broken:
                raise Broken(self._broken)
            self._flights[flight.request] = flight
        try:
            for index, message in self._inputs:
                tensors = {name: feed[name] for name in message.names}
                self._post(Parcel(flight.request, index, "", tensors, session=session))
        except Exception as error:
            raise Broken(with_kind(error)) from None
        return flight

    def wait(self, flight: Flight, patience_s: float) -> AnsweredRequest:
        """The answer to a request that was sent. Raises Broken if there is none within `patience_s` of its sending and
        of the answer before it, and the error of a component that failed."""
        while not flight.settled.is_set():
            left_s = max(flight.sent_s, self._answered_s) + patience_s - time.monotonic()
            if left_s <= 0.0:
                raise Broken(f"no answer within {patience_s:.0f} s")
            flight.settled.wait(left_s)
        answered_s = time.monotonic()
        if len(flight.parcels) < self._answers:
            raise Broken(self._broken)
        outputs, steps, hops = merged(flight.parcels)
        ordered = [_own(outputs[name]) for name in self.deployment.manifest.without_states()[1]]
        ours = tuple(map(self._step, steps)), tuple(map(self._hop, hops))
        return AnsweredRequest(flight.request, ordered, flight.sent_s, answered_s, *ours)

    def _receive(self, name: str, stream: Iterable[Any]) -> None:
        """Take a device's messages to this process until its host ends."""
        with contextlib.suppress(Exception):
            for message in stream:
                self._deliver(ray().get(message))
        self.give_up(f'device "{name}" stopped answering')

    def _deliver(self, parcel: Parcel) -> None:
        """Hand a message to the request that it answers, or to the local host, for which it is."""
        if self.deployment.wiring.messages[parcel.message].device != CALLER:
            self._post(parcel)
            return
        with self._lock:
            flight = self._flights[parcel.request]
            flight.parcels.append(parcel)
            if len(flight.parcels) == self._answers:
                del self._flights[parcel.request]
                self._answered_s = time.monotonic()
                flight.settled.set()

    def _post(self, parcel: Parcel) -> None:
        at_turn(self._hosts[self.deployment.wiring.messages[parcel.message].device], parcel.request)(parcel)

    def give_up(self, reason: str) -> None:
        """Answer no more: all who wait, and who send, get Broken with the first `reason`."""
        with self._lock:
            self._broken = self._broken or reason
            for flight in self._flights.values():
                flight.settled.set()

    def close(self) -> None:
        """End the devices' hosts. Never raises and never waits, because the pipeline may be broken."""
        for actor in self.deployment.actors.values():
            with contextlib.suppress(Exception):
                ray().kill(actor)

    def _step(self, step: ComponentStep) -> ComponentStep:
        offset = self.deployment.clocks[step.device].offset_s
        return step._replace(start_s=step.start_s - offset, end_s=step.end_s - offset)

    def _hop(self, hop: Hop) -> Hop:
        """The hop in this process's clock; this process takes the caller's place."""
        clocks = self.deployment.clocks
        sent = hop.sent_s - (clocks[hop.source].offset_s if hop.source else 0.0)
        read = hop.read_s - (clocks[hop.target].offset_s if hop.target else 0.0)
        return Hop(hop.message, hop.source or self._start, hop.target or self._start, sent, read)


def _own(value: Any) -> Any:
    """A copy of an output (a tensor or a sequence of them), which may be a view of the engine's memory."""
    return [_own(item) for item in value] if isinstance(value, list) else np.array(value)
