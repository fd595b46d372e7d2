"""Keep answering when a device or link is lost, returns or changes speed: switch to another plan.

After a loss, requests in flight are sent again, through the same plan if all its devices and links are there (a
component's process had died) or what is lost has replicas, otherwise through a plan without the lost devices and links.
When they are back (links.py), the plan that uses them is deployed beside the running one, which first answers its
requests. When a device or link changes speed (drift.py), a new plan is made in a separate process and used if it beats
the running one by more than the switching cost.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from taglio.cluster.devices import Cluster
from taglio.cluster.engine.connect import Connection, HeadLost, on
from taglio.cluster.engine.deploy import deploy
from taglio.cluster.engine.drift import Windows, drifted
from taglio.cluster.engine.library import ray
from taglio.cluster.engine.links import Links, Pair, without
from taglio.cluster.engine.pipeline import Answer, Pipeline
from taglio.cluster.engine.replan import Planned, replan, replan_quietly
from taglio.errors import BadDevice, BadOption, Infeasible, TaglioError
from taglio.plan.result import Limits, Plan

_LOOK_S = 2.0
_REST_S = 10.0
_SWITCHING_S = 1e-4
_CLOSING_S = 10.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of plan during a run, its reason, and the predicted latency of both plans."""

    reason: str
    request: int
    before_s: float
    after_s: float


