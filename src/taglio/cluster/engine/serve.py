"""Answer requests in order, as many on their way as there are lanes; send again what broke. Plans nothing itself."""

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
# What is kept of a session, to run it again where a device is lost with its state.
_REPLAYED, _REPLAYED_BYTES = 20_000, 100_000_000
# A line for whoever watches; the same is in the result.
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Interruption:
    """What broke, how many requests were sent again, and the seconds until a pipeline stood again."""

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
    """A session under way: its name, and the inputs of the steps that were answered, as long as they are few enough to
    be kept."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._kept: list[Feed] | None = []
        self._steps, self._bytes = 0, 0

    def keep(self, feed: Feed) -> None:
        """A step was answered."""
        self._steps += 1
        self._bytes += sum(np.asarray(value).nbytes for value in feed.values())
        if self._bytes > _REPLAYED_BYTES or self._steps > _REPLAYED:
            self._kept = None
        elif self._kept is not None:
            self._kept.append(feed)

    def replay(self, pipeline: Pipeline, patience_s: float, reason: str) -> None:
        """Run what was answered once more. Raises Broken, and BadDevice where it is not kept."""
        if self._kept is None:
            raise BadDevice(
                f'session "{self.name}" lost its state after {self._steps} steps ({reason}): at most {_REPLAYED} steps '
                f"or {_REPLAYED_BYTES / 1e6:.0f} MB of inputs are kept to run it again: begin it again"
            )
        for number, feed in enumerate(self._kept):
            pipeline.send(number, feed, (self.name, number))
            pipeline.wait(number, patience_s)


class Server:
    """Requests through a pipeline that is replaced when it breaks. A request keeps its place until it is answered, so
    none is lost, and only its place's answer is given, so none is answered twice."""

    def __init__(self, recovery: Recovery, patience_s: float) -> None:
        self.pipeline = recovery.begin()
        self.interruptions: list[Interruption] = []
        self._recovery = recovery
        self._patience_s = patience_s
        self._session: _Session | None = None

    def steps(self, feeds: Iterable[Feed], session: str) -> Iterator[Answer]:
        """An answer for each of `feeds`, the steps of a session, one after another, of a model with states: they stay
        on their devices. A device that is lost takes them along, and what was answered is run once more through the
        next pipeline.

        Raises BadDevice where nothing is left to answer with, or the session is too long to be run again.
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
        """An answer for each of `feeds`, in their order; a feed is taken when there is room for it.

        Raises BadDevice where nothing is left to answer with.
        """
        waiting: deque[_Waiting] = deque()
        for request, feed in enumerate(feeds):
            while len(waiting) >= self.pipeline.lanes:
                yield self._next(waiting)
            if self._recovery.ready():  # what the running plan holds is answered first
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
            self._send(waiting, 0)  # what had no lane after a recovery
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
        """A new pipeline, and all that waits sent through it."""
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
