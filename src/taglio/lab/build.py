"""The build stage: a plan → components in memory, proven equal to the whole model. Writes only where it is told to."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from taglio import artifact, weights
from taglio.components import build as files
from taglio.components.build import Manifest
from taglio.components.cut import Component, Wires, cut
from taglio.components.prove import Proof, prove
from taglio.cores import available_cores
from taglio.data.dataset import Sample, covering
from taglio.data.spec import InputSpec, dtype_name
from taglio.data.values import Feeder
from taglio.errors import BadData, TaglioError
from taglio.lab.work import Work, require_own
from taglio.model.inputs import input_specs
from taglio.plan.result import Plan
from taglio.progress import Progress
from taglio.quantize.keep_apart import keep_apart
from taglio.run.in_process import Executor
from taglio.runtimes.onnxruntime import NAME, SessionOptions
from taglio.runtimes.session import why_failed
from taglio.scratch import scratch

# For several components: the whole quantised model, beside them.
WHOLE = "whole.onnx"
# Inputs, of different shapes if possible, on which components must equal the whole model: as many as run in _PROVEN_S.
_PROVEN, _PROVEN_S = 8, 20.0


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """Components in running order with their `manifest`, which has no pieces before they are written, the runtime of
    each device, and `samples`, the held-out inputs on which it is proven. `whole` is the quantised model, None if one
    component is the whole model; `proof` shows that together they equal it, None if it was not requested."""

    manifest: Manifest
    parts: tuple[Component, ...]
    whole: onnx.ModelProto | None = None
    proof: Proof | None = None
    store: weights.WeightFiles | None = None
    runtimes: Mapping[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    @property
    def model_sha256(self) -> str:
        """The hash of the model that it was built from."""
        return self.manifest.model_sha256

    @property
    def plan_sha256(self) -> str:
        """The fingerprint of the plan that it was built from."""
        return self.manifest.plan_sha256

    @property
    def model(self) -> onnx.ModelProto:
        """The model to deploy as one ONNX model; weights beyond protobuf's 2 GB stay in files."""
        return weights.in_memory(self.parts[0].proto if self.whole is None else self.whole)

    @property
    def size_bytes(self) -> int:
        """Size of all components."""
        return sum(weights.size_bytes(part.proto) for part in self.parts)

    def write(self, folder: Path) -> Manifest:
        """Write the components and their manifest."""
        (folder / WHOLE).unlink(missing_ok=True)
        if self.whole is not None:
            artifact.write_model(folder / WHOLE, self.whole)
        return files.write(folder, self.manifest, self.parts, self.runtimes)

    def open(self, options: SessionOptions, runtime: str | None = None) -> Executor:
        """Open sessions for the components, to run one after another in this process; `runtime` None: their own."""
        with scratch() as folder:
            return Executor(folder, self.write(folder), options, runtime)

    def session(self, threads: int | None = None, *, spinning: bool = True) -> "Deployed":
        """The components ready to answer as they would be deployed."""
        options = SessionOptions(threads or available_cores(), spinning=spinning)
        inputs = {spec.name: spec for part in self.parts for spec in input_specs(Path(part.name), part.proto)}
        names = self.manifest.inputs
        return Deployed(self.open(options), tuple(inputs[name] for name in names), self.manifest.outputs)


class Deployed:
    """A built model, ready to answer. Made by `Built.session` and `Result.session`. `run` may be called from several
    threads at once, and so may `step` for different sessions."""

    def __init__(self, executor: Executor, inputs: tuple[InputSpec, ...], outputs: tuple[str, ...]) -> None:
        self._executor, self.inputs, self.outputs = executor, inputs, outputs
        self._states: dict[str, dict[str, np.ndarray]] = {}
        self._feed = Feeder(inputs)

    def step(self, sample: object, session: str = "") -> dict[str, Any]:
        """Like `run`, for a model with states: adds the states left by the last step of `session` to the sample and
        keeps the new ones. The first step starts from zeros."""
        feed = self._step_feed(sample)
        try:
            values, self._states[session] = self._executor.step(feed, self._states.get(session))
        except Exception as error:
            raise _refusal(error) from None
        return _named(self._executor.manifest.without_states()[1], values)

    @cached_property
    def _step_feed(self) -> Feeder:
        given = self._executor.manifest.without_states()[0]
        return Feeder([spec for spec in self.inputs if spec.name in given])

    def end(self, session: str = "") -> None:
        """Forget a session's states: its next step starts from zeros."""
        self._states.pop(session, None)

    def run(self, sample: object) -> dict[str, Any]:
        """The outputs by name for one sample: arrays by input name, or one array for a model with one input. An output
        is an array, or a list or dict for a sequence or map.

        The batch dimension may be left out. An array of the input's type and shape is passed to the runtime unread, NaN
        included; others are converted. Raises BadData for a sample that does not fit or cannot be run.
        """
        feed = self._feed(sample)
        try:
            return _named(self.outputs, self._executor.run(feed))
        except Exception as error:
            raise _refusal(error) from None


