"""The folder that one model's stages share: what is in it, under which names, and how to open it again."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from taglio import artifact
from taglio.artifact import require
from taglio.data.dataset import MAX_CALIBRATION, Sample, Split, chosen, one_of_each, shapes_of, split, typical
from taglio.data.files import load
from taglio.data.images import parse_preprocess
from taglio.data.spec import InputSpec, Shape
from taglio.error.doubts import digests
from taglio.error.loss import RELATIVE_L2, parse_metric
from taglio.error.measure import ErrorMeter
from taglio.error.movement import find_parts
from taglio.error.parts import Parts
from taglio.error.switchable import Switchable
from taglio.errors import BadArtifact, BadOption
from taglio.flow.memory import memory_needs
from taglio.memory import OUTPUTS, SAMPLES, free_bytes, used_bytes
from taglio.model.graph import Graph, build
from taglio.model.load import Model
from taglio.model.load import load as load_model
from taglio.model.observe import observe
from taglio.profile.machine import MOST_THREADS
from taglio.profile.stopwatch import Progress
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges, calibrate
from taglio.quantize.scheme import Calibration, Scheme
from taglio.quantize.trial import unusable
from taglio.runtimes.onnxruntime import NAME, Optimization, SessionOptions, version
from taglio.runtimes.session import RUNTIMES

_LOG = logging.getLogger(__name__)
SETUP, GRAPH, RANGES, FLOATS, PROFILE = "setup", "graph", "ranges", "floats", "profile"
ERROR, PLAN, RUN = "error", "plan", "run"
COMPONENTS = "components"
FLOAT_MODEL = "float32.onnx"
OUTCOME = "outcome"
REPORT = "report.html"
# Samples, of different shapes where there are, on which the simplified model must answer as the original.
_COMPARED = 4
# What is made from a stage, and goes when it is replaced; the folder stands for its files.
_FROM_PLAN = (COMPONENTS, f"{RUN}.json", f"{OUTCOME}.json", "cluster-run.json", REPORT)
MADE_FROM = {PLAN: _FROM_PLAN, ERROR: (f"{PLAN}.json", "pareto.json", "pareto.html", *_FROM_PLAN)}
MADE_FROM[PROFILE] = ("layers.json", *MADE_FROM[ERROR])


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that must be the same from stage to stage.

    `calibration` is data to calibrate on where that is no part of `data`; "" takes a part of `data`. `requantize`
    folds what the model holds quantised to float first. `memory_bytes` is what a stage's process may take; None: half
    of what is free when it starts.
    """

    model: str
    shapes: dict[str, tuple[int, ...]]
    data: str
    preprocess: str
    seed: int
    threads: int
    spinning: bool
    optimization: str
    scheme: Scheme | None = None
    metric: str = RELATIVE_L2
    calibration: str = ""
    runtime: str = NAME
    requantize: bool = False
    memory_bytes: int | None = None

    def check(self) -> None:
        """Raise ValueError for what no command line would have taken."""
        require(self.optimization in (each.value for each in Optimization), f"unknown optimization {self.optimization}")
        require(self.runtime in RUNTIMES, f"unknown runtime {self.runtime}")
        require(1 <= self.threads <= MOST_THREADS, f"threads must be from 1 to {MOST_THREADS}")
        require(self.seed >= 0, "seed must not be negative")
        require(self.memory_bytes is None or self.memory_bytes > 0, "memory must be more than none")
        require(all(min(each, default=1) >= 0 for each in self.shapes.values()), "sizes must not be negative")

    def options(self) -> SessionOptions:
        """How sessions that are timed are opened."""
        return SessionOptions(self.threads, Optimization(self.optimization), self.spinning, runtime=self.runtime)


@dataclass(frozen=True, slots=True)
class Floats:
    """The blocks that were found unable to be int8 with ONNX Runtime `version`, and why."""

    data_sha256: str
    version: str
    reasons: dict[str, str]


