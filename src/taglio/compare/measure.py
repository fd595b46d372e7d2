"""Compare: read the model and data, write what back ends read, run each in its own process, collect the rows."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taglio.compare import environments, origin, supervise, table, variants
from taglio.compare.layers import onnxruntime_layers, write_blocks
from taglio.compare.recommend import recommend
from taglio.compare.request import Request
from taglio.compare.result import Comparison
from taglio.compare.row import Layer, Row, Support, Wanted
from taglio.compare.supervise import Limits
from taglio.compare.table_keras import keras_rows, qkeras_rows
from taglio.compare.table_litert import litert_rows
from taglio.compare.table_torch import torch_rows
from taglio.compare.variants import Source, Written
from taglio.data import load, parse_preprocess, split
from taglio.errors import BadOption
from taglio.graph import build
from taglio.model import load as load_model
from taglio.profile.machine import describe
from taglio.quantize.ranges import calibrate
from taglio.runtimes.onnxruntime import SessionOptions, version

Tell = Callable[[str, int, int], None]
READS_ONNX = frozenset({"onnxruntime", "openvino", "openvino-ep"})
MOST_CALIBRATION, MOST_HELD_OUT = 64, 16
_MINIMUM_ROUNDS = 3
# A worker times what is open when it holds this share of the memory that is free, and is stopped at the other.
_TIME_AT, _STOP_AT = 0.4, 0.85


@dataclass(frozen=True, slots=True)
class Question:
    """What to compare. `silence_s` is the time limit of a row; `effort` scales the time given to measuring.

    `rows` are the rows to measure, without their back end; empty for all. Float rows are always among them.
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


def compare(question: Question, tell: Tell | None = None) -> Comparison:
    """Measure every row. Raises BadModel, BadData or BadOption for a model or data that no back end could use."""
    start = time.perf_counter()
    unknown = [name for name in question.backends if name not in environments.BACKENDS]
    if unknown:
        raise BadOption(f"no back end {unknown[0]}: choose among {', '.join(environments.BACKENDS)}")
    question.out.mkdir(parents=True, exist_ok=True)
    if (question.out / "work").exists():  # of a comparison before: its files may be of another model
        shutil.rmtree(question.out / "work")
    limits = Limits(question.silence_s, int(_STOP_AT * _free_bytes()))
    onnx_path, conversions = origin.as_onnx(question.model, question.out, question.shapes, question.threads, limits)
    model = load_model(onnx_path, question.shapes)
    graph = build(model)
    preprocess = parse_preprocess(question.preprocess) if question.preprocess else None
    data = split(
        load(question.data, model.inputs, preprocess),
        seed=question.seed, max_calibration=MOST_CALIBRATION, max_held_out=MOST_HELD_OUT,
    )  # fmt: skip
    count = (lambda done, total: tell("calibrating", done, total)) if tell else None
    ranges = calibrate(model, data.calibration, "minmax", count)
    source = Source(model, graph, data, ranges, SessionOptions(question.threads))
    request = _request(question, source)
    if question.layers:
        alone = bool(READS_ONNX - {"onnxruntime"} & set(question.backends))
        write_blocks(source, Path(request.blocks), alone=alone)
    distance = origin.write_arrays(request, source, limits)
    conversions = tuple(replace(each, distance=distance) for each in conversions)
    written = _write(question, source, tell)
    rows: list[Row] = []
    layers: list[Layer] = []
    support: list[Support] = []
    versions: dict[str, dict[str, str]] = {"taglio": {"onnxruntime": version()}}
    absent: dict[str, str] = {}
    for backend in question.backends:
        wanted = tuple(
            each
            for each in _wanted(backend, written, question)
            if not question.rows or each.baseline or each.id.partition("/")[2] in question.rows
        )
        folder = question.out / "work" / backend
        job = replace(request, backend=backend, rows=wanted, folder=str(folder.resolve()))
        step, reason = origin.converted_for(job, limits)
        conversions += (step,) if step else ()
        job = replace(job, converted=step.path if step else "")
        if reason:
            rows += [Row(each, "failed", reason, None, None) for each in wanted]
            versions[backend] = {}
            continue
        found, versions[backend] = _rows(job, limits, tell)
        rows += _annotated(found, written)
        if question.layers:
            more, why = _layers(job, source, found, limits, tell)
            layers += more
            absent.update({backend: why} if why else {})
            support += _support(job, found, limits)
    return Comparison(
        question.model.name,
        model.sha256,
        origin.kind(question.model),
        describe(),
        question.threads,
        str(question.data),
        len(data.calibration.samples),
        len(data.held_out.samples),
        question.max_error,
        question.backends,
        versions,
        conversions,
        tuple(rows),
        tuple(layers),
        absent,
        tuple(support),
        recommend(rows, question.max_error),
        time.perf_counter() - start,
    )


