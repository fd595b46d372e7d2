"""Let every device profile the model, and later a plan, with its own runtime and threads. Sends the model once.

The stage is the same as on one machine. A device gets the model by content hash, a few inputs and the calibrated
ranges, and returns the profile that `taglio profile` would write there.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from taglio import weights
from taglio.cluster.devices import Cluster, Device
from taglio.cluster.engine.connect import Connection, on, refusal, same_version
from taglio.cluster.engine.deploy import Calls, send
from taglio.cluster.engine.library import ray
from taglio.cluster.engine.resident import Resident
from taglio.errors import BadDevice
from taglio.flow.work import Work
from taglio.model.graph import Graph
from taglio.model.load import load
from taglio.plan.result import Plan
from taglio.profile.measure import FLOAT_RUN, profile, pure_assignments, refine_near
from taglio.profile.result import Profile
from taglio.profile.stopwatch import Effort, time_models
from taglio.progress import Progress
from taglio.quantize.precision import Assignment, Precision, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME, SessionOptions
from taglio.runtimes.openvino import BF16
from taglio.runtimes.places import AUTO, here

_EFFORT_S, _AGAIN_S, _TRIAL_S = 16.0, 6.0, 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What a device is to measure: the hashes of the model's files by name, its own first, and all options of `taglio
    profile`. To refine a plan: the `known` profile and the precisions `near` to measure."""

    files: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    graph: Graph
    ranges: Ranges
    scheme: Scheme
    feeds: list[dict[str, np.ndarray]]
    options: SessionOptions
    effort: float
    seed: int
    known: Profile | None = None
    near: Assignment = field(default_factory=dict)
    requantize: bool = False


class Profiler(Resident):
    """The profile stage on a device. Made an actor below."""

    def profile(self, job: Job) -> Profile:
        """Profile the model that was sent; if a profile is known already, refine it at a plan's precisions."""
        model = load(self.named(job.files), job.shapes, requantize=job.requantize)
        graph, options = job.graph, job.options
        builder = QdqBuilder(model, graph, {job.scheme.calibrated: job.ranges})
        if job.known is not None:
            again = Effort(budget_s=_AGAIN_S * job.effort)
            return refine_near(model, graph, builder, job.known, job.feeds, options, again, near=job.near)
        if options.runtime == AUTO:
            options = replace(options, runtime=fastest(builder, job))
        budget = Effort(budget_s=_EFFORT_S * job.effort)
        return profile(model, graph, builder, job.scheme, job.feeds, options, budget, seed=job.seed)


def fastest(builder: QdqBuilder, job: Job) -> str:
    """The runtime of this machine in which the model is fastest, float or all-int8. Runtimes that compute in bfloat16
    are not tried: the error that they add is not known here."""
    runtimes = [name for name in here() if name != BF16]
    if len(runtimes) == 1:
        return runtimes[0]
    forms = {FLOAT_RUN: dict[str, Precision](), **pure_assignments(job.graph, precisions(job.scheme))}
    ways = {f"{form} in {name}": (form, name) for name in runtimes for form in forms}
    timed = time_models(
        {way: partial(builder.build, forms[form]) for way, (form, _) in ways.items()},
        job.feeds,
        replace(job.options, runtime=NAME),
        Effort(maximum=400, budget_s=_TRIAL_S * job.effort),
        kernels=False,
        places={way: replace(job.options, runtime=name) for way, (_, name) in ways.items()},
        refused={},
    )
    return ways[min(timed, key=lambda way: timed[way].wall.median_s)][1]


def profile_devices(
    connection: Connection, work: Work, cluster: Cluster, scheme: Scheme, effort: float = 1.0
) -> dict[str, Profile]:
    """Profiles by device, of all devices without scaled times; in the runtime given by the cluster file, or else by the
    set-up of `work`, where "auto" is the device's fastest.

    Machines measure in parallel, devices of one machine in turn. Raises BadDevice for a device that cannot.
    """
    asked = _asked(work, scheme, effort)
    runtimes = {device.name: device.runtime for device in cluster.devices if not device.assumed}
    jobs = {name: _in(asked, runtime or asked.options.runtime) for name, runtime in runtimes.items()}
    return _measured(connection, work, cluster, jobs, "profiling devices")


