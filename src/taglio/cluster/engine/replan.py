"""Quickly make a new plan and its components for the remaining devices. Measures no error: the upper end of the
predicted error, corrected by what the workspace's plan measured, keeps the bound."""

from dataclasses import dataclass, replace
from pathlib import Path

from taglio.cluster.devices import Cluster
from taglio.cluster.planning.describe import predicted_error
from taglio.cluster.planning.place import place
from taglio.cluster.planning.workload import parse_objective
from taglio.components.build import MANIFEST
from taglio.flow.place import Candidate
from taglio.flow.placing import reopened
from taglio.flow.workspace import read_plan
from taglio.lab.build import assemble
from taglio.plan.result import Limits, Plan


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan with its components in `folder`, ready for deployment on `cluster`."""

    folder: Path
    plan: Plan
    cluster: Cluster


def replan(out: Path, before: Plan, cluster: Cluster, into: Path) -> Planned:
    """The best plan on `cluster` for the workspace `out`, under the limits of `before`, built below `into` if it is not
    there yet. Raises Infeasible if the limits cannot be kept."""
    limits = _without(before.limits, {device.name for device in cluster.devices})
    # A plan's bound is a loss; candidates expect it in the metric's unit.
    candidate = replace(reopened(out, cluster), limits=limits)
    workload = _as_measured(out, candidate).workload(cluster)
    (plan,) = place([workload], cluster, parse_objective(before.objective), time_limit_s=4.0).plans
    folder = into / plan.fingerprint()
    if not (folder / MANIFEST).exists():  # which is written last
        assemble(candidate.work, plan).write(folder)
    return Planned(folder, plan, cluster)


def _as_measured(out: Path, candidate: Candidate) -> Candidate:
    """The candidate with errors predicted higher by the factor by which the measured error of the workspace's plan
    exceeds what the study predicts: a study for OpenVINO alone, for example, has fewer pairs than models built for
    several devices. Metrics that change in steps are not scaled."""
    plan, error = read_plan(out, candidate.work, candidate.measured), candidate.error
    expected, measured = predicted_error(error, candidate.work.graph, plan), plan.measured_error or 0.0
    if not error.metric.smooth or not 0.0 < expected < measured:
        return candidate
    return replace(candidate, error=error.scaled(measured / expected))


def _without(limits: Limits, names: set[str]) -> Limits:
    """The limits without those about lost devices."""
    return replace(
        limits,
        device_pins=tuple((block, device) for block, device in limits.device_pins if device in names),
        device_exclusions=tuple((block, device) for block, device in limits.device_exclusions if device in names),
    )
