"""The whole flow on a running cluster: every device profiles, then error, plan, build, deploy, run. Decides nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from taglio import artifact
from taglio.cluster.devices import Cluster
from taglio.cluster.engine.connect import connect, gather
from taglio.cluster.engine.remote_profile import profile_devices, refine_devices
from taglio.cluster.engine.result import ClusterRun
from taglio.cluster.engine.run import run_on_cluster
from taglio.components.prove import Proof
from taglio.errors import BadOption
from taglio.flow import workspace
from taglio.flow.choose_scheme import choose, float_where_none_loads
from taglio.flow.error import error_stage, loss_limits, open_switchable
from taglio.flow.place import ClusterFile, candidate, place_models
from taglio.flow.stages import build
from taglio.flow.transaction import changing, drop
from taglio.flow.workspace import MADE_FROM, PROFILE, SETUP, Setup, Work
from taglio.model.graph import Graph
from taglio.plan.objective import Objective
from taglio.plan.result import Limits, Plan
from taglio.profile.result import Profile
from taglio.profile.stopwatch import Progress

# Requests at the end: so many, and as many as fill so many seconds, because what is predicted is the long run. On half
# a processor most of thirty short requests meet no quota: their median was 1.4 ms where hundreds took 3 each.
_RUNS, _RUNS_S, _MOST_RUNS = 30, 2.0, 2000
# For a plan whose precisions are to be timed, which need not be proven, and for the one after.
_FIRST_S, _LAST_S = 6.0, 20.0


@dataclass(frozen=True, slots=True)
class ClusterOutcome:
    """The plan, the proof that its components equal the whole, and the run that was held against its predictions.

    `scheme_from` is the device whose clock chose the scheme that all of them use.
    """

    plan: Plan
    proof: Proof
    run: ClusterRun
    scheme: str
    scheme_from: str


def optimize_on_cluster(
    folder: Path,
    setup: Setup,
    limits_of: Callable[[Graph], Limits],
    cluster: Cluster,
    objective: Objective,
    used: ClusterFile,
    *,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> ClusterOutcome:
    """The best plan under the limits that `limits_of` gives for its blocks on the devices that run, built into `folder`
    and run on them."""
    with changing(folder, create=True) as staged:
        drop(staged, *MADE_FROM[PROFILE])
        return _optimize(staged, setup, limits_of, cluster, objective, used, effort=effort, progress=progress)


def _optimize(
    folder: Path,
    setup: Setup,
    limits_of: Callable[[Graph], Limits],
    cluster: Cluster,
    objective: Objective,
    used: ClusterFile,
    *,
    effort: float,
    progress: Progress | None,
) -> ClusterOutcome:
    if all(device.assumed for device in cluster.devices):
        raise BadOption(
            f"{used.file}: every device's times are another's, scaled, and none would profile the model: "
            "leave scale out for one at least"
        )
    work = workspace.open_only(folder, setup)
    # A bound that cannot be kept is refused before anything is written.
    losses = loss_limits(work, limits_of(work.graph))
    workspace.keep(work)
    with connect(cluster.start) as connection:
        connection.need([device.name for device in cluster.devices])
        here = connection.here.name
        scheme = setup.scheme
        if scheme is None:
            timed = replace(work, setup=replace(setup, threads=cluster.device(here).threads))
            asked = gather(connection, [device.name for device in cluster.devices])
            saturating = any(each.saturates for each in asked.values())
            bound = losses.max_error or 0.0
            scheme, tried = choose(timed, bound, losses.metric, progress=progress, saturating_elsewhere=saturating)
            work = float_where_none_loads(work, tried)
        work = work.settled(scheme, progress)
        profiles = profile_devices(connection, work, cluster, scheme, effort, progress)
    _keep(work, cluster, profiles)
    artifact.save(folder / f"{SETUP}.json", SETUP, work.model.sha256, replace(setup, scheme=scheme))
    switchable = open_switchable(work, work.builder(scheme, progress), scheme)
    error_stage(work, scheme, switchable, effort=effort, progress=progress)

    def placed(time_limit_s: float) -> Plan:
        candidates = [candidate(folder, limits_of)]
        return place_models(
            candidates, cluster, objective, time_limit_s=time_limit_s, used=used, progress=progress
        ).plans[0]

    first = placed(_FIRST_S)
    with connect(cluster.start) as connection:
        _keep(work, cluster, refine_devices(connection, work, cluster, profiles, first, effort, progress))
    plan = placed(_LAST_S)
    _, proof = build(folder, progress)
    runs = max(_RUNS, min(_MOST_RUNS, ceil(_RUNS_S / plan.predicted_latency_s.value)))
    run = run_on_cluster(folder, cluster, runs, progress=progress)
    return ClusterOutcome(plan, proof, run, str(scheme), here)


def _keep(work: Work, cluster: Cluster, profiles: Mapping[str, Profile]) -> None:
    """The stages that follow read the profile of the start device as their own."""
    own = profiles.get(cluster.start) or next(iter(profiles.values()))
    artifact.save(work.folder / f"{PROFILE}.json", PROFILE, work.model.sha256, own)
