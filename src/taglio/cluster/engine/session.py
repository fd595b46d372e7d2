"""A plan on a running cluster that answers requests from any thread of this process. Plans nothing itself."""

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from taglio.cluster.devices import Cluster
from taglio.cluster.engine.connect import connect
from taglio.cluster.engine.recover import Recovery
from taglio.cluster.engine.run import lanes_for, patience_s, planned
from taglio.cluster.engine.serve import Server
from taglio.components.build import Manifest, read
from taglio.errors import BadDevice, BadOption
from taglio.transaction import held

Outputs = list[np.ndarray]


class Session:
    """An open plan. One thread sends the requests and takes their answers, so that `run` may be called from many."""

    def __init__(self, recovery: Recovery, manifest: Manifest, patience_s: float) -> None:
        self.manifest = manifest
        self._recovery = recovery
        self._patience_s = patience_s
        # Requests and their answers to be; None: an answer may have arrived, or this is closed.
        self._events: SimpleQueue[tuple[Mapping[str, np.ndarray], Future[Outputs]] | None] = SimpleQueue()
        self._closed = False
        self._server = Server(recovery, patience_s, lambda: self._events.put(None))
        self.lanes = self._server.pipeline.lanes
        self._thread = threading.Thread(target=self._work, name="cluster session", daemon=True)
        self._thread.start()

    @property
    def predicted_s(self) -> float:
        """Predicted seconds from request to answer of the plan that runs now."""
        return self._recovery.running.plan.predicted_latency_s.value

    def run(self, feed: Mapping[str, np.ndarray]) -> Outputs:
        """The model's outputs in its order. Raises the error of a component that cannot run `feed`, and BadDevice if no
        device is left; a later request finds devices that have come back."""
        answer: Future[Outputs] = Future()
        self._events.put((feed, answer))
        return answer.result()

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
                event = self._events.get(timeout=self._patience_s if flying else None)
            except Empty:  # the oldest is overdue
                event = None
            if event is not None:
                while flying and self._server.full():
                    self._settle(flying.popleft())
                feed, answer = event
                flying.append(answer)
                with suppress(BadDevice):  # no device is left, as `next` will say
                    self._server.send(feed)
            while flying and self._server.settled():
                self._settle(flying.popleft())

    def _settle(self, answer: "Future[Outputs]") -> None:
        try:
            answer.set_result(self._server.next().outputs)
        except Exception as error:
            answer.set_exception(error)


@contextmanager
def sessions(folders: Sequence[Path], cluster: Cluster) -> Iterator[list[Session]]:
    """An open session for the plan in each workspace directory, which is locked meanwhile: after a loss, new plans are
    made from its artifacts.

    Raises BadArtifact for a plan for other devices, BadDevice for devices that cannot run it, and BadOption for a model
    with states.
    """
    with ExitStack() as stack:
        found = []
        for folder in folders:
            stack.enter_context(held(folder))
            ready = planned(folder, cluster)[1]
            manifest = read(ready.folder)
            if manifest.states:
                raise BadOption(
                    f"{folder}: a model with states answers in one process, or as taglio run {folder} --cluster FILE "
                    "--steps N: omit `cluster`"
                )
            found.append((folder, ready, manifest))
        connection = stack.enter_context(connect(cluster.start))
        opened = []
        for folder, ready, manifest in found:
            recovery = Recovery(connection, folder, ready, lambda each: lanes_for(each.plan))
            stack.callback(recovery.close)
            opened.append(Session(recovery, manifest, patience_s(ready.plan)))
            stack.callback(opened[-1].close)
        yield opened
