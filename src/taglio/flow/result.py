"""The result of an optimisation as a value in memory: to inspect, save, deliver and load again. What is delivered runs
without taglio, and is proven in a process of its own. Measures no speed."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from taglio import artifact, weights
from taglio.components.build import Manifest
from taglio.data.dataset import Sample
from taglio.deploy.export import Export, check_layout
from taglio.deploy.processor_needs import unsafe_processors
from taglio.deploy.prove import DeployProof, prove
from taglio.deploy.verify import TOLERANCE
from taglio.deploy.write import Answered, Facts, read_samples, write_readme
from taglio.deploy.write import write as write_deploy
from taglio.error.model import ErrorModel
from taglio.errors import BadOption, MeasurementFailed, plural
from taglio.flow import workspace
from taglio.flow.export import export as export_workspace
from taglio.flow.outcome import Outcome
from taglio.flow.workspace import (
    COMPONENTS,
    DELIVERED,
    DEPLOY,
    ERROR,
    GRAPH,
    OUTCOME,
    PLAN,
    PROFILE,
    SETUP,
    Calibrated,
)
from taglio.lab.build import Built, Deployed, read
from taglio.lab.setup import Setup
from taglio.lab.work import Work
from taglio.model.graph import Graph
from taglio.plan.result import Plan
from taglio.plan.tables import Tables
from taglio.profile.result import Profile
from taglio.quantize.scheme import Scheme
from taglio.run.in_process import Executor
from taglio.runtimes.difference import difference
from taglio.scratch import scratch
from taglio.transaction import changing, drop, held

# Inputs that are delivered with the outputs to expect.
_DELIVERED = 2


@dataclass(frozen=True, slots=True)
class Delivered:
    """The proof of a delivered folder, or why none was written."""

    proof: DeployProof | None
    refusal: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A plan with everything that it was made from. `float32` is the simplified float model, `graph` its blocks,
    `table` float, all int8 and the plan side by side (None if the stages were run one at a time).
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

        Raises BadOption if `folder` is not empty, or the server cannot give the same answers.
        """
        check_layout(layout)
        with scratch() as own:
            where = own / (Path(self.setup.model).stem or "model")
            where.mkdir()
            delivered = write(where, self)
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


def write(folder: Path, result: Result, *, with_samples: bool = True) -> Delivered:
    """Write every artifact of `result` into a locked workspace; artifacts made from older ones are removed."""
    sha256 = result.plan.model_sha256
    workspace.begin(folder, sha256, result.setup, result.float32, result.graph, result.calibrated)
    drop(folder, f"{ERROR}.json")  # of an earlier run, perhaps on another model
    artifacts = {PROFILE: result.profile, ERROR: result.error, PLAN: result.plan, OUTCOME: result.table}
    for kind, value in artifacts.items():
        if value is not None:
            artifact.save(folder / f"{kind}.json", kind, sha256, value)
    return deliver(folder, result, with_samples=with_samples)[1]


def deliver(folder: Path, result: Result, *, with_samples: bool = True) -> tuple[Manifest, Delivered]:
    """Write the components of `result` into the workspace `folder`, then deploy/, as it is opened without taglio, and
    keep the proof that it answers so; with the first of the inputs on which it was proven if `with_samples`. Raises
    MeasurementFailed if the answers differ."""
    manifest = result.built.write(folder / COMPONENTS)
    delivered = _deployed(folder, manifest, result, with_samples=with_samples)
    if delivered.proof is not None:
        artifact.save(folder / f"{DELIVERED}.json", DELIVERED, result.plan.model_sha256, delivered.proof)
    return manifest, delivered


def _deployed(folder: Path, manifest: Manifest, result: Result, *, with_samples: bool) -> Delivered:
    """Write deploy/ and prove it on the inputs of the built plan. If the runtime of a component is not
    installed here, nothing is written."""
    components, deploy, setup, inputs = folder / COMPONENTS, folder / DEPLOY, result.setup, result.built.samples
    options = setup.options()
    try:
        executor = Executor(components, manifest, options)
        answered = [_answered(executor, manifest, sample) for sample in inputs]
        samples = answered[:_DELIVERED] if with_samples else ()
        way = setup.way if len(manifest.pieces) == 1 else None  # components on devices run alone
        write_deploy(deploy, components, manifest, options, samples, way)
    except BadOption as error:
        return Delivered(None, str(error))
    try:
        proof = prove(deploy, answered)
    except MeasurementFailed as error:
        again = _answered(executor, manifest, inputs[0])
        if any(difference(value, again.outputs[name]) > TOLERANCE for name, value in answered[0].outputs.items()):
            cause = "the model's answers differ from run to run: turn the noise off in the data or the model"
            raise MeasurementFailed(f"{error}; {cause}") from None
        raise
    write_readme(deploy, components, _facts(result), proof.peak_memory_bytes)
    return Delivered(proof)


def _answered(executor: Executor, manifest: Manifest, sample: Sample) -> Answered:
    values: dict[str, Any] = dict(zip(manifest.outputs, executor.run(sample), strict=True))
    tensors = {name: np.asarray(value) for name, value in values.items() if isinstance(value, np.ndarray | np.generic)}
    return Answered({name: sample[name] for name in manifest.inputs}, tensors)


def _facts(result: Result) -> Facts:
    setup, plan, conditions = result.setup, result.plan, result.profile.conditions
    source = Path(setup.data).name or "data given in memory"
    held_out = "" if result.table is None else f"{plural(result.table.held_out_samples, 'held-out input')} of "
    return Facts(
        model=Path(setup.model).name or "a model given in memory",
        model_sha256=plan.model_sha256,
        speedup=_speedup(result),
        error=_error(result),
        data=f"{held_out}{source}",
        processor=conditions.machine.processor,
        instructions=conditions.machine.instructions,
        threads=setup.threads,
        warnings=tuple(map(str, unsafe_processors(plan.assignment().values(), conditions.machine.instructions))),
    )


def _speedup(result: Result) -> str:
    plan, table = result.plan, result.table
    if plan.usage:
        return f"Planned for several devices: predicted latency {plan.predicted_latency_s.value * 1e3:.3g} ms"
    if table is None:
        return f"Predicted latency {plan.predicted_latency_s.value * 1e3:.3g} ms in {plan.runtime}, not confirmed"
    if table.rate is not None:
        over = f"over {plural(table.rate.openings, 'opening')} of both"
        return f"{table.rate.capacity_gain}, {over}: {table.rate.capacity} with {table.rate.way}"
    if table.speedup is not None:
        return f"{table.speedup} as fast as float32 in ONNX Runtime, over {table.speedup.openings} openings of both"
    if table.plan.runtime == table.float32.runtime and not plan.assignment():
        return f"The float model, in {plan.runtime}: nothing else was faster within the limit"
    ratio = table.float32.latency.median_s / table.plan.latency.median_s
    return f"About {ratio:.1f} × as fast as float32 in {table.float32.runtime}, not confirmed"


def _error(result: Result) -> str:
    plan, limit = result.plan, result.plan.limits.max_error
    metric = plan.limits.metric
    allowed = "" if limit is None else f" (limit {metric.text(limit, 2)})"
    if result.table is not None:
        return f"Measured {metric.title}: {metric.text(result.table.plan.error, 3)}{allowed}"
    if plan.measured_error is not None:
        return f"Measured {metric.title}: {metric.text(plan.measured_error, 3)}{allowed}"
    return f"Predicted {metric.title}: {metric.text(plan.predicted_error.value, 3)}{allowed}"
