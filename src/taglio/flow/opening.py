"""Open a model with its data, whatever they are given as: files, arrays, models of other frameworks."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx

from taglio.compare.convert import Converted, as_onnx, distance, examples_of, foreign
from taglio.compare.request import KINDS
from taglio.cores import available_cores
from taglio.data.dataset import (
    DEFAULT_LIMIT,
    MAX_CALIBRATION,
    Dataset,
    Sample,
    Split,
    chosen,
    covering,
    covering_rows,
    one_of_each,
    part,
    shapes_of,
    split,
    typical,
)
from taglio.data.files import load as load_files
from taglio.data.labels import with_labels
from taglio.data.preprocess import parse_preprocess
from taglio.data.processor import Beside, files_beside
from taglio.data.spec import InputSpec, contradicted
from taglio.data.unseen import with_unseen
from taglio.data.values import from_values
from taglio.error.judge import fewest_samples
from taglio.error.loss import RELATIVE_L2, parse_metric
from taglio.errors import BadData, BadModel, BadOption
from taglio.flow.memory import memory_needs
from taglio.flow.steps import ALL_STEPS, Stepped
from taglio.lab.setup import POOL, Setup
from taglio.lab.work import Work
from taglio.memory import SAMPLES, free_bytes, used_bytes
from taglio.model.graph import build
from taglio.model.load import Model as Network
from taglio.model.load import load as load_network
from taglio.model.observe import observe
from taglio.model.read import IN_MEMORY, parsed
from taglio.notes import Kind, Note
from taglio.profile.effort import Effort
from taglio.runtimes.onnxruntime import NAME, Optimization, open_session, run_session, version
from taglio.runtimes.places import AUTO
from taglio.search.instead import with_instead

_LOG = logging.getLogger(__name__)
# A run that needs less memory than this prints no line about memory.
_WORTH_SAYING_BYTES = 2_000_000_000
# Samples, of different shapes if possible, on which the simplified model must answer as the original.
_COMPARED = 4
# Of a slow model, as many samples are used as it answers in this time, but not fewer than _FEWEST, nor than one of each
# of _SHAPES shapes.
_SAMPLES_S, _FEWEST, _SHAPES = 30.0, 3, 8


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """Data, calibration data and labels that are given as values; None where a set-up has their path, or there are
    none."""

    data: Any = None
    calibration: Any = None
    labels: Any = None


_NO_VALUES = InMemory()


class Model(Work):
    """A model with its data, opened, checked and simplified: the input of the stages.

    `source` is the path of an ONNX file, its bytes, or an `onnx.ModelProto`; or a model that another environment
    converts: a Keras, TFLite or .pt2 file, a SavedModel, a Hugging Face model folder, or "module:function" of PyTorch.

    `data` are inputs for calibration and measurement: arrays [N, ...] by input name (one array for a model with one
    input), samples in a list, a generator, a PyTorch `DataLoader` or a Hugging Face `Dataset`, or a path (docs/api.md).
    Half of it calibrates, the rest is held out, unless `calibration` gives separate data.

    `labels` are for accuracy and tasks: [N, ...], or a file with one each (.txt, .json, .npy, .npz). `shapes` fix
    inputs whose shape the model leaves open, `preprocess` says how images become inputs ("rgb,mean=127,scale=1/128"),
    `metric` is what the limit is on ("relative-l2", "sqnr", "cosine", a task such as "top1", "ctc" or
    "detection:iou=0.5", or "module:function"), `threads` the threads of a session (None: all cores), `runtime` runs the
    model ("auto": the fastest here), `memory_limit` is the memory that the process may use, in bytes (None: half of
    what is free). `state` names outputs that are inputs of the next step, such as "present=past": samples are then
    steps of one sequence, in order, and hold the other inputs; each step's states are computed by running the model.
    `limit_on` says whether limits bound the error of all held-out inputs together ("pool") or of every single one
    ("worst-input").

    Raises BadModel, BadData or BadOption, in one line, for unusable arguments.

    >>> import numpy, taglio
    >>> from taglio.embedded import digits_data, digits_model
    >>> with numpy.load(digits_data()) as arrays:
    ...     images, labels = arrays["image"][:40], arrays["label"][:40]
    >>> model = taglio.Model(digits_model(), {"image": images}, labels=labels)
    >>> model.name, len(model.graph.blocks), model.outputs
    ('digits', 38, ('logits',))
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
        runtime: str = AUTO,
        requantize: bool = False,
        memory_limit: int | None = None,
        state: Sequence[str] = (),
        portable: bool = False,
        limit_on: str = POOL,
    ) -> None:
        setup = checked(
            Setup(
                model=_path(source),
                shapes=_shapes(shapes or {}),
                data="" if calibration is not None and not _path(calibration) else _path(data),
                preprocess=preprocess,
                seed=seed,
                threads=available_cores() if threads is None else threads,
                optimization=Optimization.ALL.value,
                scheme=None,
                metric=metric,
                calibration=_path(calibration),
                runtime=runtime,
                requantize=requantize,
                memory_bytes=memory_limit,
                labels=_path(labels),
                state=(state,) if isinstance(state, str) else tuple(state),
                portable=portable,
                limit_on=limit_on,
            )
        )
        parse_metric(metric)
        if calibration is not None and (calibration is data or (setup.data and setup.calibration == setup.data)):
            raise BadOption(
                "`calibration` is the same as `data`: leave it out, and taglio holds out a part of the data"
            )
        opened = open_work(setup, source, InMemory(data, calibration, labels))
        assert opened.memory_bytes is not None, "open_work sets it"
        needs = memory_needs(opened.model, opened.graph, opened.data)
        if memory_limit is not None or needs.like > min(opened.memory_bytes, _WORTH_SAYING_BYTES):
            _LOG.info(needs.summary(opened.memory_bytes))
        super().__init__(**{member.name: getattr(opened, member.name) for member in fields(opened)})


