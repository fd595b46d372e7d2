"""The workspace directory shared by one model's stages: file names, and reading and writing their values."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import onnx

from taglio import artifact
from taglio.deploy.write import SAMPLES_FOLDER
from taglio.error.loss import parse_metric
from taglio.error.model import ErrorModel
from taglio.errors import BadArtifact, BadData, BadModel
from taglio.flow.opening import open_work
from taglio.lab.build import Built
from taglio.lab.setup import Setup
from taglio.lab.work import Work
from taglio.model.graph import Graph
from taglio.plan.result import Plan
from taglio.profile.result import Profile
from taglio.quantize.ranges import Ranges
from taglio.quantize.scheme import parse_scheme
from taglio.runtimes.onnxruntime import version
from taglio.transaction import drop

SETUP, GRAPH, CALIBRATED, PROFILE = "setup", "graph", "calibrated", "profile"
ERROR, PLAN, RUN, DELIVERED = "error", "plan", "run", "delivered"
COMPONENTS, DEPLOY = "components", "deploy"
FLOAT_MODEL = "float32.onnx"
OUTCOME, PARETO = "outcome", "pareto"
REPORT = "report.html"
# Files made from a stage, removed when it is replaced; a folder means all its files.
_FROM_PLAN = (
    COMPONENTS,
    DEPLOY,
    f"{DEPLOY}/{SAMPLES_FOLDER}",
    f"{DELIVERED}.json",
    f"{RUN}.json",
    f"{OUTCOME}.json",
    "cluster-run.json",
    REPORT,
)
MADE_FROM = {PLAN: _FROM_PLAN, ERROR: (f"{PLAN}.json", f"{PARETO}.json", *_FROM_PLAN)}
MADE_FROM[PROFILE] = MADE_FROM[ERROR]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What later stages reuse of int8, for calibration data `data_sha256`: the ranges (None: not calibrated), and by
    scheme the blocks that cannot be int8 in ONNX Runtime `version`, with the reasons."""

    data_sha256: str
    version: str
    ranges: Ranges | None = None
    floats: dict[str, dict[str, str]] = field(default_factory=dict)


def calibrated(work: Work) -> Calibrated:
    """What is known of int8 so far."""
    floats = {str(scheme): reasons for scheme, reasons in work.kept.all("floats").items()}
    return Calibrated(work.data.calibration.sha256, version(), work.kept.all("ranges").get(""), floats)


def begin(folder: Path, sha256: str, setup: Setup, float32: onnx.ModelProto, graph: Graph, stored: Calibrated) -> None:
    """Store an opened model and what is known of int8 to be `stored`, and remove what was made from another profile;
    `graph` is the one that is profiled: flows depend on what failed in int8."""
    drop(folder, *MADE_FROM[PROFILE])
    artifact.write_model(folder / FLOAT_MODEL, float32)
    artifact.save(folder / f"{GRAPH}.json", GRAPH, sha256, graph)
    artifact.save(folder / f"{SETUP}.json", SETUP, sha256, setup)
    artifact.save(folder / f"{CALIBRATED}.json", CALIBRATED, sha256, stored)


def read_calibrated(folder: Path, sha256: str) -> Calibrated:
    """What an earlier stage knew of int8; nothing where that cannot be read."""
    known = _known(folder / f"{CALIBRATED}.json", CALIBRATED, Calibrated, sha256)
    return known or Calibrated("", version())


def _known(path: Path, kind: str, expected: type[T], sha256: str | None) -> T | None:
    try:
        return artifact.load(path, kind, expected, model_sha256=sha256)
    except BadArtifact:  # it will be computed again
        return None


