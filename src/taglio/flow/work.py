"""A model with its data and settings, opened once: the input of every stage. Writes nothing.

Results that are computed once (ranges, blocks that cannot be int8, builders, the switchable graph) are kept with it.
"""

import logging
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import onnx

from taglio.artifact import require
from taglio.compare.convert import Converted, as_onnx, distance, examples_of, foreign
from taglio.compare.request import KINDS
from taglio.data.dataset import (
    MAX_CALIBRATION,
    Dataset,
    Sample,
    Split,
    chosen,
    one_of_each,
    part,
    shapes_of,
    split,
    spread,
    typical,
)
from taglio.data.files import load as load_files
from taglio.data.labels import beside, with_labels
from taglio.data.preprocess import parse_preprocess
from taglio.data.processor import Beside, files_beside
from taglio.data.spec import InputSpec, Shape
from taglio.data.values import from_values
from taglio.error.doubts import digests
from taglio.error.judge import fewest_samples, judge_of
from taglio.error.loss import RELATIVE_L2, Bound, Metric, parse_metric
from taglio.error.measure import ErrorMeter
from taglio.error.movement import find_parts
from taglio.error.parts import Parts
from taglio.error.switchable import Switchable, quantizable_flows
from taglio.error.tally import Measure
from taglio.errors import BadModel, BadOption
from taglio.flow.memory import memory_needs
from taglio.flow.repair import MEANS, repaired
from taglio.flow.steps import ALL_STEPS, Stepped
from taglio.memory import OUTPUTS, SAMPLES, Shelf, free_bytes, used_bytes
from taglio.model.graph import Graph, build
from taglio.model.load import Model as Network
from taglio.model.load import load as load_network
from taglio.model.observe import observe
from taglio.model.read import IN_MEMORY, parsed
from taglio.profile.machine import MOST_THREADS, available_cores
from taglio.profile.stopwatch import FEEDS
from taglio.progress import Progress
from taglio.quantize.precision import precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges, calibrate
from taglio.quantize.scheme import Scheme
from taglio.quantize.trial import unusable
from taglio.runtimes.onnxruntime import (
    CUDA,
    NAME,
    Optimization,
    SessionOptions,
    open_session,
    providers_for,
    run_session,
)
from taglio.runtimes.openvino import MIXED
from taglio.runtimes.places import AUTO
from taglio.runtimes.session import RUNTIMES

_LOG = logging.getLogger(__name__)
# A run that needs less memory than this prints no line about memory.
_WORTH_SAYING_BYTES = 2_000_000_000
# Samples, of different shapes if possible, on which the simplified model must answer as the original.
_COMPARED = 4
# Of a slow model, as many samples are used as it answers in this time, but not fewer than _FEWEST, nor than one of each
# of _SHAPES shapes; and a timed run takes no longer than _TIMED_S if it covers several shapes.
_SAMPLES_S, _FEWEST, _SHAPES, _TIMED_S = 30.0, 3, 8, 8.0
# A few inputs are as many as float runs in _FEW_S seconds, at most _MOST_FEW, and two unless they take _TWO_S.
_FEW_S, _MOST_FEW, _TWO_S = 0.5, 32, 8.0
# Biases are averaged over samples that take _MEANS_S, at least _LEAST_MEANS.
_MEANS_S, _LEAST_MEANS = 8.0, 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings that must be the same from stage to stage.

    `model` and `data` are paths, "" if given in memory. `calibration` is separate calibration data; "" takes a part of
    `data`. `requantize` first converts quantised parts of the model to float. `memory_bytes` is the memory that a
    stage's process may use; None: half of what is free when it starts. `labels` is a file of labels, if `data` holds
    none. `bfloat16` are the tensors computed in it in `openvino-mixed`; `state` holds pairs OUTPUT=INPUT. `run_s` are
    the seconds that a run took when the model was first opened: every stage does less with a slow model.
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
    labels: str = ""
    bfloat16: tuple[str, ...] | None = None
    state: tuple[str, ...] = ()
    run_s: float = 0.0

    def check(self) -> None:
        """Raise ValueError for settings that no stage accepts."""
        levels = [each.value for each in Optimization]
        require(self.optimization in levels, f"unknown optimization {self.optimization}: use {' or '.join(levels)}")
        known = (AUTO, *RUNTIMES)
        require(self.runtime in known, f"unknown runtime {self.runtime}: use {' or '.join(known)}")
        require(
            self.runtime != MIXED or self.bfloat16 is not None,
            f"runtime {MIXED} cannot be requested: use `runtime` auto, which chooses it where it pays",
        )
        require(1 <= self.threads <= MOST_THREADS, f"threads must be from 1 to {MOST_THREADS}, but is {self.threads}")
        require(self.seed >= 0, f"seed must not be negative, but is {self.seed}")
        require(self.memory_bytes is None or self.memory_bytes > 0, "`memory_limit` must be above 0")
        require(all(min(each, default=1) >= 0 for each in self.shapes.values()), "shapes: sizes must not be negative")

    def options(self, place: str = "") -> SessionOptions:
        """Options of timed sessions in `place`; by default in the set-up's own runtime, which is ONNX Runtime until one
        is chosen."""
        place = place or (NAME if self.runtime == AUTO else self.runtime)
        bfloat16 = (self.bfloat16 or ()) if place == MIXED else ()
        return SessionOptions(
            self.threads, Optimization(self.optimization), self.spinning, runtime=place, bfloat16=bfloat16
        )


