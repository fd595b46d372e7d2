"""The whole flow on a running cluster: profile on every device, error, plan, build, deploy, run. Decides nothing."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from taglio import artifact
from taglio.cluster.devices import Cluster
from taglio.cluster.engine.connect import Connection, connect, gather
from taglio.cluster.engine.probe import probe
from taglio.cluster.engine.recover import Recovery
from taglio.cluster.engine.remote_profile import profile_devices, refine_devices
from taglio.cluster.engine.replan import Planned
from taglio.cluster.engine.result import ClusterRun
from taglio.cluster.engine.run import answer_requests
from taglio.cluster.planning.place import Answer
from taglio.cluster.planning.workload import Objective, parse_objective
from taglio.components.prove import Proof
from taglio.error.model import ErrorModel
from taglio.errors import BadOption, Infeasible
from taglio.flow.error import error_model
from taglio.flow.opening import Model
from taglio.flow.place import candidate, place
from taglio.flow.placing import CLUSTER, ClusterFile, opened
from taglio.flow.profile import AUTO, read_scheme
from taglio.flow.result import result_of, write
from taglio.flow.workspace import COMPONENTS, PROFILE
from taglio.lab.build import build
from taglio.lab.work import Work
from taglio.plan.result import GAP, Limits, Plan, Status
from taglio.plan.tables import Tables
from taglio.profile.result import Profile
from taglio.progress import Progress
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.processor import sums_saturate
from taglio.search.limits import Bounds, limits_for, steered, user_limits
from taglio.search.screen import refuse_unportable, screen
from taglio.transaction import changing

# Time limits of the first plan, whose precisions are then timed and which needs no proof, and of those after it; and of
# choosing devices for precisions that were timed.
_FIRST_S, _LAST_S, _TIMED_S = 6.0, 20.0, 6.0

Profiles = Mapping[str, Profile]


@dataclass(frozen=True, slots=True)
class ClusterOutcome:
    """The plan, the proof that its components equal the whole model, and the run compared with its predictions.

    `scheme_from` is the device whose timings chose the scheme that all devices use, None for a scheme that was given.
    """

    plan: Plan
    proof: Proof
    run: ClusterRun
    scheme: str
    scheme_from: str | None


def optimize_on_cluster(
    folder: Path,
    model: Path,
    data: Path,
    cluster_file: Path,
    *,
    max_error: Bounds | None = None,
    min_score: Bounds | None = None,
    max_drop: Bounds | None = None,
    objective: str = "latency",
    keep_float: Sequence[str] = (),
    force_int8: Sequence[str] = (),
    scheme: str = AUTO,
    effort: float = 1.0,
    progress: Progress | None = None,
    **settings: Any,
) -> ClusterOutcome:
    """The best plan under the limits for the running devices of a cluster file, built into `folder` and run on them.
    `settings` are those of taglio.Model."""
    user, settings = steered(user_limits(max_error, min_score, max_drop), settings)
    (cluster, used), aim, wanted = opened(cluster_file), parse_objective(objective), read_scheme(scheme)
    _refuse_unplannable(cluster, used, aim)
    bounds = {"max_error": max_error, "min_score": min_score, "max_drop": max_drop}
    limits = {**bounds, "keep_float": keep_float, "force_int8": force_int8}
    with changing(folder, create=True) as staged:
        work: Work = Model(model, data, **settings).telling(progress)
        # Refuse a bound that cannot be kept before measuring anything.
        losses = limits_for(work, user, keep_float, force_int8)
        refuse_unportable(work, wanted)
        with connect(cluster.start) as connection:
            connection.need([device.name for device in cluster.devices])
            settled, chosen = (
                (work, wanted) if wanted is not None else _screened(connection, cluster, work, losses, effort)
            )
            settled = settled.settled(chosen)
            profiles: Profiles = profile_devices(connection, settled, cluster, chosen, effort)
            if aim.kind == "throughput" and not cluster.messages_cost and len(cluster.devices) > 1:
                cluster, used = _with_message_costs(connection, cluster, used, progress)
            error = error_model(settled.in_place(NAME), _own(profiles, cluster), effort=effort)
            placed = _Placing(settled, error, cluster, aim, staged.name, limits)
            refined = partial(refine_devices, connection, settled, cluster, effort=effort)
            plan, profiles = timed_plan(placed, refined, profiles)
            built = build(settled, plan)
            tables = Tables(settled.graph, _own(profiles, cluster), error)
            # Components are sent from disk, again if a device is lost.
            write(staged, result_of(settled, chosen, tables, plan, built))
            _keep(staged, work.model.sha256, cluster, used, profiles)
            settled.kept.forget("switchable")
            run = _answered(connection, settled, Planned(staged / COMPONENTS, plan, cluster), staged)
    assert built.proof is not None, "build proves"
    return ClusterOutcome(plan, built.proof, run, str(chosen), connection.here.name if wanted is None else None)


def _refuse_unplannable(cluster: Cluster, used: ClusterFile, aim: Objective) -> None:
    """Raise BadOption for a cluster file that lacks what a plan for `aim` is made from."""
    if aim.energy:
        cluster.refuse_without_watts()
    if all(device.assumed for device in cluster.devices):
        raise BadOption(
            f"{used.file}: every device has scaled times, so none would profile the model: "
            "remove scale from at least one"
        )


def _screened(
    connection: Connection, cluster: Cluster, work: Work, losses: Limits, effort: float
) -> tuple[Work, Scheme]:
    """`work` with the blocks that cannot be int8 kept in float, and the scheme that is best on the device here, for all
    devices."""
    facts_of = gather(connection, [device.name for device in cluster.devices])
    is_narrow = any(sums_saturate(facts.machine.instructions) for facts in facts_of.values())
    setup = replace(work.setup, threads=cluster.device(connection.here.name).threads)
    alone, bound = work.but(setup=setup).in_place(setup.options().runtime).at(effort), losses.max_error or 0.0
    screened = screen(alone, None, bound, losses.metric, is_forced=True, is_narrow=is_narrow)
    return work.but(graph=screened.work.graph), screened.scheme


def _with_message_costs(
    connection: Connection, cluster: Cluster, used: ClusterFile, progress: Progress | None
) -> tuple[Cluster, ClusterFile]:
    """The cluster, and its file, with the CPU cost per message of each device, which a plan for throughput needs."""
    ours = tuple(link for link in cluster.links if cluster.start in (link.source, link.target))
    handling = probe(connection, replace(cluster, links=ours), progress).handling
    return cluster.with_handling(handling), replace(used, handling=handling)


@dataclass(frozen=True, slots=True)
class _Placing:
    """Makes plans for the cluster from the profiles so far, under the user's `limits` (see flow/place.py `candidate`).
    `name` is the model's in messages."""

    work: Work
    error: ErrorModel
    cluster: Cluster
    aim: Objective
    name: str
    limits: Mapping[str, Any]

    def __call__(self, profiles: Profiles, timed: Plan | None, time_limit_s: float) -> Answer:
        """The best plan, found within the time limit; with the precisions of the plan `timed`, if there is one."""
        own = _own(profiles, self.cluster)
        model = candidate(self.work, own, self.error, profiles=profiles, name=self.name, **self.limits)
        precisions_of = () if timed is None else (timed,)
        return place(
            model,
            self.cluster,
            objective=self.aim,
            precisions_of=precisions_of,
            time_limit_s=time_limit_s,
            progress=self.work.progress,
        )


