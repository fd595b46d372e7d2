"""Answer requests in order, with one in flight per lane, and resend those that failed. Plans nothing itself."""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

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
    so none is lost, and each is answered once, in order."""

    def __init__(self, recovery: Recovery, patience_s: float) -> None:
        self.pipeline = recovery.begin()
        self.interruptions: list[Interruption] = []
        self._recovery = recovery
        self._patience_s = patience_s
        self._session: _Session | None = None

    def steps(self, feeds: Iterable[Feed], session: str) -> Iterator[Answer]:
        """An answer for each of `feeds`, the steps of a session, one after another. States stay on their devices; if a
        device is lost with them, the answered steps are run again through the next pipeline.

        Raises BadDevice if no device is left, or the session is too long to be run again.
        """
        self._session = _Session(session)
        try:
            for number, feed in enumerate(feeds):
                waiting = deque([_Waiting(number, feed, time.monotonic(), 0)])
                self._send(waiting, 0)
                yield self._next(waiting)
                self._session.keep(feed)
        finally:
            self._session = None

    def answers(self, feeds: Iterable[Feed]) -> Iterator[Answer]:
        """An answer for each of `feeds`, in order; the next feed is taken when a lane is free.

        Raises BadDevice if no device is left.
        """
        waiting: deque[_Waiting] = deque()
        for request, feed in enumerate(feeds):
            while len(waiting) >= self.pipeline.lanes:
                yield self._next(waiting)
            if self._recovery.ready():  # first answer the requests in flight
                while waiting:
                    yield self._next(waiting)
                other = self._recovery.take_over(request)
                if other is not None:
                    self.pipeline.close()
                    self.pipeline = other
                    _LOG.warning(
                        "request %d: another plan from here on: %s", request, self._recovery.switches[-1].reason
                    )
            waiting.append(_Waiting(request, feed, time.monotonic(), 0))
            self._send(waiting, len(waiting) - 1)
        while waiting:
            yield self._next(waiting)

    def _next(self, waiting: deque[_Waiting]) -> Answer:
        while True:
            first = waiting[0]
            try:
                answer = self.pipeline.wait(first.request, self._patience_s)
            except Broken as error:
                self._again(waiting, str(error))
                continue
            waiting.popleft()
            self._send(waiting, 0)  # requests without a lane after a recovery
            if self._session is None:  # another plan would not know its states
                self._recovery.watch(answer)
            return replace(answer, sent_s=first.sent_s, attempts=first.attempts)

    def _send(self, waiting: deque[_Waiting], first: int) -> None:
        for each in list(waiting)[first:]:
            if self.pipeline.holds(each.request):
                continue
            if not self.pipeline.room():
                return
            each.attempts += 1
            try:
                session = None if self._session is None else (self._session.name, each.request)
                self.pipeline.send(each.request, each.feed, session)
            except Broken as error:
                self._again(waiting, str(error))
                return

    def _again(self, waiting: deque[_Waiting], reason: str) -> None:
        """Get a new pipeline, and send all waiting requests through it."""
        if waiting[0].attempts >= _ATTEMPTS:
            raise BadDevice(f"request {waiting[0].request} failed {_ATTEMPTS} times; last error: {reason}")
        begun = time.monotonic()
        self.pipeline.close()
        self.pipeline = self._recovery.recover(reason)
        if self._session is not None:
            try:
                self._session.replay(self.pipeline, self._patience_s, reason)
            except Broken as error:
                waiting[0].attempts += 1
                self._again(waiting, str(error))
                return
        found = Interruption(reason, waiting[0].request, len(waiting), time.monotonic() - begun)
        self.interruptions.append(found)
        _LOG.warning(
            "request %d: %s; %d sent again after %.1f s", found.request, reason, found.resent, found.recovery_s
        )
        self._send(waiting, 0)