class Kept:
    """Results about a model, each computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, ...], Any] = {}

    def once(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """The result under `key`, made on first use."""
        if key not in self._known:
            self._known[key] = make()
        return cast("T", self._known[key])

    def put(self, key: tuple[Hashable, ...], value: object) -> None:
        """Add a known result."""
        self._known[key] = value

    def all(self, kind: str) -> dict[Any, Any]:
        """All results whose keys begin with (kind, name), by name."""
        return {key[1]: value for key, value in self._known.items() if key[0] == kind}

    def forget(self, kind: str, but: Hashable = None) -> None:
        """Drop results that take much memory and are no longer needed: all of a kind except one name."""
        for name in self.all(kind):
            if name != but:
                self._known = {key: value for key, value in self._known.items() if key[:2] != (kind, name)}


@dataclass(frozen=True, eq=False)  # no slots: cached properties need a __dict__
class Work:
    """An opened model, its blocks and its data, ready for any stage. `source` is where the model was read from;
    `progress` is told how far a stage is (None: nobody is)."""

    setup: Setup
    source: Path | onnx.ModelProto
    model: Network
    graph: Graph
    data: Split
    memory_bytes: int | None = None
    kept: Kept = field(default_factory=Kept)
    progress: Progress | None = None

    def __repr__(self) -> str:
        """Its size: all fields together are megabytes."""
        blocks, able = len(self.graph.blocks), len(self.graph.candidates())
        samples = len(self.data.calibration.samples) + len(self.data.held_out.samples)
        return f"{type(self).__name__}: {self.name}, {blocks} blocks, {able} can be int8, {samples} samples"

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
        return chosen(samples, spread(samples, self.affordable(_TIMED_S, FEEDS)))

    @property
    def steps(self) -> Sequence[Sample]:
        """The steps of a session of a model with states, in order, without the states. Raises BadOption for other
        models."""
        if not self.graph.states:
            raise BadOption("`steps` needs a model with states: name them with `state` when profiling")
        return cast("Sequence[Sample]", self.kept.once(("steps",), lambda: ()))

    @property
    def measured_shapes(self) -> tuple[dict[str, Shape], ...]:
        """The shapes of the timed inputs; empty if the model has no dynamic dimension."""
        return tuple(map(shapes_of, self.timed)) if any(spec.dynamic for spec in self.model.inputs) else ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes for the user about how the data was read, and about random answers."""
        random = (self.model.random,) if self.model.random else ()
        return tuple(dict.fromkeys(random + self.data.calibration.remarks + self.data.held_out.remarks))

    @cached_property
    def parts(self) -> Parts:
        """The parts of the outputs, each measured separately."""
        key = ("parts", self.data.held_out.sha256)
        return self.kept.once(key, lambda: find_parts(self.model, self.data.held_out.samples))

    @cached_property
    def digests(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """A digest of every calibration and every held-out input, equal for equal inputs."""
        return digests(self.data.calibration.samples), digests(self.data.held_out.samples)

    def affordable(self, seconds: float, most: int, fewest: int = 1) -> int:
        """How many runs of the model take `seconds`: at most `most`, at least `fewest`."""
        return affordable(self.setup.run_s, seconds, most, fewest)

    def float_answers(self, count: int | None = None) -> Sequence[list[Any]]:
        """The float model's answers in ONNX Runtime to the first `count` held-out inputs (None: all); each is computed
        once."""
        held_out = self.data.held_out
        known: Shelf = self.kept.once(("answers", held_out.sha256), lambda: Shelf((), self.outputs_bytes))
        missing = held_out.samples[len(known) : count]
        if missing:
            session = open_session(self.model.proto, self.setup.options(NAME), label=self.name)
            for sample in missing:
                known.append(run_session(session, self.outputs, sample, held_out.source))
        return known if count is None or count >= len(known) else known[:count]

    def few_answers(self, float_s: float) -> tuple[Sequence[Sample], Sequence[list[Any]]]:
        """A few held-out inputs, and the float model's answers; it takes `float_s`."""
        count = min(_MOST_FEW, max(self.affordable(_TWO_S, 2), int(_FEW_S / float_s)))
        samples = self.data.held_out.samples[:count]
        return samples, self.float_answers(len(samples))

    def but(self, **changes: Any) -> "Work":
        """A copy with other fields; kept results are shared."""
        other = copy(self)
        for name in ("parts", "digests", "typical", "timed"):
            other.__dict__.pop(name, None)
        other.__dict__.update(changes)
        return other

    def telling(self, progress: Progress | None) -> "Work":
        """A copy that tells `progress` how far a stage is; itself for None."""
        return self if progress is None else self.but(progress=progress)

    def in_place(self, place: str) -> "Work":
        """A copy to be timed in `place`."""
        return self.but(setup=replace(self.setup, runtime=place))

    def measure(self, metric: Metric, also: Sequence[Bound] = (), count: int | None = None) -> Measure:
        """`metric` and the other limited ones, ready to score the first `count` held-out inputs (None: all) against
        their labels. Raises BadData for labels that a task cannot use."""
        held_out = self.data.held_out
        labels = None if held_out.labels is None else held_out.labels[:count]
        metadata = {each.key: each.value for each in self.model.proto.metadata_props}
        judges = [
            judge_of(each, self.model.outputs, held_out.samples[:count], labels, metadata, held_out.names)
            for each in (metric, *(bound.metric for bound in also))
        ]
        return Measure(metric, judges[0], tuple(zip(also, judges[1:], strict=True)))

    def meter(
        self, switchable: Switchable, count: int | None = None, also: Sequence[Bound] = (), limit: float = inf
    ) -> ErrorMeter:
        """A meter of the set-up's metric, limited by `limit`, and the other limited metrics on the first `count`
        held-out inputs (None: all)."""
        measure = self.measure(parse_metric(self.setup.metric), also, count)
        samples = self.data.held_out.samples[:count]
        return ErrorMeter(switchable, samples, self.parts, measure, limit, room_bytes=self.outputs_bytes)

    def builder(self, scheme: Scheme) -> QdqBuilder:
        """The builder of quantised models under `scheme`."""
        ranges = self.ranges(scheme)
        return self.kept.once(
            ("builder", scheme), lambda: QdqBuilder(self.model, self.graph, {scheme.calibrated: ranges})
        )

    def switchable(self, scheme: Scheme, provider: str = "cpu") -> Switchable:
        """The switchable graph of the blocks that can be int8 under `scheme`."""
        able = tuple(block.name for block in self.graph.candidates())
        return self.kept.once(("switchable", scheme, provider, able), lambda: self._switchable(scheme, provider))

    def _switchable(self, scheme: Scheme, provider: str) -> Switchable:
        setup = self.setup
        options = SessionOptions(setup.threads, spinning=setup.spinning, providers=providers_for(provider))
        wires = dict.fromkeys(quantizable_flows(self.graph), scheme)
        builder, forms = self.builder(scheme), precisions(scheme)
        result = Switchable(self.model, self.graph, builder, forms, options, wires=wires)
        if provider == "cuda" and result.provider != CUDA:  # offered, but the GPU, its driver or libraries are missing
            raise BadOption(f"`provider` cuda: ONNX Runtime offers {CUDA} but could not start it here: use auto or cpu")
        return result

    def settled(self, scheme: Scheme) -> "Work":
        """A copy in which every block that failed its int8 trial under `scheme` stays float (quantize/trial.py).
        Neither repairs, which change no kernels, nor forms without calibration change this."""
        scheme = replace(scheme, repairs=(), uncalibrated=())
        reasons = self.kept.once(("floats", scheme), lambda: self.unusable(scheme))
        return self.but(graph=self.graph.without_int8(reasons))

    def unusable(self, scheme: Scheme, *, thorough: bool = True) -> dict[str, str]:
        """The blocks that cannot be int8 under `scheme`, each with the reason."""
        options = replace(self.setup.options(), spinning=False)
        feed, builder, ranges = self.data.calibration.samples[0], self.builder(scheme), self.ranges(scheme)
        return unusable(self.model, self.graph, ranges, scheme, feed, options, thorough=thorough, builder=builder)

    def ranges(self, scheme: Scheme, *, effort: float = 1.0) -> Ranges:
        """The calibration of `scheme`, with its repairs; `effort` scales the time that these take."""
        return self.kept.once(("ranges", scheme.calibrated), lambda: self._calibrated(scheme, effort))

    def _calibrated(self, scheme: Scheme, effort: float) -> Ranges:
        data = self.data.calibration
        more: dict[str, Any] = {"room_bytes": self.outputs_bytes, "progress": self.progress}
        if not scheme.repairs:
            return calibrate(self.model, data, scheme.calibration, **more)
        before = self.ranges(replace(scheme, repairs=scheme.repairs[:-1]), effort=effort)
        more |= {"effort": effort, "means": self.affordable(effort * _MEANS_S, MEANS, _LEAST_MEANS)}
        return repaired(self.model, self.graph, before, scheme, data, self.parts, **more)


class Model(Work):
    """A model with its data, opened, checked and simplified: the input of the stages.

    `source` is the path of an ONNX file, its bytes, or an `onnx.ModelProto`; or a model that another environment
    converts: a Keras, TFLite or .pt2 file, a SavedModel, a Hugging Face model folder, or "module:function" of PyTorch.

    `data` are inputs for calibration and measurement: arrays [N, ...] by input name (one array for a model with one
    input), samples in a list, a generator, a PyTorch `DataLoader` or a Hugging Face `Dataset`, or a path (docs/api.md).
    Half of it calibrates, the rest is held out, unless `calibration` gives separate data.

    `labels` are for accuracy and tasks: [N, ...], or a file with one each (.txt, .json, .npy, .npz). `shapes` fix
    inputs whose shape the model leaves open, `preprocess` says how images become inputs ("rgb,mean=127,scale=1/128"),
    `metric` is what `max_error` limits ("relative-l2", "sqnr", "cosine", a task such as "top1", "ctc" or
    "detection:iou=0.5", or "module:function"), `threads` the threads of a session (None: all cores), `runtime` runs the
    model ("auto": the fastest here), `memory_limit` is the memory that the process may use, in bytes (None: half of
    what is free). `state` names outputs that are inputs of the next step, such as "present=past": samples are then
    steps of one sequence, in order, and hold the other inputs; each step's states are computed by running the model.

    Raises BadModel, BadData or BadOption, in one line, for unusable arguments.

    >>> import numpy, taglio
    >>> from taglio.embedded import digits_data, digits_model
    >>> with numpy.load(digits_data()) as arrays:
    ...     images, labels = arrays["image"][:40], arrays["label"][:40]
    >>> model = taglio.Model(digits_model(), {"image": images}, labels=labels)
    >>> model.name, len(model.graph.blocks), model.outputs
    ('digits', 42, ('logits',))
    """

    def __init__(
        self,
        source: Any,
        data: Any,
        *,
        labels: Any = None,
        calibration: Any = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        preprocess: str = "",
        metric: str = RELATIVE_L2,
        seed: int = 0,
        threads: int | None = None,
        spinning: bool = False,
        optimization: str = "all",
        runtime: str = AUTO,
        requantize: bool = False,
        memory_limit: int | None = None,
        state: Sequence[str] = (),
    ) -> None:
        setup = checked(
            Setup(
                _path(source),
                {name: tuple(sizes) for name, sizes in (shapes or {}).items()},
                "" if calibration is not None and not _path(calibration) else _path(data),
                preprocess,
                seed,
                available_cores() if threads is None else threads,
                spinning,
                optimization,
                None,
                metric,
                _path(calibration),
                runtime,
                requantize,
                memory_limit,
                _path(labels),
                state=(state,) if isinstance(state, str) else tuple(state),
            )
        )
        parse_metric(metric)
        opened = open_work(setup, source, data, calibration, labels)
        assert opened.memory_bytes is not None, "open_work sets it"
        needs = memory_needs(opened.model, opened.graph, opened.data)
        if memory_limit is not None or needs.like > min(opened.memory_bytes, _WORTH_SAYING_BYTES):
            _LOG.info(needs.told(opened.memory_bytes))
        self.__dict__.update(vars(opened))


def checked(setup: Setup) -> Setup:
    """`setup` itself. Raises BadOption for values of a wrong type, or that no stage accepts."""
    try:
        msgspec.convert(msgspec.to_builtins(setup), Setup)
        setup.check()
    except msgspec.ValidationError as error:  # "Expected `int`, got `str` - at `$.threads`"
        wrong, _, where = str(error).partition(" - at `$.")
        name = "memory_limit" if where.startswith("memory_bytes") else where.rstrip("`")
        raise BadOption(f"`{name}`: {wrong[:1].lower()}{wrong[1:].replace('`', '')}") from None
    except ValueError as error:
        raise BadOption(str(error)) from None
    return setup


def open_work(setup: Setup, source: Any = None, data: Any = None, calibration: Any = None, labels: Any = None) -> Work:
    """Open a model and its data: those named by `setup`, or the values given. Writes nothing."""
    read: list[Split] = []
    memory_bytes = setup.memory_bytes or (free_bytes() + used_bytes()) // 2

    def samples(inputs: tuple[InputSpec, ...]) -> Sequence[Sample]:
        values = (setup.data or data, setup.calibration or calibration)
        read.append(_read(setup, inputs, *values, labels, SAMPLES * memory_bytes, stepped))
        return covering(read[0].held_out.samples)[:_COMPARED]

    made: Converted | None = None
    if setup.model and foreign(Path(setup.model)):
        made = as_onnx(Path(setup.model), setup.shapes, setup.threads, examples_of(setup.data or data))
    source = made.path if made else Path(setup.model) if setup.model else _proto(source)
    stepped = Stepped(source, setup.shapes, setup.state) if setup.state else None
    network = load_network(source, setup.shapes, samples, requantize=setup.requantize)
    setup = replace(setup, run_s=setup.run_s or network.run_s)
    split_data = _shortened(read[0], setup)
    held_out = split_data.held_out
    feed = held_out.samples[typical(held_out.samples)[0]]
    if made is not None:
        told = _like_the_original(setup, made, network, held_out)
        split_data = replace(split_data, held_out=replace(held_out, remarks=(told, *held_out.remarks)))
    states = () if stepped is None else stepped.pairs
    graph = build(network, observe(network, feed, held_out.source), states)
    memory_needs(network, graph, split_data).refuse(network.name, memory_bytes)
    work = Work(setup, source, network, graph, split_data, memory_bytes)
    if stepped is not None:
        work.kept.put(("steps",), stepped.steps)
    return work


def affordable(run_s: float, seconds: float, most: int, fewest: int = 1) -> int:
    """How many runs of `run_s` take `seconds`: at most `most`, at least `fewest`."""
    return most if run_s * most <= seconds else min(most, max(fewest, int(seconds / run_s)))


def _shortened(data: Split, setup: Setup) -> Split:
    """The samples to use of a slow model's, one of each shape first, with a remark; all of a faster one's."""
    fewest = max(_FEWEST, fewest_samples(parse_metric(setup.metric)))
    calibration, held_out = data.calibration, data.held_out
    counts = [
        affordable(setup.run_s, _SAMPLES_S, len(each), max(fewest, min(_SHAPES, len(one_of_each(each)))))
        for each in (calibration.samples, held_out.samples)
    ]
    if counts == [len(calibration.samples), len(held_out.samples)]:
        return data
    told = (
        f"a run takes {setup.run_s:.2g} s: {counts[0]} of {len(calibration.samples)} samples calibrate, and errors are "
        f"measured on {counts[1]} of {len(held_out.samples)}"
    )
    first, second = (
        replace(short := part(each, covering_rows(each.samples)[:count]), remarks=(*short.remarks, *remarks))
        for each, count, remarks in ((calibration, counts[0], ()), (held_out, counts[1], (told,)))
    )
    return Split(first, second, data.seed)


def _like_the_original(setup: Setup, made: Converted, network: Network, held_out: Dataset) -> str:
    """One line about a conversion, after comparing it with the original on inputs of one shape. Raises BadModel."""
    samples = chosen(held_out.samples, typical(held_out.samples))
    model = Path(setup.model)
    found = distance(model, made, network.outputs, samples, held_out.sha256, setup.threads)
    return (
        f"{model.name} ({KINDS[made.kind]}) was converted to ONNX by {made.tool}; its answers are within {found:.1e} "
        "of the original's"
    )


def covering(samples: Sequence[Sample]) -> Sequence[Sample]:
    """All of `samples`, starting with one of each combination of shapes."""
    return chosen(samples, covering_rows(samples))


def covering_rows(samples: Sequence[Sample]) -> list[int]:
    """The indices of `samples`, starting with one of each combination of shapes."""
    first = one_of_each(samples)
    return [*first, *sorted(set(range(len(samples))) - set(first))]


def _path(value: Any) -> str:
    """The absolute path if `value` is a path; "" for values in memory. Links are not followed: a tokenizer lies beside
    the link to its model in Hugging Face's cache."""
    return str(Path(value).absolute()) if isinstance(value, (str, os.PathLike)) else ""


def _proto(source: Any) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        return source
    if not isinstance(source, (bytes, bytearray)):
        raise BadModel(f"the model is a {type(source).__name__}: give a path, bytes or an onnx.ModelProto")
    return parsed(IN_MEMORY, bytes(source))


def _read(
    setup: Setup,
    inputs: tuple[InputSpec, ...],
    data: Any,
    calibration: Any,
    labels: Any,
    room_bytes: float,
    stepped: Stepped | None = None,
) -> Split:
    preprocess = parse_preprocess(setup.preprocess) if setup.preprocess else None
    given = inputs if stepped is None else stepped.given(inputs)

    def dataset(values: Any, name: str, limit: int | None = None, labels: Any = None) -> Dataset:
        if stepped is None:
            return plain(values, name, limit, labels)
        return stepped.filled(plain(values, name, ALL_STEPS, labels), inputs, limit, room_bytes)

    def plain(values: Any, name: str, limit: int | None, labels: Any) -> Dataset:
        if not isinstance(values, (str, os.PathLike)):
            if preprocess is not None:
                raise BadOption(f"`preprocess` is for folders of images, but `{name}` is in memory: leave it out")
            return from_values(values, given, limit, labels, name, room_bytes)
        if labels is not None:
            raise BadOption(f"`labels` in memory need data in memory: give a file of labels for {values}")
        near = files_beside(Path(setup.model)) if setup.model else Beside()
        return load_files(Path(values), given, preprocess, limit, room_bytes, near)

    whole = dataset(data, "data", labels=None if setup.labels else labels)
    if setup.labels:
        whole = with_labels(whole, Path(setup.labels))
    elif isinstance(data, (str, os.PathLike)):
        whole = beside(whole, Path(data))
    if calibration is None:
        return split(whole, seed=setup.seed)
    if calibration is data or (setup.data and setup.calibration == setup.data):
        raise BadOption("`calibration` is the same as `data`: leave it out, and taglio holds out a part of the data")
    return Split(dataset(calibration, "calibration", MAX_CALIBRATION), whole, setup.seed)
