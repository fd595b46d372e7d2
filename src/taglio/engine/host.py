"""What runs on a device: an actor that stores components, opens their sessions and runs them. Knows no other device.

Several requests may be in it at once, each in a thread of its own; components run one at a time, the oldest request's
first, as the planner assumes.
"""

import heapq
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from taglio import artifact
from taglio.components.build import Piece
from taglio.engine import counters
from taglio.engine.device import DEVICE
from taglio.engine.library import part
from taglio.engine.parcel import Hop, Parcel, Step
from taglio.engine.resident import Resident, resident_bytes
from taglio.engine.wiring import Message
from taglio.errors import BadData, BadDevice
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.session import Session, opener


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a device has opened and will run: the hash of the very bytes that the session was made from."""

    device: str
    component: str
    sha256: str
    runtime: str
    version: str
    threads: int
    load_s: float
    memory_bytes: int


class Host(Resident):
    """One device's components. Made an actor by deploy.py."""

    def __init__(self) -> None:
        super().__init__()
        self.device = os.environ.get(DEVICE, "")
        self._sessions: dict[str, tuple[Piece, Session]] = {}
        self._sends: dict[str, list[tuple[int, Message]]] = {}
        self._turn = _Turn()

    def counters(self) -> dict[str, tuple[float, float]] | None:
        """What this machine's energy counters show."""
        return counters.read()

    def clock(self) -> float:
        """This device's monotonic clock."""
        return time.monotonic()

    def load(
        self, pieces: list[tuple[Piece, list[tuple[int, Message]]]], runtime: str, threads: int, buffer_bytes: int
    ) -> list[Loaded]:
        """Open the sessions of `pieces`, each with what it sends, and run each once on zeros.

        Raises BadModel where the runtime refuses a component, BadArtifact where its file was changed.
        """
        part("ray.dag").DAGContext.get_current().buffer_size_bytes = buffer_bytes
        self._sessions, self._sends = {}, {}
        found = []
        for piece, sends in pieces:
            begun = time.monotonic()
            data = self.store.read(piece.sha256)
            # A session that is opened by path reads the file again: what it reads is what was hashed.
            path = self.store.path(piece.sha256)
            session = opener(runtime)(path, SessionOptions(threads))
            zeros = {port.name: np.zeros(port.shape, port.dtype) for port in piece.inputs}
            session.run([port.name for port in piece.outputs], zeros)
            if self.store.read(piece.sha256) != data:
                raise BadDevice(f"{path}: changed while it was opened")
            self._sessions[piece.name] = (piece, session)
            self._sends[piece.name] = sends
            took = time.monotonic() - begun
            version = artifact.version_of(runtime)
            found.append(
                Loaded(self.device, piece.name, piece.sha256, runtime, version, threads, took, resident_bytes())
            )
        return found

    def step(self, component: str, *parcels: Parcel) -> Parcel | tuple[Parcel, ...]:
        """Run a component on what its messages hold; a message for each device that reads it."""
        ready = time.monotonic()
        piece, session = self._sessions[component]
        request = parcels[0].request
        tensors: dict[str, np.ndarray] = {}
        steps: dict[str, Step] = {}
        hops: dict[tuple[int, str], Hop] = {}
        for parcel in parcels:
            if parcel.request != request:
                raise BadData(f"{component}: got parts of requests {request} and {parcel.request} together")
            tensors.update(parcel.tensors)
            steps.update((each.component, each) for each in parcel.steps)
            for each in parcel.hops:
                hop = each if each.target else replace(each, target=self.device)
                hops[hop.message, hop.target] = hop
        feed = {port.name: tensors[port.name] for port in piece.inputs}
        names = [port.name for port in piece.outputs]
        with self._turn.of(request):
            start = time.monotonic()
            values = session.run(names, feed)
            end = time.monotonic()
        steps[component] = Step(component, self.device, ready, start, end)
        made = dict(zip(names, values, strict=True))
        past = tuple(steps.values())
        way = tuple(hops.values())
        sent = tuple(
            Parcel(request, index, self.device, {name: made[name] for name in message.names}, past, way)
            for index, message in self._sends[component]
        )
        return sent if len(sent) != 1 else sent[0]


class _Turn:
    """Lets one thread at a time work, of those that wait the one with the oldest request."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._busy = False
        self._free = threading.Condition()

    @contextmanager
    def of(self, request: int) -> Iterator[None]:
        with self._free:
            heapq.heappush(self._waiting, request)
            while self._busy or self._waiting[0] != request:
                self._free.wait()
            heapq.heappop(self._waiting)
            self._busy = True
        try:
            yield
        finally:
            with self._free:
                self._busy = False
                self._free.notify_all()
