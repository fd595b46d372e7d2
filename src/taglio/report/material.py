"""Gather what a workspace holds for the page, and for missing parts the command that makes them. Draws nothing."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from taglio.flow.result import Result
from taglio.flow.work import Setup
from taglio.flow.workspace import OUTCOME, fits
from taglio.model.graph import Graph
from taglio.plan.result import Plan
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Profile, WholeRun
from taglio.run.in_process import RunReport

T = TypeVar("T")


def present(value: T | None) -> T:
    """A part that is known to be there."""
    assert value is not None
    return value


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a part of the page is missing, and the command that makes it."""

    reason: str
    command: str


@dataclass(frozen=True, slots=True)
class Material:
    """The data that the page is drawn from. `absent` gives the reason for each part that is None, by its name here;
    `tools` are the versions that measured the profile."""

    model: str
    profile: Profile
    setup: Setup | None = None
    graph: Graph | None = None
    error: ErrorModel | None = None
    plan: Plan | None = None
    outcome: Outcome | None = None
    manifest: Manifest | None = None
    run: RunReport | None = None
    pareto: Front | None = None
    absent: dict[str, Absent] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        """The metric whose losses the errors are."""
        known = self.plan.limits if self.plan is not None else self.outcome or self.error
        return known.metric if known is not None else Metric()

    def profiled(self, name: str) -> WholeRun | None:
        """The profile's whole-model run called `name`."""
        return next((run for run in self.profile.runs if run.name == name), None)

    def drift(self) -> float:
        """How many times slower the float model was when the outcome was timed than when it was profiled, in the place
        of the profile; 1 if it was not timed there."""
        known, outcome = self.profiled(FLOAT_RUN), self.outcome
        if outcome is None or known is None:
            return 1.0
        place, base = outcome.conditions.runtime, outcome.float32
        timed = [each.latency_s for each in outcome.places if (each.name, each.runtime) == (FLOAT_RUN, place)]
        if not timed and base.runtime == place:
            timed = [base.latency.median_s]
        return timed[0] / known.wall.median_s if timed and timed[0] is not None else 1.0

    def notes(self) -> list[str]:
        """Notes on what makes the outcome's figures less sure."""
        if self.outcome is None:
            return []
        return [*([self.outcome.doubt] if self.outcome.doubt else []), *self.outcome.notes]


def gather(folder: Path) -> Material:
    """Read a workspace. Raises BadArtifact if the profile is missing, or any artifact is damaged or of another
    model."""
    profile_path = folder / f"{workspace.PROFILE}.json"
    profile = artifact.load(profile_path, workspace.PROFILE, Profile)
    reader = _Reader(folder, profile.model_sha256)
    setup = reader.artifact(workspace.SETUP, Setup, "profile MODEL --data DATA -o")
    plan = reader.artifact(workspace.PLAN, Plan, "plan --max-error E")
    current = plan.fingerprint() if plan is not None else ""
    outcome = reader.artifact(OUTCOME, Outcome, "optimize MODEL --data DATA --max-error E -o", current)
    graph = reader.artifact(workspace.GRAPH, Graph, "profile MODEL --data DATA -o")
    error = reader.artifact(workspace.ERROR, ErrorModel, "error")
    if graph is not None:
        for kind, value in ((workspace.PROFILE, profile), (workspace.ERROR, error), (workspace.PLAN, plan)):
            if value is not None:
                fits(folder / f"{kind}.json", value, graph, kind)
    name = outcome.model if outcome is not None else Path(setup.model).stem if setup is not None else folder.name
    manifest = reader.take("manifest", lambda: _manifest(folder, profile.model_sha256), "build")
    run = reader.artifact(workspace.RUN, RunReport, "run", current)
    front = reader.artifact("pareto", Front, "pareto --cluster FILE --max-error E")
    reader.absent.pop("pareto", None)  # no stage of the flow
    tools = _tools(profile_path)
    return Material(name, profile, setup, graph, error, plan, outcome, manifest, run, front, reader.absent, tools)


def of_result(folder: Path, result: Result, manifest: Manifest) -> Material:
    """The material of a result whose artifacts were just written to `folder`."""
    absent = {workspace.RUN: _absent(folder, f"{workspace.RUN}.json is not in this folder.", "run")}
    name = result.table.model if result.table is not None else folder.name
    made = Material(name, result.profile, result.setup, result.graph, result.error, result.plan, result.table, manifest)
    return replace(made, absent=absent, tools=artifact.tools())


class _OtherPlanError(Exception):
    """An artifact that was made from an older plan."""


class _Reader:
    """Reads parts, and records why one is missing."""

    def __init__(self, folder: Path, sha256: str) -> None:
        self._folder = folder
        self._sha256 = sha256
        self.absent: dict[str, Absent] = {}

    def artifact(self, kind: str, expected: type[T], command: str, plan_sha256: str = "") -> T | None:
        """The artifact; None if it is missing, or of another plan than `plan_sha256`."""
        path = self._folder / f"{kind}.json"
        return self.take(kind, lambda: _load(path, kind, expected, self._sha256, plan_sha256), command)

    def take(self, name: str, make: Callable[[], T], command: str) -> T | None:
        try:
            return make()
        except FileNotFoundError as error:
            reason = f"{error.args[0]} is not in this folder."
        except _OtherPlanError as error:
            reason = f"{error} belongs to another plan than plan.json."
        self.absent[name] = _absent(self._folder, reason, command)
        return None


def _absent(folder: Path, reason: str, command: str) -> Absent:
    verb, _, options = command.partition(" ")
    where = shlex.quote(str(folder))
    words = ["taglio", verb, options, where] if options.endswith("-o") else ["taglio", verb, where, options]
    return Absent(reason, " ".join(word for word in words if word))


def _load(path: Path, kind: str, expected: type[T], sha256: str, plan_sha256: str) -> T:
    if not path.exists():
        raise FileNotFoundError(path.name)
    value = artifact.load(path, kind, expected, model_sha256=sha256)
    if plan_sha256 and getattr(value, "plan_sha256", plan_sha256) != plan_sha256:
        raise _OtherPlanError(path.name)
    return value


def _manifest(folder: Path, sha256: str) -> Manifest:
    if not (folder / workspace.COMPONENTS / MANIFEST).exists():
        raise FileNotFoundError(f"{workspace.COMPONENTS}/{MANIFEST}")
    return read(folder / workspace.COMPONENTS, model_sha256=sha256)


class _Versions(msgspec.Struct):
    tools: dict[str, str]


def _tools(path: Path) -> dict[str, str]:
    return msgspec.json.decode(path.read_bytes(), type=_Versions).tools
