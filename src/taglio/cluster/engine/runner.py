"""Send requests, collect their answers in order, and send again those that failed. Plans nothing itself."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from queue import Empty, SimpleQueue
from weakref import WeakSet

import numpy as np

from taglio.cluster.engine.parcel import SessionStep
from taglio.cluster.engine.pipeline import AnsweredRequest, Broken, Flight, RequestPipeline
from taglio.cluster.engine.recover import Recovery
from taglio.components.build import Manifest
from taglio.errors import BadDevice, plural, with_kind

Feed = Mapping[str, np.ndarray]
# Bytes that a step counts besides its inputs: also steps with small inputs take time to be run again.
STEP_BYTES = 5_000
# Progress lines; the same information is in the result.
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Interruption:
    """A failure: its reason, the number of requests sent again, and the seconds until a new pipeline was ready."""

    reason: str
    request: int
    resent: int
    recovery_s: float


class Steps:
    """A session: how many of its steps were answered, whose devices have its states, and the inputs of its steps unless
    they are too many. Of one session, a step is sent after the one before it was answered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answered = 0
        self.at: RequestPipeline | None = None
        self.kept_bytes = 0
        self._kept: list[Feed] | None = []

    def keep(self, feed: Feed) -> None:
        """Count an answered step and keep its input."""
        self.answered += 1
        if self._kept is not None:
            self._kept.append(feed)
            self.kept_bytes += STEP_BYTES + sum(np.asarray(value).nbytes for value in feed.values())

    def forget(self) -> None:
        """Keep no inputs any more."""
        self._kept, self.kept_bytes = None, 0

    def restore(self, pipeline: RequestPipeline, patience_s: float, reason: str) -> None:
        """Run the answered steps again where the devices of `pipeline` do not have their states. Raises Broken, and
        BadDevice if the inputs were too many to keep."""
        if self.at is pipeline or not self.answered:
            self.at = pipeline
            return
        if self._kept is None:
            raise BadDevice(
                f'session "{self.name}" lost its state after {plural(self.answered, "step")} ({reason}), '
                "too many to keep their inputs and to run them again: start the session again"
            )
        for number, feed in enumerate(self._kept):
            pipeline.wait(pipeline.send(feed, SessionStep(self.name, number)), patience_s)
        self.at = pipeline


@dataclass(slots=True, eq=False)
class _Request:
    """A request and its answer to be; its flight once it is sent, and why it cannot be sent at all."""

    number: int
    feed: Feed
    session: Steps | None
    last: bool
    answer: "Future[AnsweredRequest]" = field(default_factory=Future)
    sent_s: float = 0.0
    attempts: int = 0
    flight: Flight | None = None
    refused: Exception | None = None


