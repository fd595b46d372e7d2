"""Requests through a deployment: inputs go to the devices that read them, answers come from those that write outputs.

What components write goes straight from device to device. Where this process is the start device's host, what it reads
is fetched: nobody can call it. A device that ends is noticed by a call to it that never returns otherwise.
"""

import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from taglio.cluster.engine.deploy import Deployment
from taglio.cluster.engine.host import FETCHES, WATCH, post
from taglio.cluster.engine.library import ray
from taglio.cluster.engine.parcel import Hop, Parcel, Step
from taglio.cluster.engine.wiring import CALLER
from taglio.errors import BadData


class Broken(Exception):
    """A request cannot be answered by this pipeline any more."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One request's outputs in the model's order, when it was sent and answered, and what it met, by our own clock.

    `attempts` counts how often it was sent.
    """

    request: int
    outputs: list[np.ndarray]
    sent_s: float
    answered_s: float
    steps: tuple[Step, ...]
    hops: tuple[Hop, ...]
    attempts: int = 1

    @property
    def latency_s(self) -> float:
        """Seconds from sending to answer."""
        return self.answered_s - self.sent_s


@dataclass(frozen=True, slots=True)
class _Flight:
    answers: "list[Future[Parcel]]"
    sent_s: float


class Pipeline:
    """A deployment with up to `lanes` requests on their way."""

    def __init__(self, deployment: Deployment, lanes: int, start: str) -> None:
        self.lanes = lanes
        self._deployment = deployment
        self._start = start
        actors, here, messages = deployment.actors, deployment.here, deployment.wiring.messages
        self._here = here
        self._pool = ThreadPoolExecutor(2 * lanes)  # a component of ours waits its turn in one
        to = {name: post(actor) for name, actor in actors.items()}
        self._inputs = [
            (index, each, to.get(each.device)) for index, each in enumerate(messages) if each.source == CALLER
        ]
        ours = {CALLER} if here is None else {CALLER, here.device}
        # What comes to us from others, and what our own host has for the caller.
        self._fetched = [
            (index, each.device == CALLER, actors[each.source_device].give.options(concurrency_group=FETCHES))
            for index, each in enumerate(messages)
            if each.device in ours and each.source_device in actors
        ]
        self._own = [i for i, each in enumerate(messages) if each.device == CALLER and each.source_device not in actors]
        self._flights: dict[int, _Flight] = {}
        self._asked: dict[int, list[Future[Parcel]]] = {}
        self._gone: Future[str] = Future()
        for name, actor in actors.items():
            self._watch(name, actor)

    def room(self) -> bool:
        """Whether another request may be sent."""
        return len(self._flights) < self.lanes

    def holds(self, request: int) -> bool:
        """Whether a request is on its way."""
        return request in self._flights

    def send(self, request: int, feed: Mapping[str, np.ndarray], session: tuple[str, int] | None = None) -> None:
        """Send a request, of a session its step of that number. Raises Broken where the engine refuses it."""
        sent = time.monotonic()
        try:
            for index, message, to in self._inputs:
                parcel = Parcel(request, index, "", {name: feed[name] for name in message.names}, session=session)
                if to is not None:
                    to(parcel)
                else:
                    self._take(parcel)
            self._ask(request)
            answers = self._asked.pop(request)
            if self._here is not None:
                answers += [self._here.promise(request, index) for index in self._own]
        except Exception as error:
            raise Broken(_line(error)) from None
        self._flights[request] = _Flight(answers, sent)

    def wait(self, request: int, patience_s: float) -> Answer:
        """The answer to a request that was sent. Raises Broken where there is none, or none within `patience_s`; what
        went wrong in a component, as its device said it."""
        flight = self._flights[request]
        parcels = [self._get(each, patience_s) for each in flight.answers]
        answered = time.monotonic()
        del self._flights[request]
        if self._here is not None:
            for index in self._own:
                self._here.give(request, index)  # and forget it
        with contextlib.suppress(Exception):  # who is gone is met when the next request is sent
            self._ask(max([request, *self._flights]) + 1)
        outputs: dict[str, np.ndarray] = {}
        steps: dict[str, Step] = {}
        hops: dict[tuple[int, str], Hop] = {}
        for parcel in parcels:
            if parcel.error is not None:
                raise parcel.error
            if parcel.request != request:
                raise BadData(f"request {request} was answered with request {parcel.request}")
            outputs.update(parcel.tensors)
            steps.update((each.component, each) for each in parcel.steps)
            hops.update(((each.message, each.target), each) for each in parcel.hops)
        ordered = [np.array(outputs[name]) for name in self._deployment.manifest.without_states()[1]]
        return Answer(
            request, ordered, flight.sent_s, answered,
            tuple(self._step(each) for each in steps.values()), tuple(self._hop(each) for each in hops.values()),
        )  # fmt: skip

    def _ask(self, request: int) -> None:
        """Ask for what others will have for us, unless that was done. Each call takes this processor half a
        millisecond, so it is done before the request is there, while nobody waits."""
        if request in self._asked:
            return
        answers = []
        for index, last, give in self._fetched:
            coming = give.remote(request, index).future()
            if last:
                answers.append(coming)
            else:
                coming.add_done_callback(self._arrived)
        self._asked[request] = answers

    def _arrived(self, coming: "Future[Parcel]") -> None:
        if not coming.cancelled() and coming.exception() is None:  # else its device has ended, which is watched
            self._take(coming.result())

    def _take(self, parcel: Parcel) -> None:
        """A message to our own host."""
        assert self._here is not None
        if not self._deployment.actors:  # nobody to send to or to hear from meanwhile
            self._here.take(parcel)
            return
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._pool.submit(self._here.take, parcel)

    def _get(self, answer: "Future[Parcel]", patience_s: float) -> Parcel:
        if not answer.done():
            either: list[Future[Any]] = [answer, self._gone]
            wait(either, timeout=patience_s, return_when=FIRST_COMPLETED)
        if answer.done():
            try:
                return answer.result()
            except Exception as error:
                raise Broken(_line(error)) from None
        if self._gone.done():
            raise Broken(f'device "{self._gone.result()}" stopped answering')
        raise Broken(f"no answer within {patience_s:.0f} s")

    def _watch(self, name: str, actor: Any) -> None:
        """Learn when a host's process ends."""

        def ended(_: object) -> None:
            with contextlib.suppress(InvalidStateError):  # another one ended before
                self._gone.set_result(name)

        actor.stay.options(concurrency_group=WATCH).remote().future().add_done_callback(ended)

    def close(self) -> None:
        """End the devices' hosts. Never raises, and waits for nobody: what is closed may be broken."""
        for actor in self._deployment.actors.values():
            with contextlib.suppress(Exception):
                ray().kill(actor)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._flights = {}

    def _step(self, step: Step) -> Step:
        offset = self._deployment.clocks[step.device].offset_s
        return Step(step.component, step.device, step.ready_s - offset, step.start_s - offset, step.end_s - offset)

    def _hop(self, hop: Hop) -> Hop:
        """The hop by our own clock; ours stand in for the caller's ends."""
        clocks = self._deployment.clocks
        sent = hop.sent_s - (clocks[hop.source].offset_s if hop.source else 0.0)
        read = hop.read_s - (clocks[hop.target].offset_s if hop.target else 0.0)
        return Hop(hop.message, hop.source or self._start, hop.target or self._start, sent, read)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
