"""Run a comparison: read model and data, write back ends' files, run each back end in its own process, collect rows."""

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from taglio import artifact
from taglio.arguments import number, positive
from taglio.compare import convert, environments, table, variants
from taglio.compare.bench import RowBench
from taglio.compare.request import Arrays, Request
from taglio.compare.result import COMPARISON, Comparison, Conversion, best
from taglio.compare.row import Row, WantedRow
from taglio.compare.supervise import WorkerLimits
from taglio.compare.variants import OnnxSource, Written
from taglio.compare.workers.loop import timed
from taglio.cores import available_cores
from taglio.data.dataset import Dataset, Sample, Split, part, shapes_of, split, typical
from taglio.data.files import load
from taglio.data.preprocess import parse_preprocess
from taglio.data.processor import files_beside
from taglio.data.spec import InputSpec
from taglio.data.values import from_values
from taglio.error.movement import find_parts
from taglio.errors import BadModel, BadOption
from taglio.memory import free_bytes
from taglio.model.graph import Graph, build
from taglio.model.load import Model
from taglio.model.load import load as load_model
from taglio.model.observe import observe
from taglio.model.written import as_written, open_exact
from taglio.profile.machine import describe
from taglio.progress import Progress
from taglio.quantize.ranges import calibrate
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.scratch import scratch
from taglio.transaction import held

BACKENDS = tuple(environments.BACKENDS)
READS_ONNX = frozenset({"onnxruntime", "openvino"})
# Emptied by every comparison: no name that a folder of the user's may have.
_WORK, _MODELS = "compare-work", "models"
_STOPPED = "the comparison was stopped before this row"
Reader = Callable[[tuple[InputSpec, ...]], Dataset]


