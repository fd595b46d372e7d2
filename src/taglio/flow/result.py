"""The result of an optimisation as a value in memory: to inspect, save and load again."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from taglio import artifact, weights
from taglio.components.build import Manifest
from taglio.deploy.export import Export, check_layout
from taglio.deploy.write import read_samples
from taglio.error.model import ErrorModel
from taglio.errors import BadOption, plural
from taglio.flow import workspace
from taglio.flow.deliver import Delivered, Delivery, deliver
from taglio.flow.export import export as export_workspace
from taglio.flow.outcome import Outcome
from taglio.flow.workspace import COMPONENTS, DEPLOY, ERROR, GRAPH, OUTCOME, PLAN, PROFILE, SETUP, Calibrated
from taglio.lab.build import Built, Deployed, read
from taglio.lab.setup import Setup
from taglio.lab.work import Work
from taglio.model.graph import Graph
from taglio.plan.result import Plan
from taglio.plan.tables import Tables
from taglio.profile.result import Profile
from taglio.quantize.scheme import Scheme
from taglio.scratch import scratch
from taglio.transaction import changing, drop, held


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A plan with everything that it was made from. `float32` is the simplified float model, `graph` its blocks,
    `table` float, all-int8 and the plan side by side (None if the stages were run one at a time).
    `error` is None where errors were not studied, because no mix of forms can be faster than float.

    >>> print(result.table)  # doctest: +ELLIPSIS
              latency  error ...
    >>> result.model.graph.output[0].name
    'logits'
    """

    setup: Setup
    float32: onnx.ModelProto
    graph: Graph
    profile: Profile
    error: ErrorModel | None
    plan: Plan
    built: Built
    table: Outcome | None
    calibrated: Calibrated

    def __repr__(self) -> str:
        """The table: all fields together are megabytes."""
        line = f"Result: {len(self.plan.assignment())} of {plural(len(self.graph.blocks), 'block')} quantised"
        return line if self.table is None else f"{line}\n{self.table}"

    @property
    def model(self) -> onnx.ModelProto:
        """The model to deploy: plain ONNX for any ONNX Runtime with default options."""
        return self.built.model

    def session(self, threads: int | None = None) -> Deployed:
        """The model ready to answer: `session.run(sample)` gives the outputs by name. `threads` None: as many as it was
        measured with."""
        return self.built.session(threads or self.setup.threads, spinning=self.setup.spinning)

    def save(self, folder: str | os.PathLike[str], *, samples: bool = True) -> None:
        """Write the workspace that `taglio optimize` writes: what to deploy in deploy/, and every artifact. An older
        one in `folder` is replaced completely or not at all. `samples` False keeps inputs out of deploy/.

        Raises Busy, BadArtifact if the disk refuses, and MeasurementFailed if deploy/ answers otherwise in a process
        without taglio.
        """
        with changing(Path(folder), create=True) as draft:
            write(draft, self, with_samples=samples)

    def export(self, folder: str | os.PathLike[str], layout: str = "plain") -> Export:
        """Write what runs without taglio to the new `folder`: "plain" is deploy/ as `save` writes it, "triton" and
        "ovms" are model repositories of Triton and OpenVINO Model Server.

        Raises BadOption if `folder` is not empty, the plan is for a GPU, or the server cannot give the same answers.
        """
        check_layout(layout)
        with scratch() as own:
            where = own / (Path(self.setup.model).stem or "model")
            where.mkdir()
            _, delivered = write(where, self)
            if delivered.proof is None:
                raise BadOption(delivered.refusal)
            return export_workspace(where, Path(folder), layout)


def result_of(
    work: Work,
    scheme: Scheme | None,
    tables: Tables,
    plan: Plan,
    built: Built,
    table: Outcome | None = None,
) -> Result:
    """The result from the results of the stages; `scheme` is the requested one, None if it was chosen."""
    profile = tables.profile
    place = profile.conditions.runtime  # later stages measure in this place
    setup, network = replace(work.setup, scheme=scheme, runtime=place), work.model.proto
    return Result(setup, network, tables.graph, profile, tables.error, plan, built, table, workspace.calibrated(work))


def load(folder: str | os.PathLike[str]) -> Result:
    """The result that `Result.save` or `taglio optimize` wrote to `folder`.

    Raises BadArtifact for files that are missing, damaged, or of another model or plan.
    """
    path = Path(folder)
    with held(path):
        plan = artifact.load(path / f"{PLAN}.json", PLAN, Plan)
        sha256 = plan.model_sha256
        graph = artifact.load(path / f"{GRAPH}.json", GRAPH, Graph, model_sha256=sha256)
        profile = artifact.load(path / f"{PROFILE}.json", PROFILE, Profile, model_sha256=sha256)
        error = workspace.load_if_present(path, ERROR, ErrorModel, sha256)
        workspace.fits(path / f"{PROFILE}.json", profile, graph)
        table = workspace.load_if_present(path, OUTCOME, Outcome, sha256)
        setup = artifact.load(path / f"{SETUP}.json", SETUP, Setup, model_sha256=sha256)
        built = replace(read(path / COMPONENTS, sha256), samples=read_samples(path / DEPLOY))
        workspace.built_from(path, built, plan)
        network, known = weights.load(path / workspace.FLOAT_MODEL), workspace.read_calibrated(path, sha256)
        return Result(setup, network, graph, profile, error, plan, built, table, known)


def write(folder: Path, result: Result, *, with_samples: bool = True) -> tuple[Manifest, Delivered]:
    """Write every artifact of `result` into a locked workspace; artifacts made from older ones are removed."""
    sha256 = result.plan.model_sha256
    workspace.begin(folder, sha256, result.setup, result.float32, result.graph, result.calibrated)
    drop(folder, f"{ERROR}.json")  # of an earlier run, perhaps on another model
    for kind, value in ((PROFILE, result.profile), (ERROR, result.error), (PLAN, result.plan)):
        if value is not None:
            artifact.save(folder / f"{kind}.json", kind, sha256, value)
    if result.table is not None:
        artifact.save(folder / f"{OUTCOME}.json", OUTCOME, sha256, result.table)
    delivery = Delivery(result.setup, result.profile, result.plan, result.table, with_samples)
    return deliver(folder, result.built, delivery)