def refine_devices(
    connection: Connection, work: Work, cluster: Cluster, known: Mapping[str, Profile], plan: Plan, effort: float = 1.0
) -> dict[str, Profile]:
    """`known` refined by timing the precisions of `plan` on every device at its current speed: a plan is far from a
    profile's random mixes, and kernel times depend on their neighbours. Raises as above."""
    asked = replace(_asked(work, plan.scheme, effort), near=plan.assignment())
    jobs = {name: _in(replace(asked, known=each), each.conditions.runtime) for name, each in known.items()}
    return _measured(connection, work, cluster, jobs, "timing the plan")


def _measured(
    connection: Connection, work: Work, cluster: Cluster, jobs: Mapping[str, Job], stage: str
) -> dict[str, Profile]:
    """The profiles that devices measured for `jobs`."""
    library = ray()
    connection.need(list(jobs))
    waiting: dict[str, deque[tuple[str, Any, Job]]] = {}  # by machine
    for name, job in jobs.items():
        device = cluster.device(name)
        actor, machine = _profiler(device, job, _file(work).parent, work.progress)
        there = replace(job, options=replace(job.options, threads=device.threads))
        waiting.setdefault(machine, deque()).append((name, actor, there))
    running: dict[Any, tuple[str, str, Any]] = {}  # keeps the actor, which ends with its handle
    found: dict[str, Profile] = {}
    while running or any(waiting.values()):
        for machine, queue in waiting.items():
            if queue and all(machine != each for _, each, _ in running.values()):
                name, actor, job = queue.popleft()
                running[actor.profile.remote(job)] = name, machine, actor
        done, _ = library.wait(list(running), timeout=1.0)
        for answer in done:
            name = running[answer][0]
            try:
                found[name] = library.get(answer)
            except Exception as error:
                raise refusal(name, error) from None
            del running[answer]
        if work.progress:
            work.progress(stage, len(found), len(jobs))
    return found


def _asked(work: Work, scheme: Scheme, effort: float) -> Job:
    """The job of every device, apart from its threads."""
    setup, model = work.setup, _file(work)
    tensors = weights.tensors(onnx.load(model, load_external_data=False))
    names = [model.name, *(weights.place(each)[0] for each in tensors if weights.in_file(each))]
    files = {name: weights.sha256(model.parent / name) for name in dict.fromkeys(names)}
    feeds = [dict(each) for each in work.timed]
    ranges = work.ranges(scheme)
    options = replace(setup.options(), threads=1, runtime=setup.runtime)
    job = Job(files, setup.shapes, work.graph, ranges, scheme, feeds, options, effort, setup.seed)
    return replace(job, requantize=setup.requantize)


def _file(work: Work) -> Path:
    """The model as an ONNX file."""
    assert isinstance(work.source, Path), "commands give a path"
    return work.source


def _in(job: Job, runtime: str) -> Job:
    return replace(job, options=replace(job.options, runtime=runtime))


def _profiler(device: Device, job: Job, folder: Path, progress: Progress | None) -> tuple[Any, str]:
    """A profiler on the device, with the model in `folder` sent, and the machine that it is on. Raises BadDevice, also
    if the device lacks the job's runtime."""
    runtime = job.options.runtime
    actor = ray().remote(num_cpus=0, max_restarts=0)(Profiler).options(**on(device.name)).remote()
    try:
        told = Calls(actor).facts()
        same_version(told)
        if runtime not in (AUTO, *told.runtimes):
            raise BadDevice(
                f'device "{device.name}" has no {runtime}, only {", ".join(told.runtimes)}: install it there, or give '
                "it another runtime in the cluster file"
            )
        send(Calls(actor), {sha256: folder / name for name, sha256 in job.files.items()}, progress)
    except Exception as error:
        raise refusal(device.name, error) from None
    return actor, told.clock