def _named(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Values by name, with single numbers as arrays."""
    named = dict(zip(names, values, strict=True))
    for name, value in named.items():
        if isinstance(value, np.generic):
            named[name] = np.asarray(value)
    return named


def _refusal(error: Exception) -> TaglioError:
    """A runtime's failure, such as a token out of range, as a BadData of one line."""
    if isinstance(error, TaglioError):
        return error
    return BadData(f"`sample` cannot be run: {why_failed(error)}")


def build(work: Work, plan: Plan, *, progress: Progress | None = None) -> Built:
    """Build the components of `plan`, and prove on held-out inputs that together they equal the whole model.

    Raises MeasurementFailed if they differ by more than rounding explains.

    >>> built = taglio.build(model, plan)
    >>> [part.name for part in built.parts], built.proof.samples
    (['0-local'], 8)
    """
    require_own(work, plan=plan)
    work = work.telling(progress)
    result, whole = assemble(work, plan), quantized(work, plan)
    with scratch() as folder:
        proof = prove(folder, result.write(folder), whole, result.samples)
    return replace(result, proof=proof)


def assemble(work: Work, plan: Plan) -> Built:
    """Build the components of `plan`, without the proof."""
    model = quantized(work, plan)
    parts = cut(work.model, work.graph, model, plan.devices(), Wires(plan.start, plan.copies()), plan.levels())
    for number, part in enumerate(parts):
        if plan.runtime_on(part.device) != NAME:
            parts[number] = replace(part, proto=deepcopy(part.proto))
            keep_apart(parts[number].proto.graph, dynamic=work.builder(plan.scheme).dynamic)
    first = work.first_states
    manifest = Manifest(
        model_sha256=work.model.sha256,
        inputs=tuple(spec.name for spec in work.inputs),
        outputs=work.outputs,
        pieces=(),
        plan_sha256=plan.fingerprint(),
        states=tuple(
            files.State(present, past, dtype_name(first[past].dtype), first[past].shape)
            for present, past in work.graph.states
        ),
    )
    return Built(
        manifest,
        tuple(parts),
        whole=model if len(parts) > 1 else None,
        store=work.model.store,
        runtimes={part.device: plan.runtime_on(part.device) for part in parts},
        samples=tuple(covering(work.data.held_out.samples)[: work.within(_PROVEN_S).runs(_PROVEN)]),
    )


def quantized(work: Work, plan: Plan) -> onnx.ModelProto:
    """The whole model in the forms of `plan`, as it is built for its place."""
    builder = work.in_place(plan.runtime).builder(plan.scheme)
    return builder.build(plan.assignment(), plan.wire_only(work.graph))


def read(folder: Path, model_sha256: str) -> Built:
    """Components written by `write`. Raises BadArtifact for a missing or changed file."""
    manifest = files.read(folder, model_sha256=model_sha256)
    parts = tuple(
        Component(
            piece.name,
            piece.device,
            piece.blocks,
            weights.load(folder / piece.file),
            tuple(port.name for port in piece.inputs),
            tuple(port.name for port in piece.outputs),
            {port.name: port.shape for port in (*piece.inputs, *piece.outputs)},
        )
        for piece in manifest.pieces
    )
    return Built(
        replace(manifest, pieces=()),
        parts,
        whole=weights.load(folder / WHOLE) if len(parts) > 1 and (folder / WHOLE).exists() else None,
        runtimes={piece.device: piece.runtime for piece in manifest.pieces},
    )
