"""Counters of a server: Prometheus metrics, the protocol's statistics, and recent latencies for the status page."""

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from taglio.serve.queue import ModelQueue, Ran
from taglio.serve.served import ServedModel

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_RECENT = 500
_LABELS = ("model", "version")


class Metrics:
    """Counters of one server, in a separate registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("taglio_requests", "Answered requests", _LABELS, registry=self._registry)
        self._errors = Counter(
            "taglio_errors", "Refused and failed requests", (*_LABELS, "reason"), registry=self._registry
        )
        self._latency = Histogram(
            "taglio_request_seconds", "Time from arrival to answer", _LABELS, registry=self._registry, buckets=_BUCKETS
        )
        self._compute = Histogram(
            "taglio_compute_seconds", "Batch time in the runtime", _LABELS, registry=self._registry, buckets=_BUCKETS
        )
        self._batch = Histogram(
            "taglio_batch_requests",
            "Requests in a batch",
            _LABELS,
            registry=self._registry,
            buckets=(1, 2, 4, 8, 16, 32, 64),
        )
        self._queue = Gauge("taglio_queue_requests", "Waiting requests", _LABELS, registry=self._registry)
        self._predicted = Gauge(
            "taglio_predicted_seconds", "Latency predicted by the plan", _LABELS, registry=self._registry
        )
        self._measured = Gauge(
            "taglio_measured_seconds", f"Median of the last {_RECENT} runs", _LABELS, registry=self._registry
        )
        self._recent: dict[tuple[str, str], deque[float]] = {}
        self._totals: dict[tuple[str, str], dict[str, float]] = {}
        self.started_s = time.time()

    def add(self, model: ServedModel) -> Callable[[Ran], None]:
        """Start counting for `model`; call the returned function after every batch."""
        key = (model.name, model.version)
        self._recent[key] = deque(maxlen=_RECENT)
        self._totals[key] = dict.fromkeys(("requests", "batches", "queue_s", "compute_s", "failures"), 0.0)
        if model.predicted_s is not None:
            self._predicted.labels(*key).set(model.predicted_s)

        def told(ran: Ran) -> None:
            took = ran.ended_s - ran.began_s
            totals = self._totals[key]
            totals["batches"] += 1
            totals["requests"] += len(ran.came_s)
            totals["compute_s"] += took
            totals["queue_s"] += sum(ran.began_s - came for came in ran.came_s)
            self._recent[key].append(took)
            self._compute.labels(*key).observe(took)
            self._batch.labels(*key).observe(len(ran.came_s))

        return told

    def answered(self, model: ServedModel, seconds: float) -> None:
        """Count an answered request; `seconds` from arrival to answer."""
        self._requests.labels(model.name, model.version).inc()
        self._latency.labels(model.name, model.version).observe(seconds)

    def refused(self, name: str, version: str, reason: str) -> None:
        """Count a request without an answer; the model may not exist."""
        key = (name, version)
        if key in self._totals:
            self._totals[key]["failures"] += 1
            self._errors.labels(*key, reason).inc()
        else:  # never use a client's text as a label
            self._errors.labels("", "", reason).inc()

    def text(self, queues: list[ModelQueue]) -> bytes:
        """All metrics in Prometheus' text format."""
        for queue in queues:
            key = (queue.model.name, queue.model.version)
            self._queue.labels(*key).set(len(queue))
            if recent := self.recent_s(queue.model):
                self._measured.labels(*key).set(median(recent))
        return generate_latest(self._registry)

    def recent_s(self, model: ServedModel) -> list[float]:
        """Seconds of the latest batches in the runtime."""
        return list(self._recent[model.name, model.version])

    def statistics(self, model: ServedModel) -> dict[str, Any]:
        """The protocol's statistics extension in Triton's format: counts and nanoseconds."""
        totals = self._totals[model.name, model.version]

        def spent(count: float, seconds: float) -> dict[str, int]:
            return {"count": int(count), "ns": int(seconds * 1e9)}

        return {
            "name": model.name,
            "version": model.version,
            "inference_count": int(totals["requests"]),
            "execution_count": int(totals["batches"]),
            "inference_stats": {
                "success": spent(totals["requests"], totals["queue_s"] + totals["compute_s"]),
                "fail": spent(totals["failures"], 0.0),
                "queue": spent(totals["requests"], totals["queue_s"]),
                "compute_infer": spent(totals["batches"], totals["compute_s"]),
            },
        }
