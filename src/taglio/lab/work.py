"""A model with its data and settings, opened once: the input of every stage. Writes nothing.

Results that are computed once (ranges, blocks that cannot be int8, builders, the switchable graph) are kept with it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import onnx

from taglio import weights
from taglio.arguments import positive
from taglio.data.dataset import Dataset, Sample, Split, chosen, covering, shapes_of, spread, typical
from taglio.data.spec import InputSpec, Shape
from taglio.error.judge import judge_of
from taglio.error.loss import Bound, Metric, parse_metric
from taglio.error.measure import ErrorMeter
from taglio.error.movement import find_parts
from taglio.error.parts import OutputParts
from taglio.error.switchable import Switchable
from taglio.error.tally import Measure, Reference
from taglio.errors import BadOption, plural
from taglio.lab.as_written import ENOUGH_S, INPUTS, Agreement, agreement_of
from taglio.lab.budget import Budget
from taglio.lab.kept import Kept
from taglio.lab.lab import THIS_MACHINE, Lab
from taglio.lab.setup import WORST_INPUT, Setup
from taglio.memory import OUTPUTS, Shelf, make_room
from taglio.model.graph import Graph
from taglio.model.inputs import free_dimensions, input_specs
from taglio.model.load import Model as Network
from taglio.model.written import SourceModel, as_written, open_exact
from taglio.notes import Kind, Note
from taglio.profile.effort import Effort
from taglio.profile.stopwatch import FEEDS, Stopwatch
from taglio.progress import Progress
from taglio.quantize.precision import precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges, calibrate
from taglio.quantize.scheme import Scheme
from taglio.quantize.trial import unusable
from taglio.runtimes.onnxruntime import NAME, open_session, run_session
from taglio.runtimes.openvino import NAME as OPENVINO
from taglio.scratch import scratch

# A timed run takes no longer than this if it covers several shapes.
_TIMED_S = 8.0
# The quick reference has as many inputs as the float model runs in _FEW_S seconds, and at least two if these take no
# more than _TWO_S. At effort 1 it has at most _MOST_FEW, at a lower effort fewer, but the maximum is never below
# _LEAST_FEW.
_FEW_S, _MOST_FEW, _LEAST_FEW, _TWO_S = 0.5, 32, 8, 8.0

# Arguments of stages -> the name of the class that they take: the modules of some import this one.
_MADE = {"profile": "Profile", "error": "ErrorModel", "plan": "Plan", "built": "Built"}


@dataclass(frozen=True, eq=False)  # no slots: cached properties need a __dict__
class Work:
    """An opened model, its blocks and its data, ready for any stage.

    `source` is where the model was read from. `progress` is called with the work done (None: not reported), `effort`
    scales the time given to measuring, and `lab` opens and times models. For a model with states, `sequence` are the
    steps as given, without the states, and `first_states` the states before the first step, by input. `replaced` is the
    source, simplified, if another model is planned instead: speed-ups are relative to it.
    """

    setup: Setup
    source: Path | onnx.ModelProto
    model: Network
    graph: Graph
    data: Split
    memory_bytes: int | None = None
    sequence: Sequence[Sample] = ()
    first_states: Sample = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)
    progress: Progress | None = None
    effort: float = 1.0
    replaced: Network | None = None
    lab: Lab = THIS_MACHINE

    def __repr__(self) -> str:
        """Its size: all fields together are megabytes."""
        blocks, able = plural(len(self.graph.blocks), "block"), len(self.graph.candidates())
        samples = plural(len(self.data.calibration.samples) + len(self.data.all_held_out.samples), "sample")
        return f"{type(self).__name__}: {self.name}, {blocks}, {able} can be int8, {samples}"

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Name, shape and type of every input."""
        return self.model.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self.model.outputs

    @property
    def budget(self) -> Budget:
        """How much may be measured with this effort."""
        return Budget().at(self.effort)

    @property
    def metric(self) -> Metric:
        """The metric that steers the search, not yet relative to the float model."""
        return self.limited(self.setup.metric)

    def limited(self, name: str) -> Metric:
        """The metric `name`, on all inputs together or on the worst, as the set-up limits errors."""
        return replace(parse_metric(name), worst_input=self.setup.limit_on == WORST_INPUT)

    @property
    def outputs_bytes(self) -> float | None:
        """Memory for outputs that wait to be compared, in bytes; None: no limit."""
        return None if self.memory_bytes is None else OUTPUTS * self.memory_bytes

    @cached_property
    def typical(self) -> Sequence[Sample]:
        """The held-out inputs of the most frequent shapes, from which sizes and bytes are computed."""
        samples = self.data.held_out.samples
        return chosen(samples, typical(samples))

    @cached_property
    def timed(self) -> Sequence[Sample]:
        """The held-out inputs to time; times are their mean, and their shapes are as frequent as among all inputs."""
        samples = self.data.held_out.samples
        return chosen(samples, spread(samples, self.within(_TIMED_S).runs(FEEDS)))

    @property
    def steps(self) -> Sequence[Sample]:
        """The steps of a session, in order, without the states. Raises BadOption for a model without states."""
        if not self.graph.states:
            raise BadOption("`steps` needs a model with states: name them with `state` when profiling")
        return self.sequence

    @property
    def measured_shapes(self) -> tuple[dict[str, Shape], ...]:
        """The shapes of the timed inputs; empty if the model has no dynamic dimension."""
        return tuple(map(shapes_of, self.timed)) if any(spec.dynamic for spec in self.model.inputs) else ()

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the user should know about the model, such as random answers, and about how the data was read."""
        reference = [Note(Kind.REFERENCE, self.agreement.remark)] if self.agreement.remark else []
        about = (*self.model.notes, *reference, *self.data.calibration.notes, *self.data.held_out.notes)
        return tuple(dict.fromkeys(about))

    @property
    def agreement(self) -> Agreement:
        """How far ONNX Runtime's answers are from those that the source's graph defines."""
        return self.kept.once(("agreement",), self._compared)

    def _compared(self) -> Agreement:
        make_room(self.memory_bytes)
        samples = covering(self.data.held_out.samples)[: self.within(ENOUGH_S).runs(INPUTS)]
        options = self.setup.options(NAME)
        agreement = agreement_of(self.model, self._written, samples, options, self.outputs_bytes)
        return replace(agreement, remark="") if self.setup.instead else agreement  # instead.py says what differs

    def _written(self) -> SourceModel:
        written = as_written(self.source, self.setup.shapes, requantize=self.setup.requantize)
        freed = _named(input_specs(written.path, written.proto)) - _named(self.model.inputs)
        if freed:  # the data contradict these names (model/load.py)
            free_dimensions(written.proto, freed)
        return written

    @property
    def parts(self) -> OutputParts:
        """The parts of the outputs, each measured separately."""
        held_out = self.data.held_out
        return self.kept.once(("parts", held_out.sha256), lambda: find_parts(self.model, held_out.samples))

    @property
    def digests(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """A digest of every calibration and every held-out input, unseen ones last; equal for equal inputs."""
        unseen = () if self.data.unseen is None else self.data.unseen.digests
        return self.data.calibration.digests, (*self.data.held_out.digests, *unseen)

    def within(self, seconds: float) -> Effort:
        """How much of this model can be measured in `seconds` of running it."""
        return Effort(seconds, self.setup.run_s, len(self.model.proto.graph.node))

    @property
    def stopwatch(self) -> Stopwatch:
        """Times models on the timed inputs, as they are profiled in the place of the set-up."""
        return self.lab.stopwatch(self.timed, self.setup.options(), self.memory_bytes, self.progress)

    def float_answers(self, count: int | None = None, data: Dataset | None = None) -> Sequence[list[Any]]:
        """The model's own answers (as_written.py) to the first `count` inputs (None: all) of `data` (None: the held-out
        inputs). Each answer is computed once."""
        data = data or self.data.held_out
        answers: Shelf = self.kept.once(("answers", data.sha256), lambda: Shelf((), self.outputs_bytes))
        missing = data.samples[len(answers) : count]
        if missing:
            make_room(self.memory_bytes)
            written = None if self.agreement.agrees else self._written()
            if written is None:
                session = open_session(self.model.proto, replace(self.setup.options(NAME), lean=True), label=self.name)
            else:
                session = open_exact(written.proto, self.name, self.setup.threads)
            for sample in missing:
                answers.append(run_session(session, self.outputs, sample, data.source))
        return answers if count is None or count >= len(answers) else answers[:count]

    def all_float_answers(self) -> Iterator[list[Any]]:
        """The model's own answers to all held-out inputs, unseen ones last."""
        yield from self.float_answers()
        if self.data.unseen is not None:
            yield from self.float_answers(data=self.data.unseen)

    def reference(self, count: int) -> Reference:
        """The first `count` held-out inputs, or as many as there are, with the float model's answers."""
        samples = self.data.held_out.samples[:count]
        return Reference(samples, self.float_answers(len(samples)), self.parts)

    def quick_reference(self, effort: float = 1.0) -> Reference:
        """A few held-out inputs, fewer at a small `effort`, with the float model's answers."""
        most = max(_LEAST_FEW, int(min(1.0, effort) * _MOST_FEW))
        return self.reference(min(most, max(self.within(_TWO_S).runs(2), int(_FEW_S / max(self.setup.run_s, 1e-5)))))

    def but(self, **changes: Any) -> "Work":
        """A copy with other fields; kept results are shared."""
        return Work(**({member.name: getattr(self, member.name) for member in fields(self)} | changes))

    @contextmanager
    def stored(self) -> Iterator[Path]:
        """The float model in a file that is removed at the end."""
        with scratch() as folder:
            path = folder / "float32.onnx"
            weights.write(path, self.model.proto)
            yield path

    def telling(self, progress: Progress | None) -> "Work":
        """A copy that reports the work done to `progress`; itself for None."""
        return self if progress is None else self.but(progress=progress)

    def at(self, effort: float) -> "Work":
        """A copy that measures with another effort. Raises BadOption unless it is above 0."""
        return self.but(effort=positive("effort", effort))

    def in_place(self, place: str) -> "Work":
        """A copy to be timed in `place`."""
        return self.but(setup=replace(self.setup, runtime=place))

    def measure(
        self, metric: Metric, also: Sequence[Bound] = (), count: int | None = None, data: Dataset | None = None
    ) -> Measure:
        """`metric` and the other limited ones, ready to score the first `count` inputs (None: all) of `data` (None:
        those held out for the search) against their labels. Raises BadData for labels that a task cannot use."""
        held_out = data or self.data.held_out
        labels = None if held_out.labels is None else held_out.labels[:count]
        metadata = {entry.key: entry.value for entry in self.model.proto.metadata_props}
        judges = [
            judge_of(limited, self.model.outputs, held_out.samples[:count], labels, metadata, held_out.names)
            for limited in (metric, *(bound.metric for bound in also))
        ]
        return Measure(metric, judges[0], tuple(zip(also, judges[1:], strict=True)))

    def meter(
        self, switchable: Switchable, count: int | None = None, also: Sequence[Bound] = (), limit: float = inf
    ) -> ErrorMeter:
        """A meter of the set-up's metric, limited by `limit`, and the other limited metrics on the first `count`
        held-out inputs (None: all)."""
        measure = self.measure(self.metric, also, count)
        samples = self.data.held_out.samples[:count]
        return ErrorMeter(switchable, samples, self.parts, measure, limit, memory_bytes=self.memory_bytes)

    def builder(self, scheme: Scheme) -> QdqBuilder:
        """The builder of quantised models under `scheme`, for the place of the set-up."""
        ranges = self.ranges()
        builder: QdqBuilder = self.kept.once(("builder", scheme), lambda: QdqBuilder(self.model, self.graph, ranges))
        return builder.fusing() if self._fuses else builder

    @property
    def _fuses(self) -> bool:
        return self.setup.runtime == OPENVINO

    def switchable(self, scheme: Scheme) -> Switchable:
        """The switchable graph of the blocks that can be int8 under `scheme`, as they are built for the place of the
        set-up."""
        key = ("switchable", scheme, tuple(block.name for block in self.graph.candidates()))
        return self.kept.once((*key, self._fuses), lambda: self._switchable(scheme))

    def _switchable(self, scheme: Scheme) -> Switchable:
        options = replace(self.setup.options(NAME), lean=True)
        make_room(self.memory_bytes)
        return self.lab.switchable(self.graph, self.builder(scheme), precisions(scheme), options)

    def settled(self, scheme: Scheme) -> "Work":
        """A copy in which every block that failed its int8 trial under `scheme` stays float (quantize/trial.py).
        Forms without calibration do not change this."""
        scheme = replace(scheme, uncalibrated=())
        reasons = self.kept.once(("floats", scheme), lambda: self._unusable(scheme))
        return self.but(graph=self.graph.without_int8(reasons))

    def _unusable(self, scheme: Scheme) -> dict[str, str]:
        """All blocks without int8, also those refused before, as under another scheme: a workspace that is opened again
        settles on this one alone."""
        feed, builder = self.data.calibration.samples[0], self.builder(scheme)
        make_room(self.memory_bytes)
        refused = {block.name: block.refusal for block in self.graph.blocks if block.refusal}
        return refused | unusable(self.graph, builder, scheme, feed, self.setup.options())

    def ranges(self) -> Ranges:
        """The ranges of activations over the calibration inputs."""
        return self.kept.once(("ranges", ""), self._calibrated)

    def _calibrated(self) -> Ranges:
        make_room(self.memory_bytes)
        return calibrate(self.model, self.data.calibration, self.progress)


def require_own(work: Any, **made: Any) -> None:
    """Raise BadOption unless `work` is an open model, and each of `made`, by argument, an artifact of that kind which
    was made from it."""
    if not isinstance(work, Work):
        raise BadOption(f"`model` has the type {type(work).__name__}: give a taglio.Model")
    for name, value in made.items():
        if type(value).__name__ != _MADE[name]:
            raise BadOption(f"`{name}` has the type {type(value).__name__}: give a {_MADE[name]}")
        if value.model_sha256 != work.model.sha256:
            raise BadOption(f"`{name}` was made from another model: make it from {work.name}")


def _named(inputs: Sequence[InputSpec]) -> set[str]:
    """The names of dynamic dimensions."""
    return {dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)}
