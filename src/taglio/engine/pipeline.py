"""Requests through compiled graphs, one graph for each request that may be on its way. Chooses no device.

A lane is a compiled graph over the devices' actors that holds one request at a time. A graph that held several would
let a message arrive where the last was not yet read, and Ray's receiving node then stands still until it is. With lanes
no message ever meets another, transfers and components of different requests overlap, and a device that is visited
twice need not wait for itself.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from taglio.engine.deploy import Deployment
from taglio.engine.library import part, ray
from taglio.engine.parcel import Hop, Parcel, Step
from taglio.engine.wiring import CALLER
from taglio.errors import BadData, TaglioError

_CLOSING_S = 5.0


class Broken(Exception):
    """A request cannot be answered by this pipeline any more."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One request's outputs in the model's order, when it was sent and answered, and what it met, by our own clock.

    `attempts` counts how often it was sent.
    """

    request: int
    outputs: list[np.ndarray]
    sent_s: float
    answered_s: float
    steps: tuple[Step, ...]
    hops: tuple[Hop, ...]
    attempts: int = 1

    @property
    def latency_s(self) -> float:
        """Seconds from sending to answer."""
        return self.answered_s - self.sent_s


@dataclass(slots=True)
class _Flight:
    lane: int
    refs: Any
    sent_s: float


class Pipeline:
    """Lanes over a deployment."""

    def __init__(self, deployment: Deployment, lanes: int, start: str) -> None:
        self._deployment = deployment
        self._start = start
        messages = deployment.wiring.messages
        self._inputs = [index for index, each in enumerate(messages) if each.source == CALLER]
        self._answers = deployment.wiring.answers()
        self._lanes = [self._lane() for _ in range(lanes)]
        self._free = deque(range(lanes))
        self._flights: dict[int, _Flight] = {}

    @property
    def lanes(self) -> int:
        """Requests that may be on their way."""
        return len(self._lanes)

    def room(self) -> bool:
        """Whether another request may be sent."""
        return bool(self._free)

    def holds(self, request: int) -> bool:
        """Whether a request is on its way."""
        return request in self._flights

    def send(self, request: int, feed: Mapping[str, np.ndarray]) -> None:
        """Send a request. Raises Broken where the engine refuses it."""
        messages = self._deployment.wiring.messages
        parcels = [
            Parcel(request, index, "", {name: feed[name] for name in messages[index].names}) for index in self._inputs
        ]
        lane = self._free.popleft()
        sent = time.monotonic()
        try:
            refs = self._lanes[lane].execute(*parcels)
        except Exception as error:
            raise Broken(_line(error)) from None
        self._flights[request] = _Flight(lane, refs, sent)

    def wait(self, request: int, patience_s: float) -> Answer:
        """The answer to a request that was sent. Raises Broken where there is none, or none within `patience_s`."""
        flight = self._flights[request]
        try:
            values = ray().get(flight.refs, timeout=patience_s)
        except Exception as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, TaglioError):
                raise cause from None
            raise Broken(_line(error)) from None
        answered = time.monotonic()
        del self._flights[request]
        outputs: dict[str, np.ndarray] = {}
        steps: dict[str, Step] = {}
        hops: dict[tuple[int, str], Hop] = {}
        for parcel in values:
            if parcel.request != request:
                raise BadData(f"request {request} was answered with request {parcel.request}")
            outputs.update((name, np.array(value)) for name, value in parcel.tensors.items())
            steps.update((each.component, each) for each in parcel.steps)
            hops.update(((each.message, each.target), each) for each in parcel.hops)
        del values
        self._free.append(flight.lane)
        ordered = [outputs[name] for name in self._deployment.manifest.outputs]
        return Answer(
            request, ordered, flight.sent_s, answered,
            tuple(self._step(each) for each in steps.values()), tuple(self._hop(each) for each in hops.values()),
        )  # fmt: skip

    def close(self) -> None:
        """Take the graphs down. Never raises, and waits for nobody long: what is closed may be broken."""
        threads = [threading.Thread(target=_teardown, args=(lane,), daemon=True) for lane in self._lanes]
        for thread in threads:
            thread.start()
        end = time.monotonic() + _CLOSING_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._lanes = []
        self._flights = {}

    def _lane(self) -> Any:
        dag = part("ray.dag")
        wiring, manifest, hosts = self._deployment.wiring, self._deployment.manifest, self._deployment.hosts
        with dag.InputNode() as caller:
            nodes: dict[int, Any] = {index: caller[position] for position, index in enumerate(self._inputs)}
            for piece in manifest.pieces:
                sent = [index for index, each in enumerate(wiring.messages) if each.source == piece.name]
                step = hosts[piece.device].step.options(num_returns=len(sent))
                made = step.bind(piece.name, *(nodes[index] for index in wiring.reads[piece.name]))
                nodes.update(zip(sent, made if len(sent) > 1 else [made], strict=True))
            graph = dag.MultiOutputNode([nodes[index] for index in self._answers])
        return graph.experimental_compile(_max_inflight_executions=1)

    def _step(self, step: Step) -> Step:
        offset = self._deployment.clocks[step.device].offset_s
        return Step(step.component, step.device, step.ready_s - offset, step.start_s - offset, step.end_s - offset)

    def _hop(self, hop: Hop) -> Hop:
        """The hop by our own clock; ours stand in for the caller's ends."""
        clocks = self._deployment.clocks
        sent = hop.sent_s - (clocks[hop.source].offset_s if hop.source else 0.0)
        read = hop.read_s - (clocks[hop.target].offset_s if hop.target else 0.0)
        return Hop(hop.message, hop.source or self._start, hop.target or self._start, sent, read)


def _teardown(lane: Any) -> None:
    with contextlib.suppress(Exception):
        lane.teardown()


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
