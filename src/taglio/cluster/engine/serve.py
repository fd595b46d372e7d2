"""Answer requests in order, as many on their way as there are lanes; send again what broke. Plans nothing itself."""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from taglio.cluster.engine.pipeline import Answer, Broken
from taglio.cluster.engine.recover import Recovery
from taglio.errors import BadDevice

Feed = Mapping[str, np.ndarray]
_ATTEMPTS = 5
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


class Server:
    """Requests through a pipeline that is replaced when it breaks. A request keeps its place until it is answered, so
    none is lost, and only its place's answer is given, so none is answered twice."""

    def __init__(self, recovery: Recovery, patience_s: float) -> None:
        self.pipeline = recovery.begin()
        self.interruptions: list[Interruption] = []
        self._recovery = recovery
        self._patience_s = patience_s

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
                self.pipeline.send(each.request, each.feed)
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
        found = Interruption(reason, waiting[0].request, len(waiting), time.monotonic() - begun)
        self.interruptions.append(found)
        _LOG.warning(
            "request %d: %s; %d sent again after %.1f s", found.request, reason, found.resent, found.recovery_s
        )
        self._send(waiting, 0)