def reopen(folder: Path) -> Work:
    """Open the model and data of a workspace. Raises BadArtifact if the model has changed, or either was moved."""
    path = folder / f"{SETUP}.json"
    setup = artifact.load(path, SETUP, Setup)
    if not setup.model or not setup.data:
        raise BadArtifact(f"{path}: its model or data came from memory: give them to taglio.Model again")
    try:
        work = open_work(setup)
    except (BadModel, BadData):
        for what, given in (("model", setup.model), ("data", setup.data)):
            if not Path(given).exists():
                problem = f"its {what} {given} is no longer there"
                raise BadArtifact(f"{path}: {problem}: put it back, or run taglio profile again") from None
        raise
    artifact.load(path, SETUP, Setup, model_sha256=work.model.sha256)
    stored = read_calibrated(folder, work.model.sha256)
    if stored.data_sha256 == work.data.calibration.sha256:
        if stored.ranges is not None:
            work.kept.put(("ranges", ""), stored.ranges)
        floats = stored.floats if stored.version == version() else {}
        for scheme, reasons in floats.items():
            work.kept.put(("floats", parse_scheme(scheme)), reasons)
    return work


def reopen_profiled(folder: Path) -> tuple[Work, Profile]:
    """The workspace, with the blocks float that failed in int8 under its profile's scheme, and the profile."""
    work = reopen(folder)
    path = folder / f"{PROFILE}.json"
    measured = artifact.load(path, PROFILE, Profile, model_sha256=work.model.sha256)
    work = work.settled(measured.scheme)
    fits(path, measured, work.graph)
    return work, measured


def load_if_present(folder: Path, kind: str, expected: type[T], sha256: str | None = None) -> T | None:
    """An artifact of a workspace, for the model `sha256` (None: any); None if its stage has not run."""
    path = folder / f"{kind}.json"
    return artifact.load(path, kind, expected, model_sha256=sha256) if path.exists() else None


def last_error(folder: Path) -> ErrorModel | None:
    """The error model that an earlier run left, of whatever model; None if there is none that can be read."""
    return _known(folder / f"{ERROR}.json", ERROR, ErrorModel, None)


def read_error(folder: Path, work: Work, measured: Profile) -> ErrorModel:
    """The workspace's error model. Raises BadArtifact if it is of another scheme, metric or data."""
    path = folder / f"{ERROR}.json"
    model = artifact.load(path, ERROR, ErrorModel, model_sha256=work.model.sha256)
    for what, has, where, wanted in (
        ("scheme", str(model.scheme), "profile", str(measured.scheme)),
        ("metric", model.metric.name, "workspace", parse_metric(work.setup.metric).name),
        ("data", model.data_sha256[:12], "workspace", work.data.held_out.sha256[:12]),
    ):
        if has != wanted:
            raise BadArtifact(f"{path}: has {what} {has}, but the {where} has {wanted}: run taglio error again")
    return model


def read_plan(folder: Path, work: Work, measured: Profile) -> Plan:
    """The workspace's plan. Raises BadArtifact if its scheme is not the profile's."""
    path = folder / f"{PLAN}.json"
    plan = artifact.load(path, PLAN, Plan, model_sha256=work.model.sha256)
    if plan.scheme != measured.scheme:
        raise BadArtifact(
            f"{path}: has scheme {plan.scheme}, but the profile has {measured.scheme}: run taglio plan again"
        )
    return plan


def fits(path: Path, profile: Profile, graph: Graph) -> None:
    """Raise BadArtifact if a profile has other blocks or flows than the model, as one of another version may have."""
    timed = {block_time.block for block_time in profile.blocks} | {glue.flow for glue in profile.glue}
    named = {block.name for block in graph.blocks} | {flow.name for flow in graph.flows}
    if timed != named:
        raise BadArtifact(f"{path}: does not fit the model ({min(timed ^ named)}): run taglio profile again")


def built_from(folder: Path, built: Built, plan: Plan) -> None:
    """Raise BadArtifact if the components were not built from the plan."""
    if built.plan_sha256 != plan.fingerprint():
        raise BadArtifact(f"{folder / COMPONENTS}: was built from another plan: run taglio build again")


def keep_plan(folder: Path, plan: Plan) -> None:
    """Store a plan in the workspace and remove everything made from another plan."""
    path = folder / f"{PLAN}.json"
    before = _known(path, PLAN, Plan, plan.model_sha256)
    if before is None or before.fingerprint() != plan.fingerprint():
        drop(folder, *MADE_FROM[PLAN])
    artifact.save(path, PLAN, plan.model_sha256, plan)
