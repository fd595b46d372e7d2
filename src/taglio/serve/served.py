"""One built model, opened from its workspace directory and ready to answer. Independent of protocols and queues."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from taglio import artifact
from taglio.cluster.devices import Cluster
from taglio.cluster.engine.host import SESSIONS
from taglio.cluster.engine.run import runners
from taglio.cluster.engine.runner import Runner, Steps
from taglio.components.build import MANIFEST, read
from taglio.cores import available_cores
from taglio.data.spec import InputSpec
from taglio.deploy.write import read_samples
from taglio.errors import BadOption, one_line, plural
from taglio.flow.joining import ROWS, batched_inputs, constant_inputs, interface, most_rows, why_alone
from taglio.flow.outcome import Outcome
from taglio.flow.workspace import COMPONENTS, DEPLOY, OUTCOME, SETUP, load_if_present
from taglio.lab.setup import Setup
from taglio.model.inputs import random_feed
from taglio.run.in_process import Executor
from taglio.runtimes.way import Way
from taglio.serve.refusals import BadRequest
from taglio.serve.tensors import TensorSpec, spec_of

_LOG = logging.getLogger(__name__)
_WAY = Way(threads=1, joined=ROWS)


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """A request's place in a sequence: the sequence's id, and whether it is the first or the last step."""

    sequence: int | str
    start: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A live model under a name and version. `alone` says why requests are not joined along the first dimension; "" if
    they are. A request must have the same number of rows in all `batched` inputs. `way` says how it runs here, and how
    many rows are joined at most. `states` are those of sequences in progress, by id; on a cluster, where its devices
    keep them, the steps so far."""

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    executor: Executor | Runner
    predicted_s: float | None
    alone: str = ""
    way: Way = _WAY
    batched: tuple[str, ...] = ()
    states: dict[int | str, Any] = field(default_factory=dict)

    def needed(self, step: SequenceStep | None) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
        """The inputs that a request must have and the outputs that it may ask for; those of a step leave out the
        states. Raises BadRequest for a step of a model without states, and on a cluster for anything else of a model
        with states."""
        if step is None:
            if isinstance(self.executor, Runner) and self.executor.manifest.states:
                raise BadRequest(f"model {self.name} keeps its state on the devices of a cluster: give a sequence_id")
            return self.inputs, self.outputs
        if not self.executor.manifest.states:
            raise BadRequest(f"model {self.name} has no state: omit sequence_id")
        inputs, outputs = self.executor.manifest.without_states()
        return (
            [spec for spec in self.inputs if spec.name in inputs],
            [spec for spec in self.outputs if spec.name in outputs],
        )

    def check_rows(self, feed: Mapping[str, np.ndarray]) -> None:
        """Raise BadRequest for inputs that share the batch dimension and have different numbers of rows."""
        rows = [(name, len(feed[name])) for name in self.batched if name in feed]
        for name, count in rows:
            if count != rows[0][1]:
                raise BadRequest(
                    f"input {rows[0][0]} has {plural(rows[0][1], 'row')} and input {name} has {count}: give both the "
                    "same first dimension"
                )

    @property
    def on_cluster(self) -> bool:
        """Whether the devices of a cluster answer, not this process."""
        return isinstance(self.executor, Runner)

    @property
    def at_once(self) -> int:
        """How many requests or batches run at once: several on a cluster, where each device has its own part; here
        those of the way."""
        return self.executor.lanes if isinstance(self.executor, Runner) else self.way.at_once

    def run(self, feed: Mapping[str, np.ndarray], step: SequenceStep | None = None) -> dict[str, np.ndarray]:
        """All outputs by name; for a `step` without states, which are kept for the next step. Raises BadRequest for a
        step of an unknown sequence."""
        names = [spec.name for spec in self.needed(step)[1]]
        if step is None:
            return dict(zip(names, map(np.asarray, self.executor.run(feed)), strict=True))
        if not step.start and step.sequence not in self.states:
            raise BadRequest(f"sequence {step.sequence!r} has not been started: begin it with sequence_start")
        before = None if step.start else self.states[step.sequence]
        if isinstance(self.executor, Runner):
            after = before or Steps(repr(step.sequence))
            values = self.executor.run(feed, after, last=step.end)
        else:
            values, after = self.executor.step(feed, before)
        self.states.pop(step.sequence, None)
        if not step.end:
            self.states[step.sequence] = after
        if len(self.states) > SESSIONS:
            del self.states[next(iter(self.states))]
        return dict(zip(names, map(np.asarray, values), strict=True))


@contextmanager
def opened(
    places: Sequence[str],
    threads: int | None = None,
    batch: int | None = None,
    cluster: Cluster | None = None,
    kernel_cache: int | None = None,
) -> Iterator[list[ServedModel]]:
    """The models of workspace directories, each OUT or NAME=OUT, or of a directory of workspaces: NAME/ or
    NAME/VERSION/. `threads` and `batch` replace the threads and rows of a run. With `cluster`, they answer on its
    devices, as planned.

    Raises BadOption for a directory without a built model and for a name and version given twice.
    """
    workspaces: dict[tuple[str, str], Path] = {}
    for text in places:
        name, _, directory = text.rpartition("=")
        if not directory:
            raise BadOption(f"{text!r} names no directory: give OUT or NAME=OUT")
        for key, folder in _workspaces(Path(directory), name):
            if key in workspaces:
                raise BadOption(f"{folder}: a second model {key[0]} version {key[1]}: give NAME={folder}")
            workspaces[key] = folder
    with ExitStack() as stack:
        if cluster is None:
            count = len(workspaces)
            models = [
                open_model(folder, *key, threads, models=count, kernel_cache=kernel_cache)
                for key, folder in workspaces.items()
            ]
        else:
            running = stack.enter_context(runners([*workspaces.values()], cluster))
            models = [
                _ready(folder, ServedModel(*key, (), (), runner, runner.predicted_s))
                for (key, folder), runner in zip(workspaces.items(), running, strict=True)
            ]
        yield [
            replace(model, way=replace(model.way, joined=batch)) if batch and not model.alone else model
            for model in models
        ]