class Recovery:
    """Keeps a cluster answering. Other plans are made in the workspace `folder`; `lanes` gives the number of requests
    in flight for a plan."""

    def __init__(self, connection: Connection, folder: Path, wanted: Planned, lanes: Callable[[Plan], int]) -> None:
        self._connection, self._folder, self._lanes = connection, folder, lanes
        self._wanted = wanted
        self.running = wanted
        self._pipeline: Pipeline | None = None
        self._joined = 0
        self.switches: list[Switch] = []
        self._windows = Windows()
        self._links = Links(connection)
        # What was there when no plan was possible, until when that stands, and the reason.
        self._refused: tuple[object, float, BadDevice] | None = None
        self._looked_s = 0.0
        self._rest_until_s = 0.0
        self._preparing: threading.Thread | None = None
        self._planning: Any = None
        self._closed = False
        self._drifting = ""
        self._prepared: tuple[Planned, Pipeline, str] | None = None

    def begin(self) -> Pipeline:
        """The first pipeline. Raises BadDevice if the plan cannot be deployed."""
        return self._take(self._wanted)

    def recover(self, reason: str) -> Pipeline:
        """A pipeline on the remaining devices and links, in place of the broken one, which is closed. Raises BadDevice
        if there are none, or no plan keeps the limits; until something changes, the same again for a while without
        another look."""
        if self._prepared is not None:  # made for a cluster that no longer exists
            self._prepared[1].close()
            self._prepared = None
        self._connection.renew()
        if self._refused is not None and self._refused[0] == self._there() and time.monotonic() < self._refused[1]:
            raise self._refused[2]
        try:
            return self._recovered(reason)
        except HeadLost:  # it has been waited for
            raise
        except BadDevice as error:
            self._refused = self._there(), time.monotonic() + _REST_S, error
            raise

    def _recovered(self, reason: str) -> Pipeline:
        cluster = self._wanted.cluster
        gone, lost = set[str](), frozenset[Pair]()
        for attempt in range(len(cluster.devices) + 1):
            alive, same = self._connection.alive(), self._joined == self._connection.joined
            hosts = self._pipeline.deployment.actors if self._pipeline is not None and same and not attempt else {}
            before, here = (gone, lost), self._connection.here.name
            gone = self._links.look(cluster, self._devices(self.running), hosts)
            lost = self._links.lost()
            names = [device.name for device in cluster.devices]
            gone |= {name for name in names if not alive.get(name) or Pair((here, name)) in lost}
            if self._pipeline is not None:
                self._pipeline.close()
            if cluster.start in gone:
                raise BadDevice(f'the start device "{cluster.start}", where inputs come from, is lost: {reason}')
            if attempt and (gone, lost) == before:
                raise BadDevice(reason)
            try:
                return self._take(self._remaining(gone, lost))
            except (Infeasible, BadOption) as error:
                left, limits = without(cluster, gone, lost), self._wanted.plan.limits
                raise BadDevice(_no_plan(gone, lost, left, limits, error)) from None
            except HeadLost:  # it has been waited for
                raise
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
        return replan(self._folder, self._wanted.plan, without(self._wanted.cluster, gone, lost))

    def _there(self) -> tuple[frozenset[str], frozenset[Pair]]:
        """The living devices and the lost links."""
        return frozenset(name for name, up in self._connection.alive().items() if up), self._links.lost()

    def watch(self, answer: Answer) -> None:
        """Check an answer, and at intervals the cluster; prepare another plan if that may pay."""
        self._windows.add(answer)
        now = time.monotonic()
        if now - self._looked_s < _LOOK_S or self._preparing is not None or self._prepared is not None:
            return
        self._looked_s = now
        if self.running is not self._wanted and self._whole(self._wanted):
            self._prepare(lambda: self._wanted, "its devices and links are back")
        elif now > self._rest_until_s and self._windows.full():
            assert self._pipeline is not None
            plan, messages = self.running.plan, self._pipeline.deployment.wiring.messages
            cluster, factors, said = drifted(self._windows, plan, self.running.cluster, messages)
            before, self._drifting = self._drifting, said
            if said and before:  # seen twice, seconds apart
                self._rest_until_s = now + _REST_S
                self._prepare(lambda: self._replanned(cluster, factors), said)

    def _replanned(self, cluster: Cluster, factors: Mapping[str, float]) -> Planned:
        """A plan for the cluster as measured, made in a process of its own."""
        task = ray().remote(max_calls=1, max_retries=0, **on(self._connection.here.name))(replan_quietly)
        self._planning = task.remote(self._folder.resolve(), self.running.plan, cluster, factors, _SWITCHING_S)
        planned: Planned = ray().get(self._planning)
        return planned

    def close(self) -> None:
        """Stop preparing another plan."""
        self._closed = True
        self._links.close()
        if self._planning is not None:
            with suppress(Exception):
                ray().cancel(self._planning, force=True)
        if self._preparing is not None:
            self._preparing.join(_CLOSING_S)
        if self._prepared is not None:
            self._prepared[1].close()

    def ready(self) -> bool:
        """Whether another plan is ready to take over."""
        if self._preparing is not None and not self._preparing.is_alive():
            self._preparing = None
        return self._prepared is not None

    def take_over(self, request: int) -> Pipeline | None:
        """The prepared pipeline, to run from `request` on; None if it has been dropped since."""
        if self._prepared is None:
            return None
        planned, pipeline, reason = self._prepared
        self._prepared = None
        before = self.running.plan.predicted_latency_s.value
        self.switches.append(Switch(reason, request, before, planned.plan.predicted_latency_s.value))
        # Only a plan for all devices and links becomes the wanted plan: one without a lost one must not exclude it for
        # good.
        ours, wanted = planned.cluster, self._wanted.cluster
        if len(ours.devices) >= len(wanted.devices) and len(ours.links) >= len(wanted.links):
            self._wanted = planned
        return self._use(planned, pipeline)

    def _take(self, planned: Planned) -> Pipeline:
        return self._use(planned, self._deployed(planned))

    def _use(self, planned: Planned, pipeline: Pipeline) -> Pipeline:
        self.running, self._pipeline, self._windows = planned, pipeline, Windows()
        self._joined = self._connection.joined
        return pipeline

    def _deployed(self, planned: Planned) -> Pipeline:
        lanes = self._lanes(planned.plan)
        return Pipeline(deploy(self._connection, planned, lanes), lanes, planned.cluster.start)

    def _prepare(self, make: Callable[[], Planned], reason: str) -> None:
        def work() -> None:
            try:
                planned = make()
                now, then = self.running.plan, planned.plan
                same = now.fingerprint() == then.fingerprint() and now.machines() == then.machines()
                if self._closed or same:
                    return
                self._prepared = planned, self._deployed(planned), reason
            except Exception as error:  # the running plan continues, and this is tried again
                _LOG.info("no other plan was prepared (%s): %s", reason, error)

        self._preparing = threading.Thread(target=work, daemon=True)
        self._preparing.start()

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
        alive, here, names = self._connection.alive(), self._connection.here.name, self._devices(planned)
        used = self._pairs(planned) | {Pair((here, name)) for name in names}
        return all(alive.get(name) for name in names) and not used & self._links.lost()


def _no_plan(gone: Collection[str], lost: Collection[Pair], left: Cluster, limits: Limits, error: TaglioError) -> str:
    """The error message if no plan is possible on what is `left` without lost devices and links: these, and pins at
    fault."""
    living = [device.name for device in left.devices]
    things = [f'device "{name}"' for name in sorted(gone)]
    things += ["the link between " + " and ".join(f'"{name}"' for name in sorted(p)) for p in lost if p <= {*living}]
    what, rest = " and ".join(things), ", ".join(living)
    off: dict[str, set[str]] = {}
    for block, device in limits.device_exclusions:
        off.setdefault(block, set()).add(device)
    pinned = dict(limits.device_pins)
    nowhere = [block for block, devices in off.items() if devices >= set(living)]
    nowhere += [block for block, devices in off.items() if pinned.get(block) in devices and block not in nowhere]
    if not nowhere:
        return f"{what} is lost, and without it no plan on {rest} keeps the limits ({error}): restore it"
    blocks = f"{nowhere[0]}{f' and {len(nowhere) - 1} more' if len(nowhere) > 1 else ''}"
    return (
        f"{what} is lost, and pins forbid block {blocks} on every other device ({rest}): restore it, or plan with "
        "fewer `keep_off`"
    )
