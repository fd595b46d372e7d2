"""A plan on a running cluster that answers requests from any thread of this process. Plans nothing itself."""

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from taglio.cluster.devices import Cluster
from taglio.cluster.engine.connect import connect
from taglio.cluster.engine.recover import Recovery
from taglio.cluster.engine.run import lanes_for, patience_s, planned
from taglio.cluster.engine.serve import Server, Steps
from taglio.components.build import Manifest, read
from taglio.transaction import held

Outputs = list[np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class _Submitted:
    """A request from another thread, and its answer to be."""

    feed: Mapping[str, np.ndarray]
    steps: Steps | None
    last: bool
    answer: "Future[Outputs]" = field(default_factory=Future)


class ClusterSession:
    """An open plan. One thread sends the requests and takes their answers, so that `run` may be called from many."""

    def __init__(self, recovery: Recovery, manifest: Manifest, patience_s: float) -> None:
        self.manifest = manifest
        self._recovery = recovery
        # None: an answer may have arrived, or this is closed.
        self._events: SimpleQueue[_Submitted | None] = SimpleQueue()
        self._closed = False
        self._server = Server(recovery, patience_s, lambda: self._events.put(None))
        self.lanes = self._server.pipeline.lanes
        self._thread = threading.Thread(target=self._work, name="cluster session", daemon=True)
        self._thread.start()

    @property
    def predicted_s(self) -> float:
        """Predicted seconds from request to answer of the plan that runs now."""
        return self._recovery.running.plan.predicted_latency_s.value

    def run(self, feed: Mapping[str, np.ndarray], steps: Steps | None = None, *, last: bool = False) -> Outputs:
        """The model's outputs in its order, without states; with `steps`, of the next (or the `last`) step of that
        session, of which one runs at a time. Raises the error of a component that cannot run `feed`, and BadDevice if
        no device is left; a later request finds devices that have come back."""
        request = _Submitted(feed, steps, last)
        self._events.put(request)
        return request.answer.result()

    def close(self) -> None:
        """End the devices' hosts, after the requests in flight."""
        self._closed = True
        self._events.put(None)
        self._thread.join()
        self._server.pipeline.close()

    def _work(self) -> None:
        flying: deque[Future[Outputs]] = deque()
        while flying or not self._closed:
            try:
                request = self._events.get(timeout=1.0 if flying else None)
            except Empty:  # the oldest may be overdue
                request = None
            if request is not None:
                while flying and self._server.full():
                    self._settle(flying.popleft())
                flying.append(request.answer)
                self._server.send(request.feed, request.steps, last=request.last)
            while flying and self._server.settled():
                self._settle(flying.popleft())

    def _settle(self, answer: "Future[Outputs]") -> None:
        try:
            answer.set_result(self._server.next().outputs)
        except Exception as error:
            answer.set_exception(error)


@contextmanager
def sessions(folders: Sequence[Path], cluster: Cluster) -> Iterator[list[ClusterSession]]:
    """An open session for the plan in each workspace directory, which is locked meanwhile: after a loss, new plans are
    made from its artifacts.

    Raises BadArtifact for a plan for other devices, and BadDevice for devices that cannot run it.
    """
    with ExitStack() as stack:
        planned_folders = []
        for folder in folders:
            stack.enter_context(held(folder))
            planned_folders.append((folder, planned(folder, cluster)[1]))
        connection = stack.enter_context(connect(cluster.start))
        opened = []
        for folder, ready in planned_folders:
            recovery = Recovery(connection, folder, ready, lanes_for)
            stack.callback(recovery.close)
            opened.append(ClusterSession(recovery, read(ready.folder), patience_s(ready.plan)))
            stack.callback(opened[-1].close)
        yield opened
