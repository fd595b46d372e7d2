"""Gather what a workspace holds for the page, and for missing parts the command that makes them. Draws nothing."""

import shlex
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
from taglio.flow.workspace import OUTCOME, fits
from taglio.lab.setup import Setup
from taglio.model.graph import Graph
from taglio.plan.result import Plan
from taglio.profile.result import Profile, WholeRun
from taglio.report.parts import Part, Text
from taglio.run.in_process import RunReport

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a part of the page is missing, and the command that makes it."""

    reason: str
    command: str


@dataclass(frozen=True, slots=True)
class Material:
    """The data that the page is drawn from. `absent` gives the reason for each part that is None, by its name here;
    `tools` are the versions that measured the profile. `built_in` is the folder, within the workspace, of what is to be
    deployed: the components where nothing can leave taglio."""

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
    absent: dict[str, Absent] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    built_in: str = workspace.DEPLOY

    @property
    def metric(self) -> Metric:
        """The metric whose losses the errors are."""
        source = self.plan.limits if self.plan is not None else self.outcome or self.error
        return source.metric if source is not None else Metric()

    @property
    def max_error(self) -> float | None:
        """The limit of the outcome or the plan; None if there is none."""
        if self.outcome is not None:
            return self.outcome.max_error
        return self.plan.limits.max_error if self.plan is not None else None

    def profiled(self, name: str) -> WholeRun | None:
        """The profile's whole-model run called `name`."""
        return next((run for run in self.profile.runs if run.name == name), None)

    def lacks(self, name: str) -> list[Part]:
        """The text in place of a missing part: why it is missing, and the command that makes it."""
        missing = self.absent[name]
        return [Text(f"{missing.reason} To make it:", "absent", missing.command)]


def gather(folder: Path) -> Material:
    """Read a workspace. Raises BadArtifact if the profile or its graph is missing, or any artifact is damaged or of
    another model."""
    profile_path = folder / f"{workspace.PROFILE}.json"
    profile = artifact.load(profile_path, workspace.PROFILE, Profile)
    sha256, graph_path = profile.model_sha256, folder / f"{workspace.GRAPH}.json"
    graph = artifact.load(graph_path, workspace.GRAPH, Graph, model_sha256=sha256)
    reader = _ArtifactReader(folder, sha256)
    setup = reader.artifact(workspace.SETUP, Setup, "profile MODEL --data DATA -o")
    plan = reader.artifact(workspace.PLAN, Plan, "plan --max-error E")
    current = plan.fingerprint() if plan is not None else ""
    outcome = reader.artifact(OUTCOME, Outcome, "optimize MODEL --data DATA --max-error E -o", current)
    error = reader.artifact(workspace.ERROR, ErrorModel, "error")
    if error is None and outcome is not None:
        reason = "error.json is not in this directory: optimize omits it if no plan could be faster than float."
        reader.absent[workspace.ERROR] = _absent(folder, reason, "error")
    fits(profile_path, profile, graph)
    name = outcome.model if outcome is not None else Path(setup.model).stem if setup is not None else folder.name
    manifest = reader.manifest()
    run = reader.artifact(workspace.RUN, RunReport, "run", current)
    front = reader.artifact("pareto", Front, "plan --cluster FILE --max-error E --axes latency,error")
    reader.absent.pop("pareto", None)  # no stage of the flow
    tools = msgspec.json.decode(profile_path.read_bytes(), type=_Versions).tools
    built_in = workspace.DEPLOY if (folder / workspace.DEPLOY).is_dir() else workspace.COMPONENTS
    return Material(
        name, profile, graph, setup, error, plan, outcome, manifest, run, front, reader.absent, tools, built_in
    )


class _ArtifactReader:
    """Reads artifacts, and records why one is missing."""

    def __init__(self, folder: Path, sha256: str) -> None:
        self._folder, self._sha256 = folder, sha256
        self.absent: dict[str, Absent] = {}

    def artifact(self, kind: str, expected: type[T], command: str, plan_sha256: str = "") -> T | None:
        """The artifact; None if it is missing, or of another plan than `plan_sha256`."""
        path, reason = self._folder / f"{kind}.json", f"{kind}.json is not in this directory."
        if path.exists():
            value = artifact.load(path, kind, expected, model_sha256=self._sha256)
            if not plan_sha256 or getattr(value, "plan_sha256", plan_sha256) == plan_sha256:
                return value
            reason = f"{kind}.json belongs to another plan than plan.json."
        self.absent[kind] = _absent(self._folder, reason, command)
        return None

    def manifest(self) -> Manifest | None:
        """The manifest of the components; None if there is none."""
        folder = self._folder / workspace.COMPONENTS
        if (folder / MANIFEST).exists():
            return read(folder, model_sha256=self._sha256)
        reason = f"{workspace.COMPONENTS}/{MANIFEST} is not in this directory."
        self.absent["manifest"] = _absent(self._folder, reason, "build")
        return None


def _absent(folder: Path, reason: str, command: str) -> Absent:
    verb, _, options = command.partition(" ")
    where = shlex.quote(str(folder))
    words = ["taglio", verb, options, where] if options.endswith("-o") else ["taglio", verb, where, options]
    return Absent(reason, " ".join(word for word in words if word))


class _Versions(msgspec.Struct):
    tools: dict[str, str]
