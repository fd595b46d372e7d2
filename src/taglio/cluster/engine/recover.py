"""Keep answering when a device or link is lost or returns: switch to another plan.

After a loss, requests in flight are sent again, through the same plan if all its devices and links are there (a
component's process had died) or what is lost has replicas, otherwise through a plan without the lost devices and links.
When they are back (links.py), the first plan is deployed beside the running one, which first answers its requests.
"""

import logging
import shutil
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

from taglio.cluster.devices import Cluster
from taglio.cluster.engine.connect import Connection
from taglio.cluster.engine.deploy import deploy
from taglio.cluster.engine.links import Links, Pair, without
from taglio.cluster.engine.pipeline import RequestPipeline
from taglio.cluster.engine.replan import Planned, replan
from taglio.errors import BadDevice, BadOption, Infeasible, TaglioError
from taglio.plan.result import Plan
from taglio.scratch import lasting

_LOG = logging.getLogger(__name__)


class Recovery:
    """Keeps a cluster answering. Other plans are made from the workspace `folder`; `lanes` gives the number of requests
    in flight for a plan."""

    def __init__(self, connection: Connection, folder: Path, first: Planned, lanes: Callable[[Plan], int]) -> None:
        self.connection, self.folder, self._lanes = connection, folder, lanes
        self._first = self.running = first
        self._pipeline: RequestPipeline  # from `begin` on
        self.returns: list[int] = []  # the requests from which the first plan ran again
        self._plans = lasting(self)  # the components of other plans
        self._links = Links(connection)
        # What was there when no plan was possible, until when that stands, and the reason.
        self._refused: tuple[object, float, BadDevice] | None = None
        self._looked_s = 0.0
        # The first plan's pipeline beside the running one, once it is deployed.
        self._returning: Future[RequestPipeline] | None = None
        self._pool = ThreadPoolExecutor(1)

    def begin(self) -> RequestPipeline:
        """The first pipeline. Raises BadDevice if the plan cannot be deployed."""
        return self._use(self._first, self._deployed(self._first))

    def recover(self, reason: str) -> RequestPipeline:
        """A pipeline on the remaining devices and links, in place of the broken one, which is closed. Raises BadDevice
        if there are none, or no plan keeps the limits; until something changes, the same again for ten seconds without
        another look."""
        self._drop_returning()  # it was made for a cluster that no longer exists
        if self._refused is not None and self._refused[0] == self._there() and time.monotonic() < self._refused[1]:
            raise self._refused[2]
        try:
            return self._recovered(reason)
        except BadDevice as error:
            self._refused = self._there(), time.monotonic() + 10.0, error
            raise

    def _recovered(self, reason: str) -> RequestPipeline:
        cluster = self._first.cluster
        gone, lost = set[str](), frozenset[Pair]()
        for attempt in range(len(cluster.devices) + 1):
            alive = self.connection.alive()
            hosts = {} if attempt else self._pipeline.deployment.actors
            before, here = (gone, lost), self.connection.here.name
            gone = self._links.look(cluster, self._devices(self.running), hosts)
            lost = self._links.lost()
            names = [device.name for device in cluster.devices]
            gone |= {name for name in names if not alive.get(name) or Pair((here, name)) in lost}
            self._pipeline.close()
            if cluster.start in gone:
                raise BadDevice(f'the start device "{cluster.start}", where inputs come from, is lost: {reason}')
            if attempt and (gone, lost) == before:
                raise BadDevice(reason)
            try:
                remaining = self._remaining(gone, lost)
                return self._use(remaining, self._deployed(remaining))
            except (Infeasible, BadOption) as error:
                raise BadDevice(_no_plan(gone, lost, without(cluster, gone, lost), error)) from None
            except BadDevice as error:  # more was lost meanwhile
                reason = str(error)
        raise BadDevice(f"no device is left: {reason}")

    def _remaining(self, gone: Collection[str], lost: Collection[Pair]) -> Planned:
        """The running plan on what is left, or another one."""
        taking_turns = {name for turn in self.running.plan.machines().values() if len(turn) > 1 for name in turn}
        off, cut = set(gone), self._pairs(self.running).intersection(lost)
        for pair in cut:
            if not pair & off:  # one end of it is left out if others take its turns
                off |= {*sorted(pair & taking_turns)[:1]}
        same = self.running.plan.without(off)
        if same is not None and all(pair & off for pair in cut):
            return replace(self.running, plan=same) if off else self.running
        return replan(self.folder, self._first.plan, without(self._first.cluster, gone, lost), self._plans)

    def _there(self) -> tuple[frozenset[str], frozenset[Pair]]:
        """The living devices and the lost links."""
        return frozenset(name for name, up in self.connection.alive().items() if up), self._links.lost()

    def watch(self) -> None:
        """Every two seconds, look whether the lost devices and links are back; if so, deploy the first plan beside the
        running one."""
        now = time.monotonic()
        if self.running is self._first or self._returning is not None or now - self._looked_s < 2.0:
            return
        self._looked_s = now
        if self._whole(self._first):
            self._returning = self._pool.submit(self._deployed, self._first)

    def ready(self) -> bool:
        """Whether the first plan is ready to take over."""
        if self._returning is None or not self._returning.done():
            return False
        if (error := self._returning.exception()) is not None:  # the running plan continues, and this is tried again
            _LOG.info("the first plan was not deployed again: %s", error)
            self._returning = None
        return error is None

    def take_over(self, request: int) -> RequestPipeline:
        """The first plan's pipeline, which is ready, to run from `request` on."""
        assert self._returning is not None, "it is ready"
        pipeline, self._returning = self._returning.result(), None
        self.returns.append(request)
        return self._use(self._first, pipeline)

    def close(self) -> None:
        """Stop watching links and deploying the first plan, and remove other plans."""
        self._links.close()
        self._drop_returning()
        shutil.rmtree(self._plans, ignore_errors=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _drop_returning(self) -> None:
        if self._returning is not None:
            self._returning.add_done_callback(_close)
            self._returning = None

    def _use(self, planned: Planned, pipeline: RequestPipeline) -> RequestPipeline:
        self.running, self._pipeline = planned, pipeline
        return pipeline

    def _deployed(self, planned: Planned) -> RequestPipeline:
        deployment = deploy(self.connection, planned)
        return RequestPipeline(deployment, self._lanes(planned.plan), planned.cluster.start)

    def _devices(self, planned: Planned) -> list[str]:
        machines = planned.plan.machines().values()
        return list(dict.fromkeys([planned.cluster.start, *(name for names in machines for name in names)]))

    def _pairs(self, planned: Planned) -> set[Pair]:
        """The pairs of devices between which a plan's tensors go."""
        machines = planned.plan.machines()
        pairs = set[Pair]()
        for crossing in planned.plan.crossings:
            if crossing.source != crossing.target:
                ends = (machines.get(name, (name,)) for name in (crossing.source, crossing.target))
                pairs |= {Pair(pair) for pair in product(*ends)}
        return pairs

    def _whole(self, planned: Planned) -> bool:
        """Whether a plan's devices are alive and within reach, and its links not lost."""
        try:
            alive = self.connection.alive()
        except BadDevice:
            return False
        here, names = self.connection.here.name, self._devices(planned)
        used = self._pairs(planned) | {Pair((here, name)) for name in names}
        return all(alive.get(name) for name in names) and not used & self._links.lost()


def _close(coming: "Future[RequestPipeline]") -> None:
    if not coming.cancelled() and coming.exception() is None:
        coming.result().close()


def _no_plan(gone: Collection[str], lost: Collection[Pair], left: Cluster, error: TaglioError) -> str:
    """The error message if no plan is possible on what is `left` without lost devices and links."""
    living = [device.name for device in left.devices]
    things = [f'device "{name}"' for name in sorted(gone)]
    things += ["the link between " + " and ".join(f'"{name}"' for name in sorted(p)) for p in lost if p <= {*living}]
    rest = ", ".join(living)
    return f"{' and '.join(things)} is lost, and without it no plan on {rest} keeps the limits ({error}): restore it"
