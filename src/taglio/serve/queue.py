"""A bounded queue of requests per model, which runs as many batches at once as the model allows.

Everything here happens in one event loop, except the runs, which have threads. Independent of protocols.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np

from taglio.errors import plural, with_kind
from taglio.serve.refusals import Draining, Overloaded, Refusal, TooLate, Unavailable, failed
from taglio.serve.served import SequenceStep, ServedModel

_LOG = logging.getLogger(__name__)
Answer = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Ran:
    """One batch: arrival of each of its requests, start and end of the run (all `time.perf_counter`)."""

    came_s: tuple[float, ...]
    began_s: float
    ended_s: float


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    feed: Mapping[str, np.ndarray]
    step: SequenceStep | None
    answer: "asyncio.Future[Answer]"
    came_s: float = field(default_factory=time.perf_counter)

    @property
    def rows(self) -> int:
        return len(next(iter(self.feed.values())))

    @property
    def sequence(self) -> int | str | None:
        return None if self.step is None else self.step.sequence

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...] | None:
        """Those of the inputs without their first dimension, in which requests of a batch are alike. None for one that
        runs alone: a step of a sequence, or inputs of different rows."""
        if self.step is not None or len({len(value) for value in self.feed.values()}) > 1:
            return None
        return tuple(self.feed[name].shape[1:] for name in sorted(self.feed))


class ModelQueue:
    """A model, its queue, and a thread per batch that may run at once; the runtime computes with its own threads."""

    def __init__(
        self, model: ServedModel, most_waiting: int = 64, after_batch: Callable[[Ran], None] | None = None
    ) -> None:
        """`most_waiting` requests wait at most; `after_batch` is called with every batch that ran."""
        self.model = model
        self._most_waiting = most_waiting
        self._after_batch = after_batch
        self._waiting: list[_QueuedRequest] = []
        self._runs: list[list[_QueuedRequest]] = []
        self._logged = ""
        self._closed = False
        self._begun: SimpleQueue[tuple[list[_QueuedRequest], asyncio.AbstractEventLoop]] = SimpleQueue()
        for _ in range(model.at_once):
            threading.Thread(target=self._work, name=f"{model.name} {model.version}", daemon=True).start()

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return not self._closed

    @property
    def idle(self) -> bool:
        """Whether a request would run at once."""
        return not self._waiting and len(self._runs) < self.model.at_once

    async def answer(
        self, feed: Mapping[str, np.ndarray], timeout_s: float | None = None, step: SequenceStep | None = None
    ) -> Answer:
        """The model's outputs. Steps of a sequence run in order of arrival. Cancelling removes the request unless it is
        running. Raises Overloaded, Draining, TooLate after `timeout_s`, and the refusal of a run that failed."""
        if self._closed:
            raise Draining("the server is shutting down: send the request to another server")
        if len(self._waiting) >= self._most_waiting:
            raise Overloaded(f"{self.model.name} has {plural(len(self._waiting), 'request')} waiting: try again later")
        request = _QueuedRequest(feed, step, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        try:
            self._begin()
            return await asyncio.wait_for(request.answer, timeout_s)
        except TimeoutError:
            raise TooLate("its deadline passed before it was answered") from None
        finally:
            if request in self._waiting:
                self._waiting.remove(request)

    async def close(self, patience_s: float) -> int:
        """Accept no more requests, and wait for the accepted ones. Returns how many were not answered in time."""
        self._closed = True
        accepted = [request.answer for batch in [self._waiting, *self._runs] for request in batch]
        if not accepted:
            return 0
        _, late = await asyncio.wait(accepted, timeout=patience_s)
        return len(late)

    def _begin(self) -> None:
        """Begin as many runs as the model allows now."""
        while self._waiting and len(self._runs) < self.model.at_once and (batch := self._next()):
            for request in batch:
                self._waiting.remove(request)
            self._runs.append(batch)
            self._begun.put((batch, asyncio.get_running_loop()))

    def _next(self) -> list[_QueuedRequest]:
        """The next batch; empty if no request may run now."""
        running = {batch[0].sequence for batch in self._runs} - {None}
        waiting = [request for request in self._waiting if not request.answer.done()]
        first = next((request for request in waiting if request.sequence not in running), None)
        if first is None:
            return []
        batch, most = [first], self.model.way.joined
        waiting.remove(first)
        if most == 1 or not waiting or (shapes := first.shapes) is None:
            return batch
        rows = first.rows
        for request in waiting:
            if request.shapes != shapes or rows + request.rows > most:
                break
            batch.append(request)
            rows += request.rows
        return batch

    def _work(self) -> None:
        """Run batches, in a thread."""
        while True:
            batch, loop = self._begun.get()
            began = time.perf_counter()
            answers = self._answers(batch)
            with suppress(RuntimeError):  # the server ended before this run
                loop.call_soon_threadsafe(self._end, batch, answers, began, time.perf_counter())
            del batch, answers  # they hold tensors

    def _end(self, batch: list[_QueuedRequest], answers: list[Answer | Refusal], began: float, ended: float) -> None:
        self._runs.remove(batch)
        self._begin()
        for request, answer in zip(batch, answers, strict=True):
            if request.answer.done():  # its client has left
                continue
            if isinstance(answer, Refusal):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
        if self._after_batch:
            self._after_batch(Ran(tuple(request.came_s for request in batch), began, ended))

    def _answers(self, batch: list[_QueuedRequest]) -> list[Answer | Refusal]:
        """What each request gets. The requests of a batch that fails run one by one, so that bad inputs fail only their
        own request."""
        try:
            return list(self._run([request.feed for request in batch], batch[0].step))
        except Exception as error:  # the runtimes' exceptions share no useful base class
            if len(batch) > 1:
                return [self._answers([request])[0] for request in batch]
            if isinstance(error, Refusal):  # the sequence ended while the request waited
                return [error]
            refusal = failed(error, on_cluster=self.model.on_cluster)
            self._log(refusal, with_kind(error, 2000))
            return [refusal]

    def _run(self, feeds: list[Mapping[str, np.ndarray]], step: SequenceStep | None) -> list[Answer]:
        if len(feeds) == 1:
            return [self.model.run(feeds[0], step)]
        together = self.model.run({name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]})
        *ends, rows = np.cumsum([len(next(iter(feed.values()))) for feed in feeds])
        for name, value in together.items():
            if value.shape[:1] != (rows,):
                raise ValueError(f"output {name} of a batch of {rows} rows has the shape {list(value.shape)}")
        parts = {name: np.split(value, ends) for name, value in together.items()}
        return [{name: values[index] for name, values in parts.items()} for index in range(len(feeds))]

    def _log(self, refusal: Refusal, reason: str) -> None:
        """Log why a run failed. A lost device fails every request alike: that is logged once."""
        if not (isinstance(refusal, Unavailable) and reason == self._logged):
            _LOG.warning("%s version %s: %s", self.model.name, self.model.version, reason)
        self._logged = reason