class Runner:
    """Answers requests from any thread through a pipeline that is replaced when it breaks.

    One thread sends the requests and takes their answers. A request stays queued until it is answered, so none is lost,
    and each is answered once, in order. States of sessions stay on the devices: if one is lost, each session's answered
    steps are run again before its next, but not those of the session with the most inputs where all sessions' exceed
    `kept_bytes`.
    """

    def __init__(self, recovery: Recovery, patience_s: float, kept_bytes: int = 100_000_000) -> None:
        self.interruptions: list[Interruption] = []
        self._recovery = recovery
        self._patience_s, self._kept_bytes = patience_s, kept_bytes
        self._requests = count()
        # None: an answer may have arrived, a device may have ended, or this is closed.
        self._events: SimpleQueue[_Request | None] = SimpleQueue()
        self._closed = False
        self._waiting: deque[_Request] = deque()
        # Sessions in progress: while there are any, no other plan takes over, which would not know their states.
        self._sessions: WeakSet[Steps] = WeakSet()
        self._reason = "a step failed"
        self._broken = False  # the pipeline, and there was no other
        self._use(recovery.begin())
        self._thread = threading.Thread(target=self._work, name="cluster runner", daemon=True)
        self._thread.start()

    @property
    def lanes(self) -> int:
        """Requests in flight at most."""
        return self.pipeline.lanes

    @property
    def manifest(self) -> Manifest:
        """The components of the plan that runs now: all plans have the same inputs, outputs and states."""
        return self.pipeline.deployment.manifest

    @property
    def predicted_s(self) -> float:
        """Predicted seconds from request to answer of the plan that runs now."""
        return self._recovery.running.plan.predicted_latency_s.value

    def run(self, feed: Feed, session: Steps | None = None, *, last: bool = False) -> list[np.ndarray]:
        """The model's outputs in its order, without states; with `session`, of its next (or its `last`) step. Raises
        the error of a component that cannot run `feed`, and BadDevice if no device is left; a later request finds
        devices that have come back."""
        return self._submit(feed, session, last=last).answer.result().outputs

    def answers(self, feeds: Iterable[Feed], session: Steps | None = None) -> Iterator[AnsweredRequest]:
        """An answer for each of `feeds`, in order, numbered from 0; the next feed is taken when a lane is free, and as
        a step of `session` when the step before it is answered. Raises as `run`."""
        self._requests, coming = count(), deque[_Request]()
        for feed in feeds:
            while len(coming) >= (self.lanes if session is None else 1):
                yield coming.popleft().answer.result()
            coming.append(self._submit(feed, session))
        while coming:
            yield coming.popleft().answer.result()

    def close(self) -> None:
        """End the devices' hosts, after the requests in flight if they are answered in time."""
        self._closed = True
        self._events.put(None)
        self._thread.join(self._patience_s)
        self._recovery.close()
        self.pipeline.close()

    def _submit(self, feed: Feed, session: Steps | None, *, last: bool = False) -> _Request:
        request = _Request(next(self._requests), feed, session, last)
        self._events.put(request)
        return request

    def _work(self) -> None:
        while self._waiting or not self._closed:
            try:
                request = self._events.get(timeout=1.0 if self._waiting else None)
            except Empty:  # the oldest may be overdue
                request = None
            if request is not None:
                while self._full():
                    self._settle()
                self._accept(request)
            while self._waiting and self._settled():
                self._settle()

    def _full(self) -> bool:
        """Whether an answer must be taken before another request is sent: no lane is free, or another plan waits for
        the requests in flight to be answered."""
        return len(self._waiting) >= self.lanes or (bool(self._waiting) and self._may_switch())

    def _may_switch(self) -> bool:
        return not self._sessions and self._recovery.ready()

    def _accept(self, request: _Request) -> None:
        if not self._waiting and self._may_switch():
            self.pipeline.close()
            self._use(self._recovery.take_over(request.number))
            reason = self._recovery.switches[-1].reason
            _LOG.warning("request %d: new plan from here on: %s", request.number, reason)
        if request.session is not None:
            self._sessions.add(request.session)
        request.sent_s = time.monotonic()
        self._waiting.append(request)
        self._send()

    def _settled(self) -> bool:
        """Whether the oldest request is answered, overdue, or lost with a device."""
        first = self._waiting[0]
        return first.flight is None or self.pipeline.settled(first.flight, self._patience_s)

    def _settle(self) -> None:
        """Take the answer to the oldest request: the error of a component that failed on it, or BadDevice if no device
        is left, costs no other request its answer."""
        first = self._waiting[0]
        try:
            answer = self._next(first)
        except Exception as error:
            first.answer.set_exception(error)
        else:
            first.answer.set_result(answer)

    def _next(self, first: _Request) -> AnsweredRequest:
        try:
            answer = self._answer(first)
        except Exception:
            if first.session is not None:  # some components may have run the step
                first.session.at = None
            raise
        finally:
            self._waiting.popleft()
        # Requests that are sent below may break the pipeline, and another plan then takes over: this one answered.
        answer = replace(
            answer,
            request=first.number,
            sent_s=first.sent_s,
            attempts=first.attempts,
            planned=self._recovery.running,
        )
        if first.session is not None:
            first.session.keep(first.feed)
            if first.last:
                self._sessions.discard(first.session)
            elif sum(session.kept_bytes for session in self._sessions) > self._kept_bytes:
                max(self._sessions, key=lambda session: session.kept_bytes).forget()
        if not self._sessions:
            self._recovery.watch()
        self._send()  # requests without a lane after a recovery
        return answer

    def _answer(self, first: _Request) -> AnsweredRequest:
        while True:
            if first.flight is None and first.refused is None:  # it has had no lane, or no device was left
                self._send()
            if first.refused is not None:
                raise first.refused
            assert first.flight is not None, "there is always a lane for the oldest"
            try:
                return self.pipeline.wait(first.flight, self._patience_s)
            except Broken as error:
                self._again(str(error))

    def _use(self, pipeline: RequestPipeline) -> None:
        self.pipeline, self._broken = pipeline, False
        pipeline.changed = lambda: self._events.put(None)

    def _send(self) -> None:
        """Send the waiting requests for which there are lanes."""
        if self._broken:
            self._again(self._reason)
            return
        for request in self._waiting:
            if request.flight is not None or request.refused is not None:
                continue
            if not self.pipeline.room():
                return
            request.attempts += 1
            try:
                step = None
                if request.session is not None:
                    request.session.restore(self.pipeline, self._patience_s, self._reason)
                    step = SessionStep(request.session.name, request.session.answered, request.last)
                request.flight = self.pipeline.send(request.feed, step)
            except Broken as error:
                self._again(str(error))
                return
            except Exception as error:  # its session cannot be run again
                request.refused = error

    def _again(self, reason: str) -> None:
        """Get a new pipeline, and send all waiting requests through it; without one, refuse them."""
        begun, self._reason, self._broken = time.monotonic(), reason, True
        for request in self._waiting:
            request.flight = None
        if self._waiting and (first := self._waiting[0]).attempts >= 5:
            first.refused = BadDevice(f"request {first.number} failed {first.attempts} times; last error: {reason}")
        left = [request for request in self._waiting if request.refused is None]
        if not left:
            return
        try:
            self._use(self._recovery.recover(reason))
        except Exception as error:  # of planning, of building, or of the disk
            for request in left:
                request.refused = error if isinstance(error, BadDevice) else BadDevice(f"{reason}; {with_kind(error)}")
            return
        interruption = Interruption(reason, left[0].number, len(left), time.monotonic() - begun)
        self.interruptions.append(interruption)
        _LOG.warning(
            "request %d: %s; %d sent again after %.1f s",
            interruption.request,
            reason,
            interruption.resent,
            interruption.recovery_s,
        )
        self._send()
