"""Answer requests in order, with one in flight per lane, and resend those that failed. Plans nothing itself."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from taglio.cluster.engine.pipeline import Answer, Broken, Pipeline
from taglio.cluster.engine.recover import Recovery
from taglio.errors import BadDevice

Feed = Mapping[str, np.ndarray]
_ATTEMPTS = 5
# Most steps and bytes of inputs kept of a session, to replay it if a device is lost with its state.
_REPLAYED, _REPLAYED_BYTES = 20_000, 100_000_000
# Progress lines; the same information is in the result.
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Interruption:
    """A failure: its reason, the number of requests sent again, and the seconds until a new pipeline was ready."""

    reason: str
    request: int
    resent: int
    recovery_s: float


@dataclass(slots=True)
class _Waiting:
    request: int
    feed: Feed
    sent_s: float
    attempts: int


class _Session:
    """A session in progress: its name, and the inputs of its answered steps while few enough to keep."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._kept: list[Feed] | None = []
        self._steps, self._bytes = 0, 0

    def keep(self, feed: Feed) -> None:
        """Keep the input of an answered step."""
        self._steps += 1
        self._bytes += sum(np.asarray(value).nbytes for value in feed.values())
        if self._bytes > _REPLAYED_BYTES or self._steps > _REPLAYED:
            self._kept = None
        elif self._kept is not None:
            self._kept.append(feed)

    def replay(self, pipeline: Pipeline, patience_s: float, reason: str) -> None:
        """Run the answered steps again. Raises Broken, and BadDevice if their inputs were too many to keep."""
        if self._kept is None:
            raise BadDevice(
                f'session "{self.name}" lost its state after {self._steps} steps ({reason}): at most {_REPLAYED} steps '
                f"or {_REPLAYED_BYTES / 1e6:.0f} MB of inputs are kept to run it again: start the session again"
            )
        for number, feed in enumerate(self._kept):
            pipeline.send(number, feed, (self.name, number))
            pipeline.wait(number, patience_s)


class Server:
    """Sends requests through a pipeline that is replaced when it breaks. A request stays queued until it is answered,
    so none is lost, and each is answered once, in order. `changed` is called, in any thread, when an answer has arrived
    or a device has ended."""

    def __init__(self, recovery: Recovery, patience_s: float, changed: Callable[[], None] = lambda: None) -> None:
        self.interruptions: list[Interruption] = []
        self._recovery = recovery
        self._patience_s = patience_s
        self._changed = changed
        self._session: _Session | None = None
        self._waiting: deque[_Waiting] = deque()
        self._requests = count()
        self._use(recovery.begin())

    def steps(self, feeds: Iterable[Feed], session: str) -> Iterator[Answer]:
        """An answer for each of `feeds`, the steps of a session, one after another. States stay on their devices; if a
        device is lost with them, the answered steps are run again through the next pipeline.

        Raises BadDevice if no device is left, or the session is too long to be run again.
        """
        self._session = _Session(session)
        self._requests = count()  # a session's requests are numbered by its steps
        try:
            for feed in feeds:
                self.send(feed)
                yield self.next()
                self._session.keep(feed)
        finally:
            self._session = None
            self._requests = count()

    def answers(self, feeds: Iterable[Feed]) -> Iterator[Answer]:
        """An answer for each of `feeds`, in order; the next feed is taken when a lane is free.

        Raises BadDevice if no device is left.
        """
        self._requests = count()
        for feed in feeds:
            while self.full():
                yield self.next()
            self.send(feed)
        while self._waiting:
            yield self.next()

    def full(self) -> bool:
        """Whether `next` must be called before another request can be sent: no lane is free, or another plan waits for
        the requests in flight to be answered."""
        return len(self._waiting) >= self.pipeline.lanes or (bool(self._waiting) and self._recovery.ready())

    def send(self, feed: Feed) -> None:
        """Send a request while `full` is false. Raises BadDevice if no device is left."""
        request = next(self._requests)
        if self._session is None and not self._waiting and self._recovery.ready():
            other = self._recovery.take_over(request)
            if other is not None:
                self.pipeline.close()
                self._use(other)
                _LOG.warning("request %d: another plan from here on: %s", request, self._recovery.switches[-1].reason)
        self._waiting.append(_Waiting(request, feed, time.monotonic(), 0))
        self._send(len(self._waiting) - 1)

    def settled(self) -> bool:
        """Whether `next` would not wait: the oldest request is answered, overdue, or lost with a device."""
        first = self._waiting[0]
        overdue = time.monotonic() - first.sent_s > self._patience_s
        return overdue or not self.pipeline.holds(first.request) or self.pipeline.settled(first.request)

    def next(self) -> Answer:
        """The answer to the oldest request. Raises the error of a component that failed on it, and BadDevice if no
        device is left; either costs no other request its answer."""
        first = self._waiting[0]
        try:
            answer = self._answer(first)
        finally:
            self._waiting.popleft()
        self._send(0)  # requests without a lane after a recovery
        if self._session is None:  # another plan would not know its states
            self._recovery.watch(answer)
        return replace(answer, sent_s=first.sent_s, attempts=first.attempts)

    def _answer(self, first: _Waiting) -> Answer:
        while True:
            try:
                if not self.pipeline.holds(first.request):  # it has had no lane, or no device was left
                    self._send(0)
                return self.pipeline.wait(first.request, self._patience_s)
            except Broken as error:
                self._again(str(error))

    def _use(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        pipeline.changed = self._changed

    def _send(self, first: int) -> None:
        for each in list(self._waiting)[first:]:
            if self.pipeline.holds(each.request):
                continue
            if not self.pipeline.room():
                return
            each.attempts += 1
            try:
                session = None if self._session is None else (self._session.name, each.request)
                self.pipeline.send(each.request, each.feed, session)
            except Broken as error:
                self._again(str(error))
                return

    def _again(self, reason: str) -> None:
        """Get a new pipeline, and send all waiting requests through it."""
        first = self._waiting[0]
        if first.attempts >= _ATTEMPTS:
            raise BadDevice(f"request {first.request} failed {_ATTEMPTS} times; last error: {reason}")
        begun = time.monotonic()
        self.pipeline.close()
        self._use(self._recovery.recover(reason))
        if self._session is not None:
            try:
                self._session.replay(self.pipeline, self._patience_s, reason)
            except Broken as error:
                first.attempts += 1
                self._again(str(error))
                return
        found = Interruption(reason, first.request, len(self._waiting), time.monotonic() - begun)
        self.interruptions.append(found)
        _LOG.warning(
            "request %d: %s; %d sent again after %.1f s", found.request, reason, found.resent, found.recovery_s
        )
        self._send(0)
