"""Run a comparison: read model and data, write back ends' files, run each back end in its own process, collect rows."""

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taglio import artifact
from taglio.compare import convert, environments, supervise, table, variants
from taglio.compare.bench import Bench
from taglio.compare.checkpoint import Checkpoint, Part
from taglio.compare.emit import known
from taglio.compare.layers import write_blocks
from taglio.compare.recommend import drift, recommend
from taglio.compare.request import Request
from taglio.compare.result import Comparison, Conversion
from taglio.compare.row import Row, Wanted
from taglio.compare.supervise import Limits
from taglio.compare.variants import Source, Written
from taglio.compare.workers.loop import timed
from taglio.data.dataset import Dataset, Sample, Split, part, shapes_of, split, typical
from taglio.data.files import load
from taglio.data.preprocess import parse_preprocess
from taglio.data.processor import files_beside
from taglio.data.spec import InputSpec
from taglio.errors import BadOption
from taglio.memory import free_bytes
from taglio.model.graph import Graph, build
from taglio.model.load import Model
from taglio.model.load import load as load_model
from taglio.model.observe import observe
from taglio.profile.machine import describe
from taglio.profile.stopwatch import Progress
from taglio.quantize.ranges import calibrate
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session, version

READS_ONNX = frozenset({"onnxruntime", "openvino", "openvino-ep"})
MOST_CALIBRATION, MOST_HELD_OUT = 64, 16
_MODELS = "models"
_MINIMUM_ROUNDS = 3
# Shares of the free memory at which a worker times its open rows, and at which it is stopped.
_TIME_AT, _STOP_AT = 0.4, 0.85


@dataclass(frozen=True, slots=True)
class Question:
    """What to compare. `silence_s` is the time limit of a row; `effort` scales the time given to measuring.

    `rows` are the rows to measure, without their back end; empty for all. Float rows are always included. `emit` is the
    id of the row whose model is to be kept.
    """

    model: Path
    data: Path
    out: Path
    shapes: dict[str, tuple[int, ...]]
    preprocess: str
    backends: tuple[str, ...]
    layers: bool
    threads: int
    seed: int
    effort: float
    max_error: float
    silence_s: float
    rows: tuple[str, ...] = ()
    emit: str = ""


def compare(question: Question, tell: Progress | None = None) -> Comparison:
    """Measure every row. Raises BadModel, BadData or BadOption for a model or data that no back end could use.

    Finished rows are saved at once. Ctrl-C ends measuring and returns the comparison so far as `stopped`; the same
    question then continues from the saved rows, as after a crash.
    """
    start = time.perf_counter()
    unknown = [name for name in question.backends if name not in environments.BACKENDS]
    if unknown:
        raise BadOption(f"no back end {unknown[0]}: choose among {', '.join(environments.BACKENDS)}")
    question.out.mkdir(parents=True, exist_ok=True)
    for old in (question.out / "work").glob("*"):  # from an earlier comparison, possibly of another model
        if old.name != _MODELS:  # these are stored with the model that they belong to
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    limits = Limits(question.silence_s, int(_STOP_AT * free_bytes()))
    examples = convert.examples_of(question.data)
    made = convert.as_onnx(question.model, question.shapes, question.threads, examples, limits)
    model, graph, data = _opened(made.path, question)
    count = (lambda done, total: tell("calibrating", done, total)) if tell else None
    ranges = calibrate(model, data.calibration, "minmax", count)
    source = Source(model, graph, data, ranges, SessionOptions(question.threads))
    request = _request(question, source, made.kind)
    if question.layers:
        alone = bool(READS_ONNX - {"onnxruntime"} & set(question.backends))
        write_blocks(source, Path(request.blocks), alone=alone)
    distance = _write_arrays(request, source, limits)
    conversions = (Conversion(made.kind, "onnx", made.tool, distance, str(made.path)),) if made.tool else ()
    identity = _identity(question, Path(request.arrays))
    written = _write(question, source, identity, tell)
    asked = {backend: _asked(backend, written, question) for backend in question.backends}
    if question.emit:
        known(question.emit, asked.values())
    checkpoint = Checkpoint(question.out, model.sha256, identity)
    bench = Bench(request, source, written, limits, checkpoint, _reference(source), question.layers, tell)
    stopped = False
    try:
        for backend in question.backends:
            bench.measure(backend, asked[backend])
    except KeyboardInterrupt:
        stopped = True
        checkpoint.save()  # the last row may be only in memory
    parts = {backend: checkpoint.parts[backend] for backend in question.backends if backend in checkpoint.parts}
    rows = tuple(_row(parts.get(each.backend), each) for backend in question.backends for each in asked[backend])
    return Comparison(
        question.model.name,
        model.sha256,
        made.kind,
        describe(),
        question.threads,
        str(question.data),
        len(data.calibration.samples),
        len(data.held_out.samples),
        question.max_error,
        question.silence_s,
        limits.memory_bytes if supervise.limits_memory() else None,
        question.backends,
        {"taglio": {"onnxruntime": version()}} | {backend: part.told for backend, part in parts.items()},
        conversions + tuple(part.conversion for part in parts.values() if part.conversion),
        rows,
        tuple(layer for part in parts.values() for layer in part.layers or ()),
        {backend: part.absent for backend, part in parts.items() if part.absent},
        tuple(each for part in parts.values() for each in part.support),
        drift(rows),
        recommend(rows, question.max_error),
        checkpoint.found,
        stopped,
        time.perf_counter() - start,
    )


