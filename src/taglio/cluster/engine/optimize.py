"""The whole flow on a running cluster: profile on every device, error, plan, build, deploy, run. Decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from taglio import artifact
from taglio.cluster.engine.connect import connect, gather
from taglio.cluster.engine.remote_profile import profile_devices, refine_devices
from taglio.cluster.engine.replan import Planned
from taglio.cluster.engine.result import ClusterRun
from taglio.cluster.engine.run import answer_requests
from taglio.components.prove import Proof
from taglio.errors import BadOption
from taglio.flow.build import build
from taglio.flow.choose_forms import try_forms, with_forms
from taglio.flow.choose_scheme import choose, float_where_none_loads
from taglio.flow.error import error_model
from taglio.flow.opening import Model
from taglio.flow.place import candidate, place, source
from taglio.flow.placing import CLUSTER, opened
from taglio.flow.plan import Bounds, limits_for, steered
from taglio.flow.profile import AUTO, read_scheme
from taglio.flow.result import result_of, write
from taglio.flow.work import Work
from taglio.flow.workspace import COMPONENTS, PROFILE
from taglio.plan.result import Plan
from taglio.plan.workload import parse_objective
from taglio.profile.result import Profile
from taglio.progress import Progress
from taglio.runtimes.onnxruntime import NAME
from taglio.transaction import changing

# Requests of the final run: at least this many, for at least this many seconds, and at most; predictions are for the
# steady state. With half a processor, thirty short requests mostly escape the quota: their median was 1.4 ms, but
# 3 ms over hundreds.
_RUNS, _RUNS_S, _MOST_RUNS = 30, 2.0, 2000
# Time limits of the first plan, whose precisions are then timed and which needs no proof, and of the last plan.
_FIRST_S, _LAST_S = 6.0, 20.0


@dataclass(frozen=True, slots=True)
class ClusterOutcome:
    """The plan, the proof that its components equal the whole model, and the run compared with its predictions.

    `scheme_from` is the device whose timings chose the scheme that all devices use.
    """

    plan: Plan
    proof: Proof
    run: ClusterRun
    scheme: str
    scheme_from: str


def optimize_on_cluster(
    folder: Path,
    model: Path,
    data: Path,
    cluster_file: Path,
    *,
    max_error: Bounds,
    scenario: str | None = None,
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
    cluster, used = opened(cluster_file, scenario)
    aim, wanted = parse_objective(objective), read_scheme(scheme)
    if all(device.assumed for device in cluster.devices):
        raise BadOption(
            f"{used.file}: every device has scaled times, so none would profile the model: "
            "remove scale from at least one"
        )
    with changing(folder, create=True) as staged:
        work: Work = Model(model, data, **steered(max_error, settings)).telling(progress)
        # Refuse a bound that cannot be kept before measuring anything.
        losses = limits_for(work, max_error, keep_float, force_int8)
        with connect(cluster.start) as connection:
            connection.need([device.name for device in cluster.devices])
            here = connection.here.name
            settled, chosen, bound = work, wanted, losses.max_error or 0.0
            if chosen is None:
                timed = work.but(setup=replace(work.setup, threads=cluster.device(here).threads))
                asked = gather(connection, [device.name for device in cluster.devices])
                saturating = any(each.saturates for each in asked.values())
                chosen, tried = choose(timed, bound, losses.metric, saturating_elsewhere=saturating)
                settled = float_where_none_loads(work, tried)
                work.kept.forget("builder", but=chosen)
            settled = settled.settled(chosen)
            if wanted is None:
                runtime = settled.setup.options().runtime
                forms = try_forms(settled, chosen, {runtime: 0.0}, bound, losses.metric, effort=effort)
                chosen, _ = with_forms(chosen, [runtime], forms)
            profiles = profile_devices(connection, settled, cluster, chosen, effort)
        own = profiles.get(cluster.start) or next(iter(profiles.values()))
        error = error_model(settled.in_place(NAME), own, effort=effort)

        def placed(profiles: dict[str, Profile], own: Profile, time_limit_s: float) -> Plan:
            limits = {"max_error": max_error, "keep_float": keep_float, "force_int8": force_int8}
            each = candidate(settled, own, error, profiles=profiles, name=staged.name, **limits)  # type: ignore[arg-type]
            return place(each, cluster, objective=aim, time_limit_s=time_limit_s, progress=progress).plans[0]

        first = placed(profiles, own, _FIRST_S)
        with connect(cluster.start) as connection:
            profiles = refine_devices(connection, settled, cluster, profiles, first, effort)
        own = profiles.get(cluster.start) or next(iter(profiles.values()))
        plan = placed(profiles, own, _LAST_S)
        built = build(settled, plan)
        assert built.proof is not None, "build proves"
        # Components are sent from disk, again if a device is lost.
        write(staged, result_of(work, chosen, own, error, plan, built))
        sha256 = work.model.sha256
        for name, each in profiles.items():
            artifact.save(staged / source(cluster, cluster.device(name))[0], PROFILE, sha256, each)
        artifact.save(staged / f"{CLUSTER}.json", CLUSTER, sha256, used)
        settled.kept.forget("switchable")
        runs = max(_RUNS, min(_MOST_RUNS, ceil(_RUNS_S / plan.predicted_latency_s.value)))
        run = answer_requests(staged, settled, Planned(staged / COMPONENTS, plan, cluster), runs, progress=progress)
    return ClusterOutcome(plan, built.proof, run, str(chosen), here)
