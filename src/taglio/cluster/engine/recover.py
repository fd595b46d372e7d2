"""Keep answering when a device is lost, returns or changes speed: switch to another plan.

After a loss, requests in flight are sent again, through the same plan if all its devices are alive (a component's
process had died) or the lost one has replicas, otherwise through a plan without the lost device. When the device
returns, its plan is deployed beside the running one, which first answers its requests. When a device or link changes
speed (drift.py), a new plan is made in a separate process and used if it beats the running one by more than the
switching cost.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taglio.cluster.devices import Cluster
from taglio.cluster.engine.connect import Connection, HeadLost, ask, on
from taglio.cluster.engine.deploy import Calls, deploy
from taglio.cluster.engine.drift import Windows, drifted
from taglio.cluster.engine.library import ray
from taglio.cluster.engine.pipeline import Answer, Pipeline
from taglio.cluster.engine.replan import Planned, replan, replan_quietly
from taglio.errors import BadDevice, BadOption, Infeasible, TaglioError
from taglio.plan.result import Limits, Plan

_ANSWER_S = 5.0
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
        self.switches: list[Switch] = []
        self._windows = Windows()
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
        """A pipeline on the remaining devices. Raises BadDevice if there are none, or no plan keeps the limits."""
        if self._prepared is not None:  # made for a cluster that no longer exists
            self._prepared[1].close()
            self._prepared = None
        gone = [name for name in self._devices(self.running) if not self._lives(name)]
        cluster = self.running.cluster
        if cluster.start in gone:
            raise BadDevice(f'the start device "{cluster.start}", where inputs come from, is lost: {reason}')
        for _ in range(len(cluster.devices) + 1):
            same = self.running.plan.without(gone)
            if same is None:
                alive = self._connection.alive()
                gone += [each.name for each in cluster.devices if not alive.get(each.name) and each.name not in gone]
                for name in gone:
                    cluster = cluster.without(name)
            try:
                if same is None:
                    return self._take(replan(self._folder, self._wanted.plan, cluster))
                return self._take(replace(self.running, plan=same) if gone else self.running)
            except (Infeasible, BadOption) as error:
                living = [each.name for each in cluster.devices]
                raise BadDevice(lost(gone, living, self._wanted.plan.limits, error)) from None
            except HeadLost:  # it has been waited for
                raise
            except BadDevice as error:  # another device was lost meanwhile
                reason = str(error)
                gone = [each.name for each in cluster.devices if not self._connection.alive().get(each.name)]
                if not gone or cluster.start in gone:
                    raise
        raise BadDevice(f"no device is left: {reason}")

    def watch(self, answer: Answer) -> None:
        """Check an answer, and at intervals the cluster; prepare another plan if that may pay."""
        self._windows.add(answer)
        now = time.monotonic()
        if now - self._looked_s < _LOOK_S or self._preparing is not None or self._prepared is not None:
            return
        self._looked_s = now
        if self.running is not self._wanted and all(
            self._connection.alive().get(name) for name in self._devices(self._wanted)
        ):
            self._prepare(lambda: self._wanted, "its devices are back")
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
        # Only a plan for all devices becomes the wanted plan: one without a lost device must not exclude it for good.
        if len(planned.cluster.devices) >= len(self._wanted.cluster.devices):
            self._wanted = planned
        return self._use(planned, pipeline)

    def _take(self, planned: Planned) -> Pipeline:
        return self._use(planned, self._deployed(planned))

    def _use(self, planned: Planned, pipeline: Pipeline) -> Pipeline:
        self.running, self._pipeline, self._windows = planned, pipeline, Windows()
        return pipeline

    def _deployed(self, planned: Planned) -> Pipeline:
        lanes = self._lanes(planned.plan)
        return Pipeline(deploy(self._connection, planned, lanes), lanes, planned.cluster.start)

    def _prepare(self, make: Callable[[], Planned], reason: str) -> None:
        def work() -> None:
            try:
                planned = make()
                now, then = (each.plan for each in (self.running, planned))
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
        return list(dict.fromkeys([planned.cluster.start, *(name for each in machines for name in each)]))

    def _lives(self, name: str) -> bool:
        """Whether a device's node is alive, and its host, if it has one, answers."""
        if not self._connection.alive().get(name):
            return False
        actor = None if self._pipeline is None else self._pipeline.deployment.actors.get(name)
        if actor is None:
            return True
        try:
            Calls(actor, _ANSWER_S).call(time.monotonic)
        except Exception:
            return self._runs_tasks(name)
        return True

    def _runs_tasks(self, name: str) -> bool:
        """Whether a node whose host does not answer is still alive: Ray notices a dead node only after a while."""
        task, end = ask(name), time.monotonic() + 2 * _ANSWER_S
        while time.monotonic() < end and self._connection.alive().get(name):
            if ray().wait([task], timeout=0.2)[0]:
                with suppress(Exception):
                    ray().get(task)
                    return True
                return False
        return False


def lost(gone: Sequence[str], living: Sequence[str], limits: Limits, error: TaglioError) -> str:
    """The error message if devices are lost and no plan is possible without them: devices, and pins at fault."""
    names = ", ".join(f'"{name}"' for name in gone)
    off: dict[str, set[str]] = {}
    for block, device in limits.device_exclusions:
        off.setdefault(block, set()).add(device)
    pinned = dict(limits.device_pins)
    nowhere = [block for block, devices in off.items() if devices >= set(living)]
    nowhere += [block for block, devices in off.items() if pinned.get(block) in devices and block not in nowhere]
    rest = ", ".join(living)
    if not nowhere:
        return f"device {names} is lost, and without it no plan on {rest} keeps the limits ({error}): start it again"
    blocks = f"{nowhere[0]}{f' and {len(nowhere) - 1} more' if len(nowhere) > 1 else ''}"
    return (
        f"device {names} is lost, and pins forbid block {blocks} on every other ({rest}): start it again, or plan with "
        "fewer `keep_off`"
    )