def checked(setup: Setup) -> Setup:
    """`setup` with NumPy's numbers as Python's. Raises BadOption for values of a wrong type, or that no stage
    accepts."""
    try:
        setup = msgspec.convert(msgspec.to_builtins(setup, enc_hook=_plain), Setup)
        setup.check()
    except msgspec.ValidationError as error:  # "Expected `int`, got `str` - at `$.threads`"
        wrong, _, where = str(error).partition(" - at `$.")
        name = "memory_limit" if where.startswith("memory_bytes") else where.rstrip("`")
        raise BadOption(f"`{name}`: {wrong[:1].lower()}{wrong[1:].replace('`', '')}") from None
    except ValueError as error:
        raise BadOption(str(error)) from None
    return setup


def _plain(value: Any) -> Any:
    """A number of NumPy as Python's; an empty object for what no setting can be, such as a function."""
    return value.item() if isinstance(value, np.generic) else {}


def open_work(setup: Setup, source: Any = None, values: InMemory = _NO_VALUES) -> Work:
    """Open a model and its data: those named by `setup`, or the values given. Writes nothing."""
    read: list[Split] = []
    memory_bytes = setup.memory_bytes or (free_bytes() + used_bytes()) // 2

    def samples(inputs: tuple[InputSpec, ...]) -> Sequence[Sample]:
        read.append(_read(setup, inputs, values, SAMPLES * memory_bytes, stepped))
        return [*_contradicting(inputs, read[0]), *covering(read[0].held_out.samples)[:_COMPARED]]

    converted: Converted | None = None
    if setup.model and foreign(Path(setup.model)):
        converted = as_onnx(Path(setup.model), setup.shapes, setup.threads, examples_of(setup.data or values.data))
    source = converted.path if converted else Path(setup.model) if setup.model else _proto(source)
    stepped = Stepped(source, setup.shapes, setup.state) if setup.state else None
    network = load_network(source, setup.shapes, samples, requantize=setup.requantize)
    setup = replace(setup, run_s=setup.run_s or network.run_s)
    split_data = _shortened(read[0], setup)
    split_data = with_unseen(split_data, fewest_samples(parse_metric(setup.metric)))
    held_out = split_data.held_out
    feed = held_out.samples[typical(held_out.samples)[0]]
    setup, lowered = _running(setup, network, feed, held_out.source)
    network = replace(network, notes=(*network.notes, *lowered))
    if converted is not None:
        note = _like_the_original(setup, converted, network, held_out)
        split_data = replace(split_data, held_out=replace(held_out, notes=(note, *held_out.notes)))
    states = () if stepped is None else stepped.pairs
    graph = build(network, observe(network, feed, held_out.source), states)
    memory_needs(network, graph, split_data).refuse(network.name, memory_bytes)
    sequence = ((), {}) if stepped is None else (stepped.steps, stepped.first)
    work = Work(setup, source, network, graph, split_data, memory_bytes, *sequence)
    return with_instead(work, setup.instead) if setup.instead else work


def _running(setup: Setup, network: Network, feed: Sample, source: str) -> tuple[Setup, tuple[Note, ...]]:
    """`setup` at the highest optimisation level, up to its own, at which ONNX Runtime runs it; a note if lower.

    The model ran `feed` with basic rewrites, so a failure with more is that of its rewrites or kernels, not of the
    data. Raises BadModel if no level runs.
    """
    levels = [level.value for level in Optimization]
    failure = ""
    for level in reversed(levels[: levels.index(setup.optimization) + 1]):
        lowered = replace(setup, optimization=level)
        try:
            session = open_session(network.proto, replace(lowered.options(NAME), lean=True), label=network.name)
            run_session(session, network.outputs, feed, source)
        except (BadData, BadModel) as error:
            failure = failure or str(error).rpartition("cannot run these inputs: ")[2]
            continue
        what = f"ONNX Runtime {version()} fails on {network.name} at optimisation {setup.optimization}"
        return lowered, (Note(Kind.LOWERED_LEVEL, f"{what} ({failure}): level {level} is used"),) if failure else ()
    raise BadModel(f"{network.name}: ONNX Runtime {version()} runs it at no optimisation level: {failure}")