def _keep(folder: Path, model_sha256: str, cluster: Cluster, used: ClusterFile, profiles: Profiles) -> None:
    """Write the devices' profiles and the cluster file into the workspace directory, for plans after a loss."""
    for name, profile in profiles.items():
        artifact.save(folder / cluster.device(name).profile, PROFILE, model_sha256, profile)
    artifact.save(folder / f"{CLUSTER}.json", CLUSTER, model_sha256, used)


def _answered(connection: Connection, work: Work, planned: Planned, folder: Path) -> ClusterRun:
    """A run of the plan, one request at a time."""
    # Two seconds of requests, because predictions are for the steady state. With half a processor, thirty short
    # requests mostly escape the quota: their median was 1.4 ms, but 3 ms over hundreds.
    runs = max(30, min(2000, ceil(2.0 / planned.plan.predicted_latency_s.value)))
    return answer_requests(Recovery(connection, folder, planned, lambda _: 1), work, runs)


def _own(profiles: Profiles, cluster: Cluster) -> Profile:
    """The start device's profile; another device's if its times are scaled."""
    return profiles.get(cluster.start) or next(iter(profiles.values()))


def timed_plan(
    placed: Callable[[Profiles, Plan | None, float], Answer],
    refined: Callable[[Profiles, Plan], Profiles],
    profiles: Profiles,
) -> tuple[Plan, Profiles]:
    """The best of the plans whose precisions were timed, and the profiles that predict it.

    The plan that is predicted to be best is the one whose prediction is most likely too short: on half a core, plans
    that were not timed took 12 % longer than predicted. `placed` plans within a time limit, perhaps with a plan's
    precisions; `refined` times the precisions of a plan on every device. A second plan is timed if it promises to save
    1 %.
    """
    plan, best = placed(profiles, None, _FIRST_S).plans[0], None
    for _ in range(2):
        profiles = refined(profiles, plan)
        free = placed(profiles, None, _LAST_S)
        with suppress(Infeasible):  # with another choice of what is sent as int8
            timed = placed(profiles, plan, _TIMED_S)
            if best is None or timed.value < best[0].value:
                best = replace(timed, bound=min(free.bound, timed.value)), profiles
            if free.value > 0.99 * timed.value:
                break
        plan = free.plans[0]
    answer, profiles = best or (free, profiles)
    status: Status = "optimal" if answer.gap <= GAP else "measured"
    return replace(answer.plans[0], status=status, gap=answer.gap), profiles
