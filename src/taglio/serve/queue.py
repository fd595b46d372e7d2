"""A bounded queue of requests per model, which runs as many batches at once as the model allows.

Independent of protocols.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf

import numpy as np

from taglio.errors import plural, with_kind
from taglio.serve.refusals import Draining, Overloaded, Refusal, TooLate, Unavailable, failed
from taglio.serve.served import ServedModel, Step

_LOG = logging.getLogger(__name__)
# To hand a run to another thread takes a share of this.
_SHORT_S = 0.001
Answer = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Limits:
    """`queue`: most waiting requests. `batch`: most rows in a batch; None: those of the model's way. `wait_s`: how long
    the first request of a batch waits for others."""

    queue: int = 64
    batch: int | None = None
    wait_s: float = 0.0

    def rows(self, model: ServedModel) -> int:
        """The most rows in a batch of `model`."""
        return 1 if model.alone else self.batch or model.way.joined


@dataclass(frozen=True, slots=True)
class Ran:
    """One batch: arrival of each of its requests, start and end of the run (all `time.perf_counter`), and whether no
    other run shared the processor."""

    came_s: tuple[float, ...]
    began_s: float
    ended_s: float
    alone: bool


@dataclass(slots=True, eq=False)
class _Waiting:
    feed: Mapping[str, np.ndarray]
    deadline_s: float | None
    step: Step | None = None
    future: "Future[Answer]" = field(default_factory=Future)
    came_s: float = field(default_factory=time.perf_counter)

    @property
    def rows(self) -> int:
        return len(next(iter(self.feed.values())))

    @property
    def sequence(self) -> int | str | None:
        return None if self.step is None else self.step.sequence

    @property
    def joinable(self) -> bool:
        """Whether it may share a batch: steps of sequences and inputs of different rows run alone."""
        return self.step is None and len({len(value) for value in self.feed.values()}) == 1

    def joins(self, other: "_Waiting") -> bool:
        """Whether a request that may can share a batch with another: equal shapes except the first dimension."""
        return other.joinable and all(
            value.shape[1:] == other.feed[name].shape[1:] for name, value in self.feed.items()
        )


class ModelQueue:
    """A model, its queue, and a thread per batch that may run at once; the runtime computes with its own threads."""

    def __init__(self, model: ServedModel, limits: Limits, after_batch: Callable[[Ran], None] | None = None) -> None:
        """`after_batch` is called with every batch that ran. `alone` says why requests are not joined, or is ""."""
        self.model = model
        self.alone = model.alone
        self._limits = limits
        self._after_batch = after_batch
        self._waiting: deque[_Waiting] = deque()
        self._running: set[int | str | None] = set()  # sequences, of which one step runs at a time
        self._busy = self._begun = 0  # runs in progress, and so far
        self._taken = 0  # requests in these runs
        self._took_s = inf  # of the latest run
        self._logged = ""
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{model.name} {model.version}", daemon=True)
            for _ in range(model.at_once(0.0))
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether a run of the model has passed, and the queue is open."""
        return not self._closed and (self.model.warm or self._took_s < inf)

    def submit(
        self, feed: Mapping[str, np.ndarray], deadline_s: float | None = None, step: Step | None = None
    ) -> "Future[Answer]":
        """A future answer; cancelling it removes the request unless it is running. `deadline_s` is a
        `time.perf_counter` value. Steps of a sequence run in order of arrival. An idle model whose runs are short
        and one at a time runs in the caller's thread. Raises Overloaded and Draining."""
        request = _Waiting(feed, deadline_s, step)
        with self._changed:
            if self._closed:
                raise Draining("the server is shutting down: send the request to another server")
            if len(self._waiting) >= self._limits.queue:
                raise Overloaded(
                    f"{self.model.name} has {plural(len(self._waiting), 'request')} waiting: try again later"
                )
            self._waiting.append(request)
            request.future.add_done_callback(self._left)
            here = self._took_s < _SHORT_S and step is None and not self._busy and len(self._waiting) == 1
            # In the caller's thread, which also receives requests, no second run would begin beside the first.
            if not here or self._limits.wait_s > 0.0 or self.model.way.at_once > 1:
                self._changed.notify()
                return request.future
            if not self._take(request):
                return request.future
            self._began()
        self._answer([request])
        return request.future

    def refuse(self) -> None:
        """Accept no more requests."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self, patience_s: float) -> int:
        """Accept no more requests, and wait for the accepted ones. Returns how many were not answered in time."""
        self.refuse()
        until = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._changed:  # a caller's thread may run one
            self._changed.wait_for(lambda: not self._taken, max(0.0, until - time.monotonic()))
            return len(self._waiting) + self._taken

    def _work(self) -> None:
        while batch := self._next():
            self._answer(batch)

    def _answer(self, batch: list[_Waiting]) -> None:
        begun, alone, began = self._begun, self._busy == 1, time.perf_counter()
        try:
            answers = self._run([each.feed for each in batch], batch[0].step)
        except Exception as error:  # the runtimes' exceptions share no useful base class
            self._failed(batch, error)
            return
        finally:
            self._free(batch)
        ended = time.perf_counter()
        self._took_s = ended - began
        for each, answer in zip(batch, answers, strict=True):
            each.future.set_result(answer)
        if self._after_batch:
            alone = self.model.on_cluster or (alone and begun == self._begun)
            self._after_batch(Ran(tuple(each.came_s for each in batch), began, ended, alone))

    def _began(self) -> None:
        self._busy += 1
        self._begun += 1

    def _free(self, batch: list[_Waiting]) -> None:
        with self._changed:
            self._busy -= 1
            self._taken -= len(batch)
            self._running.discard(batch[0].sequence)
            if self._waiting or self._closed:
                self._changed.notify_all()

    def _next(self) -> list[_Waiting]:
        """The next batch; empty once the queue is closed and empty."""
        with self._changed:
            while True:
                free = self._waiting if self._busy < self.model.at_once(self._took_s) else ()
                first = next((each for each in free if each.sequence not in self._running), None)
                if first is None and self._closed and not self._waiting:
                    return []
                if first is None:
                    self._changed.wait()
                elif self._take(first):
                    break
            batch = [first]
            self._began()
            if first.step is not None:
                self._running.add(first.sequence)
            if self.alone or not first.joinable:
                return batch
            until = time.perf_counter() + self._limits.wait_s
            rows, most = first.rows, self._limits.rows(self.model)
            while rows < most:
                if not self._waiting:
                    left = until - time.perf_counter()
                    if left <= 0.0 or self._closed or not self._changed.wait(left):
                        break
                    continue
                if not first.joins(self._waiting[0]) or rows + self._waiting[0].rows > most:
                    break
                if self._take(more := self._waiting[0]):
                    batch.append(more)
                    rows += more.rows
            return batch

    def _take(self, request: _Waiting) -> bool:
        """Take a request from the queue; False if it was cancelled or its deadline has passed."""
        self._waiting.remove(request)
        if not request.future.set_running_or_notify_cancel():
            return False
        if request.deadline_s is not None and time.perf_counter() > request.deadline_s:
            request.future.set_exception(TooLate("its deadline passed before it ran"))
            return False
        self._taken += 1
        return True

    def _left(self, future: "Future[Answer]") -> None:
        """Give the place of a cancelled request to another. It is not referred to from here: a cycle would keep it."""
        if future.cancelled():
            with self._changed:
                for request in [each for each in self._waiting if each.future is future]:
                    self._waiting.remove(request)

    def _run(self, feeds: list[Mapping[str, np.ndarray]], step: Step | None = None) -> list[Answer]:
        if len(feeds) == 1:
            return [self.model.run(feeds[0], step)]
        together = self.model.run({name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]})
        *ends, rows = np.cumsum([len(next(iter(feed.values()))) for feed in feeds])
        for name, value in together.items():
            if value.shape[:1] != (rows,):
                self.alone = f"output {name} of a batch of {rows} rows had the shape {list(value.shape)}"
                _LOG.warning("%s version %s: requests run alone: %s", self.model.name, self.model.version, self.alone)
                return [self.model.run(feed) for feed in feeds]
        parts = {name: np.split(value, ends) for name, value in together.items()}
        return [{name: values[index] for name, values in parts.items()} for index in range(len(feeds))]

    def _log(self, wrong: Refusal, reason: str) -> None:
        """Log why a run failed. A lost device fails every request alike: that is logged once."""
        if not (isinstance(wrong, Unavailable) and reason == self._logged):
            _LOG.warning("%s version %s: %s", self.model.name, self.model.version, reason)
        self._logged = reason

    def _failed(self, batch: list[_Waiting], error: Exception) -> None:
        """Run the requests of a failed batch one by one, so that bad inputs fail only their own request."""
        if len(batch) == 1:
            # A Refusal: the sequence ended while the request waited.
            wrong = error if isinstance(error, Refusal) else failed(error, on_cluster=self.model.on_cluster)
            if wrong is not error:
                self._log(wrong, with_kind(error, 2000))
            batch[0].future.set_exception(wrong)
            return
        for each in batch:
            try:
                each.future.set_result(self._run([each.feed])[0])
            except Exception as own:  # as in _work
                self._failed([each], own)
