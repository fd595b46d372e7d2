"""Let every device profile the model, and later a plan, with its own runtime and threads. Sends the model once.

The stage is the same as on one machine. A device gets the model as it was simplified here, by content hash, a few
inputs and the calibrated ranges, and returns the profile that `taglio profile` would write there. Of the sessions that
are timed, as many are open at once as fit in the memory of the device, and at least one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from math import isinf
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from taglio import artifact, weights
from taglio.cluster.devices import Cluster, Device
from taglio.cluster.engine.connect import Connection, on, refusal
from taglio.cluster.engine.deploy import Calls, admitted, send
from taglio.cluster.engine.host import Host
from taglio.cluster.engine.library import ray
from taglio.lab.work import Work
from taglio.memory import free_bytes, used_bytes
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.plan.result import Plan
from taglio.profile.effort import Effort
from taglio.profile.measure import FLOAT_RUN, profile, pure_assignments, refine_near
from taglio.profile.result import Profile
from taglio.profile.rounds import run_once
from taglio.profile.stopwatch import Stopwatch
from taglio.profile.waking import with_waking
from taglio.quantize.precision import Assignment, Precision, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME, SessionOptions, open_session
from taglio.runtimes.places import AUTO, here
from taglio.scratch import scratch


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What a device is to measure: the `model` without its `proto`, whose files are sent, and all options of `taglio
    profile`. Sessions may take `memory_bytes` (None: half of what is free) at once. To refine a plan: the profile
    `before` and the precisions `near` to measure."""

    model: Model
    graph: Graph
    ranges: Ranges
    scheme: Scheme
    feeds: list[dict[str, np.ndarray]]
    options: SessionOptions
    effort: float
    seed: int
    before: Profile | None = None
    near: Assignment = field(default_factory=dict)
    memory_bytes: int | None = None

    def limit_bytes(self) -> int:
        """The most memory that this process may take."""
        used = used_bytes()
        return (free_bytes() + used) // 2 if self.memory_bytes is None else used + self.memory_bytes


def profiled(job: Job, path: Path) -> Profile:
    """Run on a device: the profile of the model in the file `path`; if it was profiled before, that refined at a plan's
    precisions."""
    limit_bytes, model, options = job.limit_bytes(), opened(job.model, path), job.options
    builder = QdqBuilder(model, job.graph, job.ranges)
    stopwatch, operators = Stopwatch(job.feeds, options, limit_bytes), len(model.proto.graph.node)
    if job.before is not None:
        again = Effort(6.0 * job.effort, operators=operators)
        return refine_near(builder, job.graph, job.before, stopwatch, again, near=job.near)
    session = open_session(model.proto, replace(options, runtime=NAME))
    effort = Effort(16.0 * job.effort, run_once(model.name, session, job.feeds[:1]), operators)
    del session
    if options.runtime == AUTO:
        stopwatch = replace(stopwatch, options=replace(options, runtime=fastest(builder, job, stopwatch, effort)))
    return with_waking(profile(builder, job.graph, job.scheme, stopwatch, effort, seed=job.seed))


def opened(model: Model, path: Path) -> Model:
    """`model` with its `proto` from the file `path`; its weights stay in files if they came so."""
    proto = weights.load(path)
    if not weights.refers(proto):
        return replace(model, proto=proto)
    store = weights.WeightFiles()
    return replace(model, proto=store.take(proto), store=store)


def fastest(builder: QdqBuilder, job: Job, stopwatch: Stopwatch, effort: Effort) -> str:
    """The runtime of this machine in which the model is fastest, float or all int8, from races of a shorter effort."""
    runtimes = here()
    if len(runtimes) == 1:
        return runtimes[0]
    forms = {FLOAT_RUN: dict[str, Precision](), **pure_assignments(job.graph, precisions(job.scheme))}
    ways = {f"{form} in {name}": (form, name) for name in runtimes for form in forms}
    timed = stopwatch.time(
        {way: partial(builder.build, forms[form]) for way, (form, _) in ways.items()},
        replace(effort, maximum=400, budget_s=3.0 * job.effort),
        places={way: replace(job.options, runtime=name) for way, (_, name) in ways.items()},
    ).timed
    return ways[min(timed, key=lambda way: timed[way].wall.median_s)][1]


def profile_devices(
    connection: Connection, work: Work, cluster: Cluster, scheme: Scheme, effort: float = 1.0
) -> dict[str, Profile]:
    """Profiles by device, of all devices without scaled times; in the runtime given by the cluster file, or else by the
    set-up of `work`, where "auto" is the device's fastest.

    Machines measure in parallel, devices of one machine in turn. Raises BadDevice for a device that cannot.
    """
    devices = [device for device in cluster.devices if not device.assumed]
    jobs = {device.name: _job(work, scheme, effort, device, device.runtime or work.setup.runtime) for device in devices}
    return _measured(connection, work, cluster, jobs, "profiling devices")


def refine_devices(
    connection: Connection,
    work: Work,
    cluster: Cluster,
    profiles: Mapping[str, Profile],
    plan: Plan,
    effort: float = 1.0,
) -> dict[str, Profile]:
    """`profiles` refined by timing the precisions of `plan` on every device at its current speed: a plan is far from a
    profile's random mixes, and kernel times depend on their neighbours. Raises as above."""
    jobs = {}
    for name, before in profiles.items():
        job = _job(work, plan.scheme, effort, cluster.device(name), before.conditions.runtime)
        jobs[name] = replace(job, before=before, near=plan.assignment())
    return _measured(connection, work, cluster, jobs, "timing the plan")


def _measured(
    connection: Connection, work: Work, cluster: Cluster, jobs: Mapping[str, Job], stage: str
) -> dict[str, Profile]:
    """The profiles that devices measured for `jobs`."""
    connection.need(list(jobs))
    by_machine: dict[str, list[tuple[str, Any, Path]]] = {}
    with scratch() as folder:
        files = written(work.model, folder)
        for name, job in jobs.items():
            actor = ray().remote(num_cpus=0, max_restarts=0)(Host).options(**on(name)).remote()
            try:
                machine = admitted(Calls(actor), cluster.device(name), job.options.runtime).clock
                send(Calls(actor), files, folder, work.progress)
                path = Calls(actor).verified(files)
            except Exception as error:
                raise refusal(name, error) from None
            by_machine.setdefault(machine, []).append((name, actor, path))
    profiles: dict[str, Profile] = {}
    for turn in zip_longest(*by_machine.values()):  # one device of each machine
        answers = {name: actor.call.remote(profiled, jobs[name], path) for name, actor, path in filter(None, turn)}
        for name, answer in answers.items():
            if work.progress:
                work.progress(stage, len(profiles), len(jobs))
            try:
                profiles[name] = ray().get(answer)
            except Exception as error:
                raise refusal(name, error) from None
    return profiles


def _job(work: Work, scheme: Scheme, effort: float, device: Device, runtime: str) -> Job:
    """The job of a device."""
    model, feeds = replace(work.model, proto=onnx.ModelProto(), store=None), [dict(feed) for feed in work.timed]
    options = replace(work.setup.options(), threads=device.threads, runtime=runtime)
    job = Job(model, work.graph, work.ranges(), scheme, feeds, options, effort, work.setup.seed)
    return job if isinf(device.memory_bytes) else replace(job, memory_bytes=int(device.memory_bytes))


def written(model: Model, folder: Path) -> dict[str, str]:
    """Write a model for devices; returns the hashes of its files by name."""
    path = folder / "model.onnx"
    return dict(zip((path.name, f"{path.name}{artifact.DATA}"), artifact.write_model(path, model.proto), strict=False))