def _contradicting(inputs: Sequence[InputSpec], data: Split) -> list[Sample]:
    """The first sample that gives several sizes to a named dimension, if any does."""
    for samples in (data.held_out.samples, data.calibration.samples):
        for sample in chosen(samples, one_of_each(samples)):
            if contradicted(inputs, shapes_of(sample)):
                return [sample]
    return []


def _shortened(data: Split, setup: Setup) -> Split:
    """The samples to use of a slow model's, one of each shape first, with a note; all of a faster one's."""
    fewest = max(_FEWEST, fewest_samples(parse_metric(setup.metric)))
    calibration, held_out = data.calibration, data.held_out
    counts = [
        Effort(_SAMPLES_S, setup.run_s).runs(len(each), max(fewest, min(_SHAPES, len(one_of_each(each)))))
        for each in (calibration.samples, held_out.samples)
    ]
    if counts == [len(calibration.samples), len(held_out.samples)]:
        return data
    text = (
        f"a run takes {setup.run_s:.2g} s, so {counts[0]} of {len(calibration.samples)} samples are used for "
        f"calibration, and {counts[1]} of {len(held_out.samples)} to measure errors"
    )
    first, second = (
        replace(short := part(each, covering_rows(each.samples)[:count]), notes=(*short.notes, *notes))
        for each, count, notes in ((calibration, counts[0], ()), (held_out, counts[1], (Note(Kind.FACT, text),)))
    )
    return Split(first, second)


def _like_the_original(setup: Setup, converted: Converted, network: Network, held_out: Dataset) -> Note:
    """A note on a conversion, after comparing it with the original on inputs of one shape. Raises BadModel."""
    samples = chosen(held_out.samples, typical(held_out.samples))
    model = Path(setup.model)
    off = distance(model, converted, network.outputs, samples, held_out.sha256, setup.threads)
    same = "equal the original's" if off == 0.0 else f"differ from the original's by {off:.1e} (relative L2)"
    what = f"{model.name} ({KINDS[converted.kind]}) was converted to ONNX by {converted.tool}"
    return Note(Kind.FACT, f"{what}; its answers {same}")


def _shapes(shapes: Any) -> dict[str, tuple[int, ...]]:
    """The sizes of inputs by name. Raises BadOption for what is no mapping of sequences."""
    if not isinstance(shapes, Mapping) or not all(isinstance(sizes, Sequence) for sizes in shapes.values()):
        raise BadOption(f"`shapes` is {shapes!r}: give a shape by input name, such as {{'image': (1, 3, 224, 224)}}")
    return {name: tuple(sizes) for name, sizes in shapes.items()}


def _path(value: Any) -> str:
    """The absolute path if `value` is a path; "" for values in memory. Links are not followed: a tokenizer lies beside
    the link to its model in Hugging Face's cache."""
    return str(Path(value).absolute()) if isinstance(value, (str, os.PathLike)) else ""


def _proto(source: Any) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        return source
    if not isinstance(source, (bytes, bytearray)):
        raise BadModel(f"`model` has the type {type(source).__name__}: give a path, bytes or an onnx.ModelProto")
    return parsed(IN_MEMORY, bytes(source))


def _read(
    setup: Setup,
    inputs: tuple[InputSpec, ...],
    values: InMemory,
    room_bytes: float,
    stepped: Stepped | None,
) -> Split:
    data, calibration = setup.data or values.data, setup.calibration or values.calibration
    preprocess = parse_preprocess(setup.preprocess) if setup.preprocess else None
    given = inputs if stepped is None else stepped.given(inputs)

    def dataset(source: Any, name: str, limit: int = DEFAULT_LIMIT, labels: Any = None) -> Dataset:
        most = limit if stepped is None else ALL_STEPS
        if isinstance(source, (str, os.PathLike)):
            if labels is not None:
                raise BadOption(f"`labels` in memory need data in memory: give a file of labels for {source}")
            near = files_beside(Path(setup.model)) if setup.model else Beside()
            found = load_files(Path(source), given, preprocess, most, room_bytes, near)
        else:
            if preprocess is not None:
                raise BadOption(
                    f"`preprocess` is for files of images or sounds, but `{name}` is in memory: leave it out"
                )
            found = from_values(source, given, most, labels, name, room_bytes)
        return found if stepped is None else stepped.filled(found, inputs, limit, room_bytes)

    whole = dataset(data, "data", labels=None if setup.labels else values.labels)
    if setup.labels:
        whole = with_labels(whole, Path(setup.labels))
    if calibration is None:
        return split(whole, seed=setup.seed)
    return Split(dataset(calibration, "calibration", MAX_CALIBRATION), whole)