def _request(question: Question, source: Source) -> Request:
    folder = question.out.resolve() / "work"
    checked = folder / "float32.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    checked.write_bytes(source.model.proto.SerializeToString())
    return Request(
        task="rows",
        backend="",
        model=str(question.model.resolve()) if question.model.exists() else str(question.model),
        kind=origin.kind(question.model),
        onnx=str(checked),
        inputs=tuple(spec.name for spec in source.model.inputs),
        shapes=tuple(spec.shape for spec in source.model.inputs),
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
        memory_bytes=int(_TIME_AT * _free_bytes()),
        seed=question.seed,
    )


def _write(question: Question, source: Source, tell: Tell | None) -> Written:
    if not READS_ONNX & set(question.backends):
        return Written()
    keys = {name.partition(" ")[0] for name in question.rows}
    forms = tuple(each for each in table.forms() if not keys or each.key in keys or each.key == table.FLOAT)
    return variants.write(source, forms, question.out / "work" / "models", tell)


def _wanted(backend: str, written: Written, question: Question) -> tuple[Wanted, ...]:
    match backend:
        case "onnxruntime":
            return table.onnxruntime_rows(written.files, written.refusals)
        case "openvino":
            return table.openvino_rows(written.files, written.refusals)
        case "openvino-ep":
            return table.openvino_provider_rows(written.files, written.refusals)
        case "litert":
            return litert_rows(question.threads)
        case "pytorch":
            return torch_rows()
        case "keras":
            return keras_rows()
        case "qkeras":
            return qkeras_rows()
        case other:
            raise BadOption(f"no rows for {other}")


def _rows(job: Request, limits: Limits, tell: Tell | None) -> tuple[list[Row], dict[str, str]]:
    """Rows in the table's order; those with a refusal never reach the worker."""
    refused = {each.id: Row(each, "impossible", each.refusal, None, None) for each in job.rows if each.refusal}
    asked = tuple(each for each in job.rows if not each.refusal)
    place = environments.find(job.backend)
    if place.interpreter is None:
        return [refused.get(each.id, Row(each, place.status, place.reason, None, None)) for each in job.rows], {}
    measured, versions = supervise.measure_rows(place.interpreter, replace(job, rows=asked), limits, tell)
    by_id = {row.wanted.id: row for row in measured} | refused
    return [by_id[each.id] for each in job.rows], versions


def _support(job: Request, rows: Sequence[Row], limits: Limits) -> tuple[Support, ...]:
    if job.backend != "pytorch" or not any(row.status == "measured" for row in rows):
        return ()
    place = environments.find(job.backend)
    assert place.interpreter is not None
    return supervise.try_operators(place.interpreter, replace(job, task="support"), limits)


def _annotated(rows: Sequence[Row], written: Written) -> list[Row]:
    """Rows with what their ONNX form had to leave out."""
    notes = {written.files[key]: note for key, note in written.notes.items()}
    return [
        replace(row, checked=replace(row.checked, notes=(*row.checked.notes, notes[row.wanted.file])))
        if row.checked is not None and row.wanted.file in notes
        else row
        for row in rows
    ]


def _layers(
    job: Request, source: Source, rows: Sequence[Row], limits: Limits, tell: Tell | None
) -> tuple[tuple[Layer, ...], str]:
    if not any(row.status == "measured" for row in rows):
        return (), "none of its rows could be measured"
    if job.backend == "onnxruntime":
        return onnxruntime_layers(source, tell), ""
    place = environments.find(job.backend)
    assert place.interpreter is not None
    if tell:
        tell(f"layers of {job.backend}", 0, 1)
    found = supervise.measure_layers(place.interpreter, replace(job, task="layers"), limits)
    if tell:
        tell(f"layers of {job.backend}", 1, 1)
    return found


def _free_bytes() -> int:
    """Memory that this machine could give just now."""
    path = Path("/proc/meminfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
