"""Answer requests in order, with one in flight per lane, and resend those that failed. Plans nothing itself."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from weakref import WeakSet

import numpy as np

from taglio.cluster.engine.parcel import SessionStep
from taglio.cluster.engine.pipeline import AnsweredRequest, Broken, RequestPipeline
from taglio.cluster.engine.recover import Recovery
from taglio.errors import BadDevice, TaglioError, plural, with_kind

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
class _Waiting:
    """A request, its number in the pipeline once it is sent, and why it cannot be sent at all."""

    request: int
    feed: Feed
    session: Steps | None
    last: bool
    sent_s: float
    attempts: int = 0
    flight: int | None = None
    refused: TaglioError | None = None


class Server:
    """Sends requests through a pipeline that is replaced when it breaks. A request stays queued until it is answered,
    so none is lost, and each is answered once, in order. States of sessions stay on the devices: if one is lost, each
    session's answered steps are run again before its next, but not those of the session with the most inputs where all
    sessions' exceed `kept_bytes`. `changed` is called, in any thread, when an answer has arrived or a device has
    ended."""

    def __init__(
        self,
        recovery: Recovery,
        patience_s: float,
        changed: Callable[[], None] = lambda: None,
        kept_bytes: int = 100_000_000,
    ) -> None:
        self.interruptions: list[Interruption] = []
        self._recovery = recovery
        self._patience_s = patience_s
        self._changed, self._kept_bytes = changed, kept_bytes
        self._waiting: deque[_Waiting] = deque()
        self._requests = count()
        # Sessions in progress: while there are any, no other plan takes over, which would not know their states.
        self._sessions: WeakSet[Steps] = WeakSet()
        self._reason = "a step failed"
        self._broken = False  # the pipeline, and there was no other
        self._use(recovery.begin())

    def answers(self, feeds: Iterable[Feed], session: Steps | None = None) -> Iterator[AnsweredRequest]:
        """An answer for each of `feeds`, in order; the next feed is taken when a lane is free, and as a step of
        `session` when the step before it is answered.

        Raises BadDevice if no device is left, or the session is lost and too long to be run again.
        """
        self._requests = count()
        for feed in feeds:
            while self.full() or (session is not None and self._waiting):
                yield self.next()
            self.send(feed, session)
        while self._waiting:
            yield self.next()

    def full(self) -> bool:
        """Whether `next` must be called before another request can be sent: no lane is free, or another plan waits for
        the requests in flight to be answered."""
        return len(self._waiting) >= self.pipeline.lanes or (bool(self._waiting) and self._may_switch())

    def _may_switch(self) -> bool:
        return not self._sessions and self._recovery.ready()

    def send(self, feed: Feed, session: Steps | None = None, *, last: bool = False) -> None:
        """Send a request while `full` is false; with `session`, its next (or its `last`) step. `next` raises what goes
        wrong."""
        request = next(self._requests)
        if not self._waiting and self._may_switch() and (other := self._recovery.take_over(request)) is not None:
            self.pipeline.close()
            self._use(other)
            _LOG.warning("request %d: new plan from here on: %s", request, self._recovery.switches[-1].reason)
        if session is not None:
            self._sessions.add(session)
        self._waiting.append(_Waiting(request, feed, session, last, time.monotonic()))
        self._send()

    def settled(self) -> bool:
        """Whether `next` would not wait: the oldest request is answered, overdue, or lost with a device."""
        first = self._waiting[0]
        return first.flight is None or self.pipeline.settled(first.flight, self._patience_s)

    def next(self) -> AnsweredRequest:
        """The answer to the oldest request. Raises the error of a component that failed on it, and BadDevice if no
        device is left; either costs no other request its answer."""
        first = self._waiting[0]
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
            request=first.request,
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

    def _answer(self, first: _Waiting) -> AnsweredRequest:
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
        pipeline.changed = self._changed

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
            except TaglioError as error:  # its session cannot be run again
                request.refused = error

    def _again(self, reason: str) -> None:
        """Get a new pipeline, and send all waiting requests through it; without one, refuse them."""
        begun, self._reason, self._broken = time.monotonic(), reason, True
        for request in self._waiting:  # their numbers were the broken pipeline's
            request.flight = None
        if self._waiting and (first := self._waiting[0]).attempts >= 5:
            first.refused = BadDevice(f"request {first.request} failed {first.attempts} times; last error: {reason}")
        left = [request for request in self._waiting if request.refused is None]
        if not left:
            return
        try:
            self._use(self._recovery.recover(reason))
        except Exception as error:  # of planning, of building, or of the disk
            for request in left:
                request.refused = error if isinstance(error, BadDevice) else BadDevice(f"{reason}; {with_kind(error)}")
            return
        interruption = Interruption(reason, left[0].request, len(left), time.monotonic() - begun)
        self.interruptions.append(interruption)
        _LOG.warning(
            "request %d: %s; %d sent again after %.1f s",
            interruption.request,
            reason,
            interruption.resent,
            interruption.recovery_s,
        )
        self._send()
