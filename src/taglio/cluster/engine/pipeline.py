"""Send requests through a deployment: inputs to the devices that read them, answers from those that write outputs.

Components send their outputs straight from device to device. If this process is the start device's host, it fetches its
messages, because no device can call it. The end of a device is detected by a call to it that otherwise never returns.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from taglio.cluster.engine.deploy import Deployment
from taglio.cluster.engine.host import FETCHES, WATCH, at_turn, post
from taglio.cluster.engine.library import ray
from taglio.cluster.engine.parcel import ComponentStep, Hop, Parcel, SessionStep, merged
from taglio.cluster.engine.replan import Planned
from taglio.cluster.engine.wiring import CALLER
from taglio.errors import BadData, with_kind


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
    """A request in flight, by its number in its pipeline."""

    request: int
    answers: "list[Future[Parcel]]"
    sent_s: float


class RequestPipeline:
    """A deployment with up to `lanes` requests in flight."""

    def __init__(self, deployment: Deployment, lanes: int, start: str) -> None:
        self.lanes = lanes
        self.deployment = deployment
        self._start = start
        actors, here, messages = deployment.actors, deployment.here, deployment.wiring.messages
        self._here = here
        self._pool = ThreadPoolExecutor(2 * lanes)  # a local component waits for its turn in a thread
        # Elsewhere: the hosts of each device, which take turns.
        away = {
            device: [actors[name] for name in names]
            for device, names in deployment.places.items()
            if names[0] in actors
        }
        to = {device: [post(actor) for actor in hosts] for device, hosts in away.items()}
        self._inputs = [
            (index, message, to.get(message.device))
            for index, message in enumerate(messages)
            if message.source == CALLER
        ]
        ours = {CALLER} if here is None else {CALLER, here.device}
        # Messages from other devices to this process, and from the local host to the caller.
        self._fetched = [
            (index, message.device == CALLER, [host.give.options(concurrency_group=FETCHES) for host in away[source]])
            for index, message in enumerate(messages)
            if message.device in ours and (source := message.source_device) in away
        ]
        self._own = [
            index
            for index, message in enumerate(messages)
            if message.device == CALLER and message.source_device not in away
        ]
        self._next = self._in_flight = 0
        self._asked: dict[int, list[Future[Parcel]]] = {}
        self._answered_s = 0.0  # the last answer
        self._gone: Future[str] = Future()
        # Called, in any thread, when an answer has arrived or a device has ended.
        self.changed: Callable[[], None] = lambda: None
        for name, actor in actors.items():
            self._watch(name, actor)

    def room(self) -> bool:
        """Whether another request may be sent."""
        return self._in_flight < self.lanes

    def send(self, feed: Mapping[str, np.ndarray], session: SessionStep | None = None) -> Flight:
        """Send a request, of a model with states a step of a session. Raises Broken if the engine refuses it."""
        request, self._next = self._next, self._next + 1
        sent = time.monotonic()
        try:
            for index, message, to in self._inputs:
                parcel = Parcel(request, index, "", {name: feed[name] for name in message.names}, session=session)
                if to is not None:
                    at_turn(to, request)(parcel)
                else:
                    self._take(parcel)
            self._ask(request)
            answers = self._asked.pop(request)
            if self._here is not None:
                answers += [self._here.promise(request, index) for index in self._own]
        except Exception as error:
            raise Broken(with_kind(error)) from None
        self._in_flight += 1
        for answer in answers:
            answer.add_done_callback(lambda _: self.changed())
        return Flight(request, answers, sent)

    def settled(self, flight: Flight, patience_s: float) -> bool:
        """Whether `wait` would return or raise at once."""
        answered = all(answer.done() for answer in flight.answers)
        return answered or self._gone.done() or not self._left_s(flight, patience_s)

    def _left_s(self, flight: Flight, patience_s: float) -> float:
        """Seconds to wait for an answer: from its sending, or from the answer before it."""
        return max(0.0, max(flight.sent_s, self._answered_s) + patience_s - time.monotonic())

    def wait(self, flight: Flight, patience_s: float) -> AnsweredRequest:
        """The answer to a request that was sent. Raises Broken if there is none within `patience_s` of its sending and
        of the answer before it, and the error of a component that failed."""
        parcels = [self._get(answer, flight, patience_s) for answer in flight.answers]
        answered, request = time.monotonic(), flight.request
        self._answered_s, self._in_flight = answered, self._in_flight - 1
        if self._here is not None:
            for index in self._own:
                self._here.give(request, index)  # removes it
        with contextlib.suppress(Exception):  # a lost device is noticed when the next request is sent
            self._ask(self._next)
        outputs, steps, hops = merged(parcels)
        if wrong := {parcel.request for parcel in parcels} - {request}:
            raise BadData(f"request {request} was answered with request {wrong.pop()}")
        ordered = [_own(outputs[name]) for name in self.deployment.manifest.without_states()[1]]
        ours = tuple(map(self._step, steps)), tuple(map(self._hop, hops))
        return AnsweredRequest(request, ordered, flight.sent_s, answered, *ours)

    def _ask(self, request: int) -> None:
        """Start fetching messages for this process from other devices, if not done yet. Each call takes half a
        millisecond of CPU, so this happens before the request, while nothing waits."""
        if request in self._asked:
            return
        answers = []
        for index, last, gives in self._fetched:
            coming = at_turn(gives, request).remote(request, index).future()
            if last:
                answers.append(coming)
            else:
                coming.add_done_callback(self._arrived)
        self._asked[request] = answers

    def _arrived(self, coming: "Future[Parcel]") -> None:
        if not coming.cancelled() and coming.exception() is None:  # else its device has ended, see `_watch`
            self._take(coming.result())

    def _take(self, parcel: Parcel) -> None:
        """Deliver a message to the local host."""
        assert self._here is not None
        if not self.deployment.actors:  # no other device to send to or receive from
            self._here.take(parcel)
            return
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._pool.submit(self._here.take, parcel)

    def _get(self, answer: "Future[Parcel]", flight: Flight, patience_s: float) -> Parcel:
        if not answer.done():
            either: list[Future[Any]] = [answer, self._gone]
            wait(either, timeout=self._left_s(flight, patience_s), return_when=FIRST_COMPLETED)
        if answer.done():
            try:
                return answer.result()
            except Exception as error:
                raise Broken(with_kind(error)) from None
        if self._gone.done():
            raise Broken(f'device "{self._gone.result()}" stopped answering')
        raise Broken(f"no answer within {patience_s:.0f} s")

    def _watch(self, name: str, actor: Any) -> None:
        """Notice when a host's process ends."""

        def ended(_: object) -> None:
            with contextlib.suppress(InvalidStateError):  # another host ended first
                self._gone.set_result(name)
                self.changed()

        actor.stay.options(concurrency_group=WATCH).remote().future().add_done_callback(ended)

    def close(self) -> None:
        """End the devices' hosts. Never raises and never waits, because the pipeline may be broken."""
        for actor in self.deployment.actors.values():
            with contextlib.suppress(Exception):
                ray().kill(actor)
        self._pool.shutdown(wait=False, cancel_futures=True)

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
