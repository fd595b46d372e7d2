"""Send requests, collect their answers in order, and send again those that failed. Plans nothing itself."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
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
    """A request: its flight once it is sent, and why it cannot be sent at all."""

    number: int
    feed: Feed
    session: Steps | None
    last: bool
    came_s: float = field(default_factory=time.monotonic)
    attempts: int = 0
    flight: Flight | None = None
    refused: Exception | None = None


class Runner:
    """Answers requests from any thread through a pipeline that is replaced when it breaks.

    A request is kept until it is answered, so none is lost, and each is answered once. States of sessions stay on the
    devices: if one is lost, each session's answered steps are run again before its next, but not those of the session
    with the most inputs where all sessions' exceed `kept_bytes`.
    """

    def __init__(self, recovery: Recovery, patience_s: float, kept_bytes: int = 100_000_000) -> None:
        self.interruptions: list[Interruption] = []
        self._recovery = recovery
        self._patience_s, self._kept_bytes = patience_s, kept_bytes
        self._requests = count()
        self._waiting: list[_Request] = []  # without an answer, the oldest first
        # Sessions in progress: while there are any, no other plan takes over, which would not know their states.
        self._sessions: WeakSet[Steps] = WeakSet()
        self._reason = "a step failed"
        self._broken = False  # the pipeline, and there was no other
        self._closed = False
        self._changed = threading.Condition()  # held to change any of these
        self.pipeline = recovery.begin()

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
        with self._changed:
            self._changed.wait_for(lambda: not self._full())
            request = self._accept(feed, session, last=last)
        return self._answer(request).outputs

    def answers(self, feeds: Iterable[Feed], session: Steps | None = None) -> Iterator[AnsweredRequest]:
        """An answer for each of `feeds`, in order, numbered from 0; the next feed is taken when a lane is free, and as
        a step of `session` when the step before it is answered. Raises as `run`."""
        self._requests, coming = count(), deque[_Request]()
        for feed in feeds:
            while coming and (session is not None or self._full()):
                yield self._answer(coming.popleft())
            coming.append(self._accept(feed, session))
        while coming:
            yield self._answer(coming.popleft())

    def close(self) -> None:
        """End the devices' hosts. Requests without an answer are refused."""
        self._closed = True
        self.pipeline.give_up("the runner was closed")
        self._recovery.close()
        self.pipeline.close()

    def _full(self) -> bool:
        """Whether an answer must come before another request is sent: no lane is free, or another plan waits for the
        requests in flight to be answered."""
        return len(self._waiting) >= self.lanes or (bool(self._waiting) and self._may_switch())

    def _may_switch(self) -> bool:
        return not self._sessions and self._recovery.ready()

    def _accept(self, feed: Feed, session: Steps | None, *, last: bool = False) -> _Request:
        with self._changed:
            request = _Request(next(self._requests), feed, session, last)
            if not self._waiting and self._may_switch():
                self.pipeline.close()
                self.pipeline, self._broken = self._recovery.take_over(request.number), False
                _LOG.warning("request %d: first plan again: its devices and links are back", request.number)
            if session is not None:
                self._sessions.add(session)
            self._waiting.append(request)
            self._send()
        return request

    def _answer(self, request: _Request) -> AnsweredRequest:
        """Wait for the answer to a request: the error of a component that failed on it, or BadDevice if no device is
        left, costs no other request its answer."""
        is_answered = False
        try:
            answer = self._awaited(request)
            is_answered = True
        finally:
            with self._changed:
                self._waiting.remove(request)
                if request.session is not None:
                    self._record(request.session, request, is_answered=is_answered)
                if not self._sessions:
                    self._recovery.watch()
                self._send()  # requests without a lane after a recovery
                self._changed.notify_all()
        return answer

    def _record(self, session: Steps, request: _Request, *, is_answered: bool) -> None:
        """Note in its session that a step has ended."""
        if not is_answered:  # some components may have run it
            session.at = None
            return
        session.keep(request.feed)
        if request.last:
            self._sessions.discard(session)
        elif sum(session.kept_bytes for session in self._sessions) > self._kept_bytes:
            max(self._sessions, key=lambda session: session.kept_bytes).forget()

    def _awaited(self, request: _Request) -> AnsweredRequest:
        while True:
            with self._changed:
                while request.flight is None and request.refused is None:  # no lane: another plan may have fewer
                    self._changed.wait(0.1)
                    self._send()
                if request.refused is not None:
                    raise request.refused
                pipeline, flight, planned = self.pipeline, request.flight, self._recovery.running
            assert flight is not None, "it was sent or refused"
            try:
                answer = pipeline.wait(flight, self._patience_s)
            except Broken as error:
                with self._changed:
                    if request.flight is flight:  # otherwise another thread has met the loss before
                        self._again(str(error))
            else:
                return replace(
                    answer, request=request.number, sent_s=request.came_s, attempts=request.attempts, planned=planned
                )

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
        self.pipeline.give_up(reason)
        for request in self._waiting:
            request.flight = None
        if self._waiting and (first := self._waiting[0]).attempts >= 5:
            first.refused = BadDevice(f"request {first.number} failed {first.attempts} times; last error: {reason}")
        left = [request for request in self._waiting if request.refused is None]
        if not left:
            return
        try:
            if self._closed:
                raise BadDevice(reason)
            self.pipeline, self._broken = self._recovery.recover(reason), False
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
