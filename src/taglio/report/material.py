"""Gather what a workspace holds for the page. Draws nothing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from taglio import artifact
from taglio.components.build import MANIFEST, Manifest, read
from taglio.error.loss import Metric
from taglio.error.model import ErrorModel
from taglio.flow import workspace
from taglio.flow.outcome import Outcome
from taglio.flow.pareto import Front
from taglio.flow.workspace import fits
from taglio.lab.setup import Setup
from taglio.model.graph import Graph
from taglio.plan.result import Plan
from taglio.profile.result import Profile
from taglio.run.in_process import RunReport

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Material:
    """The data that the page is drawn from; None for what no stage has made. `tools` are the versions that measured the
    profile. `built_in` is the folder, within the workspace, of what is to be deployed: the components where nothing can
    leave taglio."""

    model: str
    profile: Profile
    graph: Graph
    setup: Setup | None = None
    error: ErrorModel | None = None
    plan: Plan | None = None
    outcome: Outcome | None = None
    manifest: Manifest | None = None
    run: RunReport | None = None
    pareto: Front | None = None
    tools: dict[str, str] = field(default_factory=dict)
    built_in: str = workspace.DEPLOY

    @property
    def metric(self) -> Metric:
        """The metric whose losses the errors are."""
        source = self.plan.limits if self.plan is not None else self.outcome or self.error
        return source.metric if source is not None else Metric()


def gather(folder: Path) -> Material:
    """Read a workspace. Raises BadArtifact if the profile or its graph is missing, or any artifact is damaged or of
    another model."""
    profile_path = folder / f"{workspace.PROFILE}.json"
    profile = artifact.load(profile_path, workspace.PROFILE, Profile)
    sha256, graph_path = profile.model_sha256, folder / f"{workspace.GRAPH}.json"
    graph = artifact.load(graph_path, workspace.GRAPH, Graph, model_sha256=sha256)

    def made(kind: str, expected: type[T], plan_sha256: str = "") -> T | None:
        """The artifact; None if it is missing, or of another plan than `plan_sha256`."""
        value = workspace.load_if_present(folder, kind, expected, sha256)
        is_current = not plan_sha256 or getattr(value, "plan_sha256", plan_sha256) == plan_sha256
        return value if is_current else None

    setup, plan = made(workspace.SETUP, Setup), made(workspace.PLAN, Plan)
    error = made(workspace.ERROR, ErrorModel)
    current = plan.fingerprint() if plan is not None else ""
    outcome, run = made(workspace.OUTCOME, Outcome, current), made(workspace.RUN, RunReport, current)
    fits(profile_path, profile, graph)
    name = outcome.model if outcome is not None else Path(setup.model).stem if setup is not None else folder.name
    components = folder / workspace.COMPONENTS
    manifest = read(components, model_sha256=sha256) if (components / MANIFEST).exists() else None
    tools = msgspec.json.decode(profile_path.read_bytes(), type=_Versions).tools
    built_in = workspace.DEPLOY if (folder / workspace.DEPLOY).is_dir() else workspace.COMPONENTS
    front = made(workspace.PARETO, Front)
    return Material(name, profile, graph, setup, error, plan, outcome, manifest, run, front, tools, built_in)


class _Versions(msgspec.Struct):
    tools: dict[str, str]