def compare_backends(
    model: Any,
    data: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    backends: Sequence[str] = BACKENDS,
    rows: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    preprocess: str = "",
    max_error: float = 0.01,
    seed: int = 0,
    threads: int | None = None,
    effort: float = 1.0,
    row_limit_s: float = 300.0,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Every back end's ways to run and quantise one model, measured side by side in separate processes.

    `model` is a path (.onnx, .keras, .h5, .tflite, .pt2), "module:function", or an `onnx.ModelProto`; `data` a path or
    values in memory, as for `optimize`. Rows of back ends that are not installed say how to install them. With `out`
    everything is kept there, and the `file` of a row is its model. Ctrl-C ends measuring: the result is `stopped` and
    has the rows that were finished. `rows` names the rows to measure, without their back end (default: all; float rows
    always are). `effort` scales the time given to measuring, `row_limit_s` is the time that a row may take without
    output, `memory_limit` the memory that each process may use, in bytes (default: half of what is free): a row that
    needs more is left out.

    Raises BadModel, BadData or BadOption for a model or data that no back end could use.

    >>> only = {"backends": ["onnxruntime"], "rows": ["float32"]}
    >>> table = taglio.compare_backends(model.source, {"image": images}, effort=0.01, **only)
    >>> [row.wanted.id for row in table.rows]
    ['onnxruntime/float32']
    """
    start = time.perf_counter()
    number("max_error", max_error)
    unknown = [name for name in backends if name not in BACKENDS]
    if unknown:
        raise BadOption(f"no back end {unknown[0]}: choose among {', '.join(BACKENDS)}")
    memory_bytes = int(free_bytes() / 2 if memory_limit is None else positive("memory_limit", memory_limit))
    limits = WorkerLimits(positive("row_limit_s", row_limit_s), memory_bytes)
    budget_s, options = 30.0 * positive("effort", effort), SessionOptions(threads or available_cores())
    fixed = {name: tuple(sizes) for name, sizes in (shapes or {}).items()}
    with scratch() as temporary, held(folder := Path(out or temporary / "out"), create=True):
        model_path = _model(model, temporary)
        read = _reader(data, preprocess, model_path)
        work = _emptied(folder / _WORK)
        converted = convert.as_onnx(model_path, fixed, options.threads, convert.examples_of(data), limits)
        network, graph, samples = _opened(converted.path, fixed, read, seed)
        ranges = calibrate(network, samples.calibration, progress)
        source = OnnxSource(network, graph, samples, ranges, options)
        request = _request(source, converted.kind, model_path, work, budget_s, memory_bytes)
        request, distance = _with_reference(request, samples.held_out.source, limits)
        written = Written()
        if forms := _forms(backends, rows):
            written = variants.write(source, forms, work / _MODELS, progress, limit_bytes=memory_bytes)
        wanted = {backend: _wanted(backend, written, rows, max_error) for backend in backends}
        measured = RowBench(request, written, limits, _reference(source), progress).measure(wanted)
        table_rows = [row for backend_rows in wanted.values() for row in backend_rows]
        ended_rows = tuple(measured.rows.get(row.id, Row(row, "stopped", _STOPPED, None, None)) for row in table_rows)
        fastest = best(ended_rows, max_error)
        origin = [Conversion(converted.kind, "onnx", converted.tool, distance, str(converted.path))]
        comparison = Comparison(
            model=model_path.name,
            model_sha256=network.sha256,
            kind=converted.kind,
            machine=describe(),
            threads=options.threads,
            data=str(data) if _is_path(data) else "data in memory",
            calibration_samples=len(samples.calibration.samples),
            held_out_samples=len(samples.held_out.samples),
            max_error=max_error,
            silence_s=limits.timeout_s,
            memory_limit_bytes=memory_bytes,
            backends=tuple(backends),
            versions=measured.versions,
            conversions=(*(origin if converted.tool else ()), *measured.conversions),
            rows=ended_rows,
            recommended="" if fastest is None else fastest.wanted.id,
            stopped=measured.stopped,
            wall_s=time.perf_counter() - start,
        )
        artifact.save(folder / f"{COMPARISON}.json", COMPARISON, comparison.model_sha256, comparison)
    return comparison


def _reference(source: OnnxSource) -> Callable[[], float]:
    """Runs and times the float model in this process like a row, between the rounds of every back end."""
    session = open_session(source.model.proto, source.options, label="the reference")
    names, feed = list(source.model.outputs), dict(source.data.held_out.samples[0])
    return lambda: timed(lambda: session.run(names, feed))


def _model(model: Any, folder: Path) -> Path:
    if _is_path(model):
        return Path(model)
    if not isinstance(model, onnx.ModelProto):
        raise BadModel(f"`model` has the type {type(model).__name__}: give a path or an onnx.ModelProto")
    name = re.sub(r"[^\w.-]", "_", model.graph.name)[:100] or "model"
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


def _reader(data: Any, preprocess: str, model: Path) -> Reader:
    """Reads the samples of `data` for a model's inputs."""
    how = parse_preprocess(preprocess) if preprocess else None
    if _is_path(data):
        return partial(load, Path(data), preprocess=how, near=files_beside(model))
    if how is not None:
        raise BadOption("`preprocess` is for files of images or sounds, but `data` is in memory: leave it out")
    return partial(from_values, data)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _emptied(work: Path) -> Path:
    """The folder of the workers, without what an earlier comparison left there."""
    if work.is_symlink():  # never empty another folder
        work.unlink()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return work


def _opened(path: Path, shapes: Mapping[str, tuple[int, ...]], read: Reader, seed: int) -> tuple[Model, Graph, Split]:
    """The model, its blocks and its data, all of one shape, because most back ends compile for one shape. For open
    dimensions it is the most frequent shape in the data."""
    datasets: list[Dataset] = []

    def samples(inputs: tuple[InputSpec, ...]) -> list[Sample]:
        if not datasets:
            dataset = read(inputs)
            datasets.append(part(dataset, typical(dataset.samples)))
        return list(datasets[0].samples[:1])

    model = load_model(path, shapes, samples)
    if any(spec.dynamic for spec in model.inputs):
        model = load_model(path, shapes_of(datasets[0].samples[0]), samples)
    data = split(datasets[0], seed=seed, max_calibration=64, max_held_out=16)
    return model, build(model, observe(model, data.held_out.samples[0], data.held_out.source)), data


def _wanted(backend: str, written: Written, keys: Sequence[str], max_error: float) -> tuple[WantedRow, ...]:
    table_rows = table.rows_of(backend, written.files, written.refusals, max_error)
    return tuple(row for row in table_rows if not keys or row.baseline or row.id.partition("/")[2] in keys)


def _request(source: OnnxSource, kind: str, model: Path, work: Path, budget_s: float, memory_bytes: int) -> Request:
    work = work.resolve()
    checked = work / "float32.onnx"
    artifact.write_model(checked, source.model.proto)
    names = tuple(spec.name for spec in source.model.inputs)
    return Request(
        task="rows",
        folder=str(work),
        model=str(model.absolute()),
        kind=kind,
        onnx=str(checked),
        inputs=names,
        shapes=tuple(spec.sizes() for spec in source.model.inputs),
        outputs=source.model.outputs,
        calibration=_arrays(source.data.calibration, names),
        held_out=_arrays(source.data.held_out, names),
        parts=find_parts(source.model, source.data.held_out.samples),
        threads=source.options.threads,
        budget_s=budget_s,
        memory_bytes=memory_bytes // 2,  # at which a worker times its open rows
    )


def _with_reference(request: Request, data_source: str, limits: WorkerLimits) -> tuple[Request, float | None]:
    """The request with the original's outputs on the held-out inputs, and the distance of the ONNX form's outputs from
    them (None: the ONNX form is the original). Raises BadModel if the original cannot run the inputs."""
    if request.kind != "onnx":
        reference, distance = convert.beside_original(request, Path(request.onnx), limits)
        return replace(request, reference=reference), distance
    written = as_written(Path(request.model))  # its weights' files last as long as it
    session = open_exact(written.proto, request.model, request.threads)
    return replace(request, reference=convert.onnx_outputs(session, request, data_source)), None


def _arrays(dataset: Dataset, names: Sequence[str]) -> tuple[Arrays, ...]:
    return tuple(tuple(np.asarray(sample[name], order="C") for name in names) for sample in dataset.samples)


def _forms(backends: Sequence[str], rows: Sequence[str]) -> tuple[table.OnnxForm, ...]:
    """The ONNX forms that these rows run."""
    keys = {name.partition(" ")[0] for name in rows}
    forms = table.forms() if READS_ONNX & set(backends) else ()
    return tuple(form for form in forms if not keys or form.key in keys or form.key == table.FLOAT)