def _reference(source: Source) -> Callable[[], list[float]]:
    """Runs and times the float model in this process like a row, between the rounds of every back end."""
    session = open_session(source.model.proto, source.options, label="the reference")
    names, feed = list(source.model.outputs), dict(source.data.held_out.samples[0])
    return lambda: timed(lambda: session.run(names, feed))


def _opened(path: Path, question: Question) -> tuple[Model, Graph, Split]:
    """The model, its blocks and its data, all of one shape, because most back ends compile for one shape. For open
    dimensions it is the most frequent shape in the data."""
    read: list[Dataset] = []

    def samples(inputs: tuple[InputSpec, ...]) -> list[Sample]:
        preprocess = parse_preprocess(question.preprocess) if question.preprocess else None
        dataset = load(question.data, inputs, preprocess, near=files_beside(question.model))
        read.append(part(dataset, typical(dataset.samples)))
        return list(read[-1].samples[:1])

    model = load_model(path, question.shapes, samples)
    if any(spec.dynamic for spec in model.inputs):
        model = load_model(path, shapes_of(read[0].samples[0]), samples)
    data = split(read[-1], seed=question.seed, max_calibration=MOST_CALIBRATION, max_held_out=MOST_HELD_OUT)
    return model, build(model, observe(model, data.held_out.samples[0], str(question.data))), data


def _row(known: Part | None, wanted: Wanted) -> Row:
    why = "the comparison was stopped before this row: repeat the command to continue"
    stopped = Row(wanted, "stopped", why, None, None)
    return stopped if known is None else known.rows.get(wanted.id, stopped)


def _asked(backend: str, written: Written, question: Question) -> tuple[Wanted, ...]:
    every = table.rows_of(backend, written.files, written.refusals, question.threads)
    chosen = question.rows
    return tuple(each for each in every if not chosen or each.baseline or each.id.partition("/")[2] in chosen)


def _identity(question: Question, arrays: Path) -> dict[str, object]:
    """Everything that stored rows depend on besides the model and the back end's versions."""
    return {
        "machine": str(describe()),
        "samples": hashlib.sha256(arrays.read_bytes()).hexdigest(),
        "threads": question.threads,
        "seed": question.seed,
        "effort": question.effort,
        "taglio": artifact.tools(),
    }


def _request(question: Question, source: Source, kind: str) -> Request:
    folder = question.out.resolve() / "work"
    checked = folder / "float32.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    checked.write_bytes(source.model.proto.SerializeToString())
    return Request(
        task="rows",
        backend="",
        model=str(question.model.absolute()),
        kind=kind,
        onnx=str(checked),
        inputs=tuple(spec.name for spec in source.model.inputs),
        shapes=tuple(spec.sizes() for spec in source.model.inputs),
        outputs=source.model.outputs,
        arrays=str(folder / "arrays.npz"),
        blocks=str(folder / "blocks.json"),
        converted="",
        folder=str(folder),
        rows=(),
        known=(),
        threads=question.threads,
        budget_s=30.0 * question.effort,
        minimum_rounds=_MINIMUM_ROUNDS,
        memory_bytes=int(_TIME_AT * free_bytes()),
        seed=question.seed,
    )


def _write_arrays(request: Request, source: Source, limits: Limits) -> float | None:
    """Write the inputs and the original's outputs; returns the distance of the ONNX form's outputs from them (None: the
    ONNX form is the original). Raises BadModel if the original cannot run the inputs."""
    data = source.data
    arrays: dict[str, np.ndarray] = {} if data.held_out.labels is None else {"labels": data.held_out.labels}
    for of, dataset in (("calibration", data.calibration), ("held_out", data.held_out)):
        for index, name in enumerate(request.inputs):
            arrays[f"{of}_{index}"] = np.stack([sample[name] for sample in dataset.samples])

    def outputs_of(path: str, optimization: Optimization) -> list[np.ndarray]:
        options = SessionOptions(source.options.threads, optimization)
        return convert.onnx_outputs(Path(path), options, request.outputs, data.held_out.samples, data.held_out.source)

    distance = None
    if request.kind == "onnx":
        reference = outputs_of(request.model, Optimization.NONE)
    else:
        np.savez(request.arrays, **arrays)  # type: ignore[arg-type]
        reference = convert.original_outputs(request, limits)
        distance = convert.distance_of(request.outputs, reference, outputs_of(request.onnx, Optimization.BASIC))
    arrays |= {f"reference_{index}": column for index, column in enumerate(reference)}
    np.savez(request.arrays, **arrays)  # type: ignore[arg-type]
    return distance


def _write(question: Question, source: Source, identity: dict[str, object], tell: Progress | None) -> Written:
    if not READS_ONNX & set(question.backends):
        return Written()
    keys = {name.partition(" ")[0] for name in question.rows}
    forms = tuple(each for each in table.forms() if not keys or each.key in keys or each.key == table.FLOAT)
    return variants.write(source, forms, question.out / "work" / _MODELS, str(identity), tell)
