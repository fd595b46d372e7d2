"""Counters of a server, as Prometheus metrics."""

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from taglio.serve.queue import ModelQueue, Ran
from taglio.serve.served import ServedModel

_RECENT = 500


class Metrics:
    """Counters of one server, in a separate registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        common: dict[str, Any] = {"labelnames": ("model", "version"), "registry": self._registry}
        why: dict[str, Any] = common | {"labelnames": ("model", "version", "reason")}
        seconds = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
        timed: dict[str, Any] = common | {"buckets": seconds}
        self._requests = Counter("taglio_requests", "Answered requests", **common)
        self._errors = Counter("taglio_errors", "Refused and failed requests", **why)
        self._latency = Histogram("taglio_request_seconds", "Time from arrival to answer", **timed)
        self._wait = Histogram("taglio_wait_seconds", "Time in the queue", **timed)
        self._compute = Histogram("taglio_compute_seconds", "Batch time in the runtime", **timed)
        self._batch = Histogram(
            "taglio_batch_requests", "Requests in a batch", buckets=(1, 2, 4, 8, 16, 32, 64), **common
        )
        self._queue = Gauge("taglio_queue_requests", "Waiting requests", **common)
        self._predicted = Gauge("taglio_predicted_seconds", "Latency predicted by the plan", **common)
        self._measured = Gauge("taglio_measured_seconds", f"Median of the last {_RECENT} runs of one request", **common)
        self._recent: dict[tuple[str, str], deque[float]] = {}
        self._answered: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def add(self, model: ServedModel) -> Callable[[Ran], None]:
        """Start counting for `model`; call the returned function after every batch."""
        key = (model.name, model.version)
        recent = self._recent[key] = deque(maxlen=_RECENT)
        self._answered[key] = self._requests.labels(*key), self._latency.labels(*key)
        wait, compute, batch = (metric.labels(*key) for metric in (self._wait, self._compute, self._batch))
        if model.predicted_s is not None:
            self._predicted.labels(*key).set(model.predicted_s)

        def count(ran: Ran) -> None:
            for came_s in ran.came_s:
                wait.observe(ran.began_s - came_s)
            compute.observe(took_s := ran.ended_s - ran.began_s)
            batch.observe(len(ran.came_s))
            if len(ran.came_s) == 1:  # as the plan's prediction is
                recent.append(took_s)

        return count

    def answered(self, model: ServedModel, seconds: float) -> None:
        """Count an answered request; `seconds` from arrival to answer."""
        requests, latency = self._answered[model.name, model.version]
        requests.inc()
        latency.observe(seconds)

    def refused(self, name: str, version: str, reason: str) -> None:
        """Count a request without an answer; the model may not exist."""
        is_served = (name, version) in self._recent
        # A client's text is never a label.
        self._errors.labels(*((name, version) if is_served else ("", "")), reason).inc()

    def text(self, queues: list[ModelQueue]) -> bytes:
        """All metrics in Prometheus' text format."""
        for queue in queues:
            key = (queue.model.name, queue.model.version)
            self._queue.labels(*key).set(len(queue))
            if recent := self._recent[key]:
                self._measured.labels(*key).set(median(recent))
        return generate_latest(self._registry)
