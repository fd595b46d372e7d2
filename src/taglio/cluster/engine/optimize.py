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
from taglio.cluster.planning.workload import parse_objective
from taglio.components.prove import Proof
from taglio.errors import BadOption, Infeasible
from taglio.flow.error import error_model
from taglio.flow.opening import Model
from taglio.flow.place import candidate, place
from taglio.flow.placing import CLUSTER, opened
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
    if aim.energy:
        cluster.refuse_without_watts()
    if all(device.assumed for device in cluster.devices):
        raise BadOption(
            f"{used.file}: every device has scaled times, so none would profile the model: "
            "remove scale from at least one"
        )
    with changing(folder, create=True) as staged:
        work: Work = Model(model, data, **settings).telling(progress)
        # Refuse a bound that cannot be kept before measuring anything.
        losses = limits_for(work, user, keep_float, force_int8)
        refuse_unportable(work, wanted)
        with connect(cluster.start) as connection:
            connection.need([device.name for device in cluster.devices])
            settled, chosen = work, wanted
            if chosen is None:
                settled, chosen = _screened(connection, cluster, work, losses, effort)
            settled = settled.settled(chosen)
            profiles: Profiles = profile_devices(connection, settled, cluster, chosen, effort)
            # A plan for throughput needs the CPU cost per message.
            if aim.kind == "throughput" and not cluster.messages_cost and len(cluster.devices) > 1:
                ours = tuple(link for link in cluster.links if cluster.start in (link.source, link.target))
                handling = probe(connection, replace(cluster, links=ours), progress).handling
                cluster, used = cluster.with_handling(handling), replace(used, handling=handling)
            error = error_model(settled.in_place(NAME), _own(profiles, cluster), effort=effort)

            def placed(profiles: Profiles, timed: Plan | None, time_limit_s: float) -> Answer:
                own = _own(profiles, cluster)
                limits = {"max_error": max_error, "min_score": min_score, "max_drop": max_drop}
                pins = {"keep_float": keep_float, "force_int8": force_int8}
                plannable = candidate(settled, own, error, profiles=profiles, name=staged.name, **limits, **pins)  # type: ignore[arg-type]
                kept = () if timed is None else (timed,)
                return place(
                    plannable, cluster, objective=aim, precisions_of=kept, time_limit_s=time_limit_s, progress=progress
                )

            refined = partial(refine_devices, connection, settled, cluster, effort=effort)
            plan, profiles = timed_plan(placed, refined, profiles)
            built = build(settled, plan)
            assert built.proof is not None, "build proves"
            # Components are sent from disk, again if a device is lost.
            tables = Tables(settled.graph, _own(profiles, cluster), error)
            write(staged, result_of(settled, chosen, tables, plan, built))
            sha256 = work.model.sha256
            for name, profile in profiles.items():
                artifact.save(staged / cluster.device(name).profile, PROFILE, sha256, profile)
            artifact.save(staged / f"{CLUSTER}.json", CLUSTER, sha256, used)
            settled.kept.forget("switchable")
            # Two seconds of requests, because predictions are for the steady state. With half a processor, thirty short
            # requests mostly escape the quota: their median was 1.4 ms, but 3 ms over hundreds.
            runs = max(30, min(2000, ceil(2.0 / plan.predicted_latency_s.value)))
            recovery = Recovery(connection, staged, Planned(staged / COMPONENTS, plan, cluster), lambda _: 1)
            run = answer_requests(recovery, settled, runs)
    return ClusterOutcome(plan, built.proof, run, str(chosen), connection.here.name if wanted is None else None)


def _screened(
    connection: Connection, cluster: Cluster, work: Work, losses: Limits, effort: float
) -> tuple[Work, Scheme]:
    """The scheme that is best on the device here, for all devices, and `work` with the blocks that cannot be int8 kept
    in float."""
    facts_of = gather(connection, [device.name for device in cluster.devices])
    is_narrow = any(sums_saturate(facts.machine.instructions) for facts in facts_of.values())
    setup = replace(work.setup, threads=cluster.device(connection.here.name).threads)
    alone, bound = work.but(setup=setup).in_place(setup.options().runtime).at(effort), losses.max_error or 0.0
    screened = screen(alone, None, bound, losses.metric, is_forced=True, is_narrow=is_narrow)
    return work.but(graph=screened.work.graph), screened.scheme


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
