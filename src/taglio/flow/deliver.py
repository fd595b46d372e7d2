"""Deliver a built plan: the folder that runs without taglio, proven in a process of its own. Measures no speed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taglio import artifact
from taglio.components.build import Manifest
from taglio.data.dataset import Sample
from taglio.deploy.processor_needs import unsafe_processors
from taglio.deploy.prove import DeployProof, prove
from taglio.deploy.verify import TOLERANCE
from taglio.deploy.write import Answered, Facts, write, write_readme
from taglio.errors import BadOption, MeasurementFailed, plural
from taglio.flow.outcome import Outcome
from taglio.flow.workspace import COMPONENTS, DELIVERED, DEPLOY
from taglio.lab.build import Built
from taglio.lab.setup import Setup
from taglio.plan.result import Plan
from taglio.profile.result import Profile
from taglio.run.in_process import Executor
from taglio.runtimes.difference import difference

# Inputs that are delivered with the outputs to expect.
_DELIVERED = 2


@dataclass(frozen=True, slots=True)
class Delivered:
    """The proof of a delivered folder, or why none was written."""

    proof: DeployProof | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a workspace knows of a built plan. `table` is None if the stages were run one at a time. `with_samples`
    delivers the first of the held-out inputs on which it was proven."""

    setup: Setup
    profile: Profile
    plan: Plan
    table: Outcome | None
    with_samples: bool = True


def deliver(folder: Path, built: Built, delivery: Delivery) -> tuple[Manifest, Delivered]:
    """Write the components of a built plan into the workspace `folder`, then deploy/, as it is opened without taglio,
    and keep the proof that it answers so. Raises MeasurementFailed if the answers differ."""
    manifest = built.write(folder / COMPONENTS)
    delivered = _deployed(folder, manifest, built.samples, delivery)
    if delivered.proof is not None:
        artifact.save(folder / f"{DELIVERED}.json", DELIVERED, delivery.plan.model_sha256, delivered.proof)
    return manifest, delivered


def _deployed(folder: Path, manifest: Manifest, inputs: Sequence[Sample], delivery: Delivery) -> Delivered:
    """Write deploy/ and prove it on `inputs`. Where a component cannot leave (it is for a GPU, or its runtime is not
    installed here), nothing is written."""
    components, deploy = folder / COMPONENTS, folder / DEPLOY
    options = delivery.setup.options()
    try:
        executor = Executor(components, manifest, options)
        answered = [_answered(executor, manifest, sample) for sample in inputs]
        samples = answered[:_DELIVERED] if delivery.with_samples else ()
        way = delivery.setup.way if len(manifest.pieces) == 1 else None  # components on devices run alone
        described = write(deploy, components, manifest, options, samples, way)
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
    write_readme(deploy, described, components, _facts(delivery), proof.peak_memory_bytes)
    return Delivered(proof)


def _answered(executor: Executor, manifest: Manifest, sample: Sample) -> Answered:
    values: dict[str, Any] = dict(zip(manifest.outputs, executor.run(sample), strict=True))
    tensors = {name: np.asarray(value) for name, value in values.items() if isinstance(value, np.ndarray | np.generic)}
    return Answered({name: sample[name] for name in manifest.inputs}, tensors)


def _facts(delivery: Delivery) -> Facts:
    setup, plan, conditions = delivery.setup, delivery.plan, delivery.profile.conditions
    source = Path(setup.data).name or "data given in memory"
    held_out = "" if delivery.table is None else f"{plural(delivery.table.held_out_samples, 'held-out input')} of "
    return Facts(
        model=Path(setup.model).name or "a model given in memory",
        model_sha256=plan.model_sha256,
        speedup=_speedup(delivery),
        error=_error(delivery),
        data=f"{held_out}{source}",
        processor=conditions.machine.processor,
        instructions=conditions.machine.instructions,
        threads=setup.threads,
        warnings=tuple(map(str, unsafe_processors(plan.assignment().values(), conditions.machine.instructions))),
    )


def _speedup(delivery: Delivery) -> str:
    plan, table = delivery.plan, delivery.table
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


def _error(delivery: Delivery) -> str:
    plan, limit = delivery.plan, delivery.plan.limits.max_error
    metric = plan.limits.metric
    allowed = "" if limit is None else f" (limit {metric.text(limit, 2)})"
    if delivery.table is not None:
        return f"Measured {metric.title}: {metric.text(delivery.table.plan.error, 3)}{allowed}"
    if plan.measured_error is not None:
        return f"Measured {metric.title}: {metric.text(plan.measured_error, 3)}{allowed}"
    return f"Predicted {metric.title}: {metric.text(plan.predicted_error.value, 3)}{allowed}"
