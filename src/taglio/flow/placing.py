"""Plans for several devices, from the workspaces of models and back into them. Solves nothing."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taglio import artifact
from taglio.arguments import not_negative, positive
from taglio.cluster import file as cluster_file
from taglio.cluster.devices import Cluster, Handling
from taglio.cluster.planning.place import Answer
from taglio.cluster.planning.place import place as solve
from taglio.cluster.planning.workload import Objective, Workload, parse_objective
from taglio.errors import BadOption
from taglio.flow.error import error_of_workspace
from taglio.flow.pareto import AXES, Front, front
from taglio.flow.place import Candidate, candidate
from taglio.flow.place import place as place_all
from taglio.flow.workspace import PARETO, PROFILE, keep_plan, reopen_profiled
from taglio.plan.result import GAP
from taglio.profile.result import Profile
from taglio.profile.waking import with_waking
from taglio.progress import Progress
from taglio.transaction import changing

CLUSTER = "cluster"
# Limits of the first model that also apply to the others.
_SHARED = ("keep_float", "force_int8", "max_latency_s", "max_energy_j", "min_rate_per_s", "max_steps")


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The cluster file that a plan was made for, as written, and by device the CPU cost per message that was measured
    for the plan because the file has none."""

    file: str
    text: str
    handling: Mapping[str, Handling] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Another model to place on the same devices: its workspace, and its limits by argument (see search/limits.py)."""

    folder: Path
    limits: Mapping[str, float]
    rate_per_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Plans for a cluster, and the names of their models."""

    answer: Answer
    names: tuple[str, ...]
    objective: Objective


def opened(path: Path) -> tuple[Cluster, ClusterFile]:
    """The cluster of a file, and the file as written."""
    text = cluster_file.text_of(path)
    return cluster_file.parse(text, str(path)), ClusterFile(str(path), text)


def reopened(folder: Path, cluster: Cluster, **limits: Any) -> Candidate:
    """The model in `folder`, to be placed under `limits` (see flow/place.py `candidate`)."""
    work, measured = reopen_profiled(folder)
    error = error_of_workspace(folder, work, measured)
    profiles = {}
    for device in cluster.devices:
        file = device.profile
        if file != f"{PROFILE}.json" and (folder / file).exists():
            profiles[file] = artifact.load(folder / file, PROFILE, Profile, model_sha256=work.model.sha256)
    return candidate(work, with_waking(measured), error, profiles=profiles, name=folder.name, **limits)


def _opened_all(
    stack: ExitStack, cluster: Cluster, folder: Path, others: Sequence[Wanted], limits: dict[str, Any]
) -> tuple[list[Path], list[Candidate]]:
    """The model in `folder` and the others, with their folders, which stay locked while `stack` is open."""
    folders = [stack.enter_context(changing(path)) for path in (folder, *(other.folder for other in others))]
    candidates = [reopened(folders[0], cluster, **limits)]
    shared = {name: limits[name] for name in _SHARED if name in limits}
    for where, other in zip(folders[1:], others, strict=True):
        candidates.append(reopened(where, cluster, **shared, **other.limits, rate_per_s=other.rate_per_s))
    return folders, candidates


def place(
    folder: Path,
    cluster_path: Path,
    *,
    objective: str = "latency",
    others: Sequence[Wanted] = (),
    gap: float = GAP,
    time_limit_s: float = 20.0,
    progress: Progress | None = None,
    **limits: Any,
) -> Placed:
    """Place the model in `folder`, and `others`, on the devices of a cluster file; `limits` are for the first."""
    aim = parse_objective(objective)
    cluster, used = opened(cluster_path)
    with ExitStack() as stack:
        folders, candidates = _opened_all(stack, cluster, folder, others, limits)
        answer = place_all(candidates, cluster, objective=aim, gap=gap, time_limit_s=time_limit_s, progress=progress)
        for where, plan in zip(folders, answer.plans, strict=True):
            keep_plan(where, plan)
            artifact.save(where / f"{CLUSTER}.json", CLUSTER, plan.model_sha256, used)
    return Placed(answer, tuple(candidate.work.name for candidate in candidates), aim)


def pareto(
    folder: Path,
    cluster_path: Path,
    *,
    axes: str = "latency,error",
    others: Sequence[Wanted] = (),
    points: int = 8,
    gap: float = GAP,
    time_limit_s: float = 4.0,
    progress: Progress | None = None,
    **limits: Any,
) -> Front:
    """Plans of the model in `folder` and `others` that trade latency for error, energy or throughput; `time_limit_s` is
    per placement."""
    first, _, axis = axes.partition(",")
    if first != "latency" or axis not in AXES:
        raise BadOption(f'`axes` "{axes}": give latency,error, latency,energy or latency,throughput')
    not_negative("gap", gap)
    for argument, value in (("points", points), ("time_limit_s", time_limit_s)):
        positive(argument, value)
    cluster, _ = opened(cluster_path)

    def plan(works: Sequence[Workload], aim: Objective) -> Answer:
        return solve(works, cluster, aim, gap=gap, time_limit_s=time_limit_s)

    with ExitStack() as stack:
        folders, candidates = _opened_all(stack, cluster, folder, others, limits)
        if axis == "energy" or any(candidate.limits.max_energy_joules is not None for candidate in candidates):
            cluster.refuse_without_watts()
        works = [candidate.workload(cluster) for candidate in candidates]
        result = front(works, axis, plan, points=points, progress=progress)
        artifact.save(folders[0] / f"{PARETO}.json", PARETO, candidates[0].work.model.sha256, result)
    return result