def open_model(
    folder: Path,
    name: str,
    version: str,
    threads: int | None = None,
    *,
    models: int = 1,
    kernel_cache: int | None = None,
) -> ServedModel:
    """Open and warm up one workspace's components, one of so many `models`. Raises BadArtifact for components changed
    since they were built, BadModel if they do not run."""
    setup = artifact.load(folder / f"{SETUP}.json", SETUP, Setup)
    manifest = read(folder / COMPONENTS)
    # The way was chosen for a whole model: components of several devices run one after another.
    planned = setup.way if len(manifest.pieces) == 1 else replace(setup.way, at_once=1, joined=1)
    way = way_here(planned, threads, models, available_cores())
    options = replace(
        setup.options(), threads=way.threads, at_once=way.at_once, spinning=way.spinning, kernel_cache=kernel_cache
    )
    executor = Executor(folder / COMPONENTS, manifest, options)
    outcome = load_if_present(folder, OUTCOME, Outcome)  # none if nothing was timed beside float
    predicted = outcome is not None and way.threads == outcome.conditions.threads and planned.at_once == 1
    predicted_s = outcome.plan.predicted_latency_s if outcome and predicted else None
    return _ready(folder, ServedModel(name, version, (), (), executor, predicted_s, way=way))


def way_here(planned: Way, threads: int | None, models: int, cores: int) -> Way:
    """The way of running one of `models` models, which share `cores` processors equally. A run has `threads` threads if
    that is given, else those of the plan, but no more than the share. There are at most as many runs at once as fit
    into the share. A single model with one run at a time keeps the threads of its plan. Several models do not spin."""
    share = max(1, cores // models)
    most = planned.threads if models == planned.at_once == 1 else share
    of_run = threads or min(planned.threads, most)
    at_once = max(1, min(planned.at_once, share // of_run))
    spinning = planned.spinning and models == 1
    return replace(planned, threads=of_run, at_once=at_once, joined=most_rows(planned), spinning=spinning)


def _ready(folder: Path, model: ServedModel) -> ServedModel:
    """`model` with its inputs and outputs, warmed up, and with what decides whether requests are joined."""
    executor = model.executor
    inputs, outputs = interface(folder / COMPONENTS, executor.manifest)
    if isinstance(executor, Runner):  # states never leave its devices
        inputs, outputs = (
            [spec for spec in specs if spec.name in names]
            for specs, names in zip((inputs, outputs), executor.manifest.without_states(), strict=True)
        )
    shown, answered = tuple(map(spec_of, inputs)), tuple(map(spec_of, outputs))
    model = replace(model, inputs=shown, outputs=answered)
    samples = read_samples(folder / DEPLOY)
    alone = _why_cold(model, inputs, constant_inputs(samples))
    alone = alone or why_alone(folder / COMPONENTS, executor.manifest, inputs, model.run, samples)
    batched = batched_inputs(inputs, executor.manifest.planned, joined=not alone)
    way = replace(model.way, joined=1) if alone else model.way
    return replace(model, alone=alone, batched=batched, way=way)


def _workspaces(folder: Path, name: str) -> list[tuple[tuple[str, str], Path]]:
    """Name and version of each workspace at or below `folder`, and its directory; an empty name stands for the model's
    own, or the directory's if it was built a stage at a time."""
    if _built(folder):
        outcome = None if name else load_if_present(folder, OUTCOME, Outcome)
        return [((name or (outcome.model if outcome else folder.resolve().name), "1"), folder)]
    workspaces: list[tuple[tuple[str, str], Path]] = []
    for child in sorted(child for pattern in ("*", "*/*") for child in folder.glob(pattern) if _built(child)):
        name, version = (*child.relative_to(folder).parts, "1")[:2]
        if version.isdigit():
            workspaces.append(((name, version), child))
    if not workspaces:
        raise BadOption(f"{folder}: holds no built model: give a workspace of taglio optimize, or a directory of them")
    return workspaces


def _built(folder: Path) -> bool:
    return (folder / COMPONENTS / MANIFEST).exists()


def _why_cold(model: ServedModel, specs: Sequence[InputSpec], constant: Mapping[str, np.ndarray]) -> str:
    """Warm `model` up by a run on random values, and on those of `constant` inputs. Sizes are those that the plan was
    made for, because few networks run on images or texts of size 1. Returns why the model refuses these inputs, "" if
    it runs: it is served all the same."""
    manifest = model.executor.manifest
    planned = manifest.planned
    inputs = [
        replace(spec, shape=tuple(size or None for size in planned[spec.name])) if planned[spec.name] else spec
        for spec in specs
    ]
    step = SequenceStep("warm-up", start=True, end=True) if manifest.states else None
    try:
        for _ in range(model.way.at_once):  # sessions and requests of a runtime take turns: each runs once
            model.run({**random_feed(inputs, 0), **constant}, step)
    except Exception as error:  # the runtimes' exceptions share no useful base class
        reason = f"its warm-up run on random inputs failed: {one_line(error, 300)}"
        _LOG.warning("%s version %s: %s", model.name, model.version, reason)
        return reason
    return ""