@dataclass(frozen=True, eq=False)  # no slots: what is found out about it is kept
class Work:
    """An opened workspace: the model, its blocks and its data, ready for any stage."""

    folder: Path
    setup: Setup
    model: Model
    graph: Graph
    data: Split
    memory_bytes: int | None = None

    @property
    def outputs_bytes(self) -> float | None:
        """What outputs that wait to be compared may take of the memory; None: no limit."""
        return None if self.memory_bytes is None else OUTPUTS * self.memory_bytes

    @cached_property
    def typical(self) -> Sequence[Sample]:
        """The held-out inputs of the shapes that times, sizes and bytes are of: the most frequent ones."""
        samples = self.data.held_out.samples
        return chosen(samples, typical(samples))

    @property
    def measured_shapes(self) -> dict[str, Shape]:
        """By input, the shape that times are of; empty where the model has no dynamic dimension."""
        if not any(spec.dynamic for spec in self.model.inputs):
            return {}
        return shapes_of(self.typical[0])

    @cached_property
    def parts(self) -> Parts:
        """The parts of the outputs, each of which is measured by itself."""
        return find_parts(self.model, self.data.held_out.samples)

    @cached_property
    def digests(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Of every calibration and every held-out input: equal ones are of equal inputs."""
        return digests(self.data.calibration.samples), digests(self.data.held_out.samples)

    def meter(self, switchable: Switchable, count: int | None = None) -> ErrorMeter:
        """A meter of the set-up's metric on the first `count` held-out inputs (None: all)."""
        held_out = self.data.held_out
        metric = parse_metric(self.setup.metric)
        room = self.outputs_bytes
        return ErrorMeter(switchable, held_out.samples[:count], self.parts, metric, held_out.labels, room_bytes=room)

    def builder(self, scheme: Scheme, progress: Progress | None = None) -> QdqBuilder:
        """A builder of quantised models under `scheme`; its calibration is read from the folder or made and kept."""
        return QdqBuilder(self.model, self.graph, {scheme.calibration: self.ranges(scheme, progress)})

    def settled(self, scheme: Scheme, progress: Progress | None = None) -> "Work":
        """The same work with every block float that was tried in int8 under `scheme` and failed (quantize/trial.py);
        which ones is read from the folder or found out and kept."""
        path = self.folder / f"{FLOATS}-{scheme}.json"
        sha256, known = self.data.calibration.sha256, None
        if path.exists():
            try:
                known = artifact.load(path, FLOATS, Floats, model_sha256=self.model.sha256)
            except BadArtifact:
                known = None
        if known is None or (known.data_sha256, known.version) != (sha256, version()):
            known = Floats(sha256, version(), self.unusable(scheme, progress))
            artifact.save(path, FLOATS, self.model.sha256, known)
        return replace(self, graph=self.graph.without_int8(known.reasons))

    def unusable(self, scheme: Scheme, progress: Progress | None = None, *, thorough: bool = True) -> dict[str, str]:
        """The blocks that cannot be int8 under `scheme`, each with the reason; nothing is kept but the ranges."""
        options = replace(self.setup.options(), spinning=False)
        feed = self.data.calibration.samples[0]
        ranges = self.ranges(scheme, progress)
        return unusable(self.model, self.graph, ranges, scheme, feed, options, thorough=thorough)

    def ranges(self, scheme: Scheme, progress: Progress | None = None) -> Ranges:
        """Calibrated ranges for `scheme`'s method, from the folder where they are of this data."""
        path = self.folder / f"{RANGES}-{scheme.calibration}.json"
        if path.exists():
            try:
                known = artifact.load(path, RANGES, Ranges, model_sha256=self.model.sha256)
            except BadArtifact:
                known = None
            if known is not None and known.data_sha256 == self.data.calibration.sha256:
                return known
        made = self.measure_ranges(scheme.calibration, progress)
        artifact.save(path, RANGES, self.model.sha256, made)
        return made

    def measure_ranges(self, method: Calibration, progress: Progress | None = None) -> Ranges:
        """Calibrate, keeping nothing."""
        tell = (lambda done, total: progress("calibrating", done, total)) if progress else None
        return calibrate(self.model, self.data.calibration, method, tell, room_bytes=self.outputs_bytes)


def create(folder: Path, setup: Setup) -> Work:
    """Open a model and its data and remember them in `folder`. The model is read before anything is written."""
    work = open_only(folder, setup)
    keep(work)
    return work


def keep(work: Work) -> None:
    """Remember an opened model and its data in its folder."""
    artifact.write_model(work.folder / FLOAT_MODEL, work.model.proto)
    artifact.save(work.folder / f"{GRAPH}.json", GRAPH, work.model.sha256, work.graph)
    artifact.save(work.folder / f"{SETUP}.json", SETUP, work.model.sha256, work.setup)


def reopen(folder: Path) -> Work:
    """Open the model and data that `create` remembered. Raises BadArtifact where the model has changed since."""
    setup = artifact.load(folder / f"{SETUP}.json", SETUP, Setup)
    work = _open(folder, setup)
    artifact.load(folder / f"{SETUP}.json", SETUP, Setup, model_sha256=work.model.sha256)
    return work


def open_only(folder: Path, setup: Setup) -> Work:
    """Open a model and its data without writing anything; what memory it needs is logged."""
    work = _open(folder, setup)
    assert work.memory_bytes is not None
    _LOG.info(memory_needs(work.model, work.graph, work.data).told(work.memory_bytes))
    return work


def _open(folder: Path, setup: Setup) -> Work:
    read: list[Split] = []

    memory_bytes = setup.memory_bytes or (free_bytes() + used_bytes()) // 2

    def samples(inputs: tuple[InputSpec, ...]) -> Sequence[Sample]:
        read.append(_read(setup, inputs, SAMPLES * memory_bytes))
        return covering(read[0].held_out.samples)[:_COMPARED]

    model = load_model(Path(setup.model), setup.shapes, samples, requantize=setup.requantize)
    data = read[0]
    feed = data.held_out.samples[typical(data.held_out.samples)[0]]
    graph = build(model, observe(model, feed, setup.data))
    memory_needs(model, graph, data).refuse(model.name, memory_bytes)
    return Work(folder, setup, model, graph, data, memory_bytes)


def _read(setup: Setup, inputs: tuple[InputSpec, ...], room_bytes: float) -> Split:
    preprocess = parse_preprocess(setup.preprocess) if setup.preprocess else None
    dataset = load(Path(setup.data), inputs, preprocess, room_bytes=room_bytes)
    if not setup.calibration:
        return split(dataset, seed=setup.seed)
    if Path(setup.calibration) == Path(setup.data):
        raise BadOption("--calibration is --data: leave it out, and taglio holds a part of the data out")
    calibration = load(Path(setup.calibration), inputs, preprocess, MAX_CALIBRATION, room_bytes)
    return Split(calibration, dataset, setup.seed)


def covering(samples: Sequence[Sample]) -> Sequence[Sample]:
    """All of `samples`, one of each combination of shapes first."""
    first = one_of_each(samples)
    return chosen(samples, [*first, *sorted(set(range(len(samples))) - set(first))])
