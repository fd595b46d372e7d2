"""Convert a model of another framework to ONNX with that framework's tools, and compare it with the original.

Taglio reads ONNX. Conversions are cached in the user's cache folder by a hash of their inputs, so that later stages do
not convert again; those used longest ago make room for new ones.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime import InferenceSession

from taglio import artifact, weights
from taglio.compare import environments, supervise
from taglio.compare.request import KINDS, Arrays, Request
from taglio.compare.supervise import WorkerLimits
from taglio.data.arrays import read_columns
from taglio.data.dataset import LABEL_KEYS, Sample
from taglio.error.tally import Tally
from taglio.errors import BadEnvironment, BadModel
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session, run_session
from taglio.scratch import scratch

_SUFFIXES = {".onnx": "onnx", ".keras": "keras", ".h5": "keras", ".tflite": "tflite", ".pt2": "torch"}
WORKERS = {
    "keras": "keras", "savedmodel": "keras", "tflite": "keras", "torch": "pytorch", "huggingface": "huggingface",
}  # fmt: skip
# Largest relative change of outputs by a conversion. Quantised models may round differently in places.
MOST_DISTANCE = 0.01
CACHE_BYTES = 5 * 10**9
_LIMITS = WorkerLimits(600.0, sys.maxsize)
Example = tuple[tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class Converted:
    """The ONNX form of a model: its file, the original's format (`kind`), and the converter (`tool`, "" for none)."""

    path: Path
    kind: str
    tool: str


def kind(model: Path) -> str:
    """A model's format, one of KINDS; "" if taglio neither reads nor converts it."""
    if not model.exists() and ":" in model.name:
        return "torch"
    if model.is_dir():
        files = {"savedmodel": "saved_model.pb", "huggingface": "config.json"}
        return next((kind for kind, file in files.items() if (model / file).is_file()), "")
    return _SUFFIXES.get(model.suffix.lower(), "")


def foreign(model: Path) -> bool:
    """Whether taglio must convert a model before reading it."""
    return kind(model) not in ("", "onnx")


def examples_of(data: Any) -> dict[str, Example]:
    """Shape and type of one sample per array in an .npz, an .npy or in memory; empty for other data."""
    if isinstance(data, (str, os.PathLike)):
        path = Path(data)
        if path.suffix.lower() not in (".npz", ".npy") or not path.is_file():
            return {}
        columns: Mapping[str, Any] = read_columns(path)
    elif isinstance(data, Mapping):
        columns = {str(name): np.asarray(array) for name, array in data.items()}
    else:
        columns = {"": data} if isinstance(data, np.ndarray) else {}
    inputs = {name: column for name, column in columns.items() if name not in LABEL_KEYS and column.shape}
    return {name: ((1, *column.shape[1:]), str(column.dtype)) for name, column in inputs.items()}


def as_onnx(
    model: Path,
    shapes: Mapping[str, tuple[int, ...]],
    threads: int,
    examples: Mapping[str, Example] | None = None,
    limits: WorkerLimits = _LIMITS,
) -> Converted:
    """The ONNX form of `model`, converted unless cached. `shapes` fix input shapes, `examples` are shape and type of
    each input for modules that do not declare them.

    Raises BadModel for other formats and if the conversion fails, BadEnvironment with the command that builds a missing
    environment.
    """
    form = kind(model)
    if form == "onnx":
        return Converted(model, form, "")
    if not form:
        raise BadModel(
            f"{model}: give an .onnx, .keras, .h5, .tflite or .pt2 file, the directory of a SavedModel or "
            "of a Hugging Face model, or a PyTorch module:function"
        )
    if form != "torch" and not model.exists():
        raise BadModel(f"{model}: no such file: give the path of a model")
    place = environments.find(WORKERS[form])
    if place.interpreter is None:
        raise BadEnvironment(f"{model}: reading {KINDS[form]} needs the {place.name} environment: {place.reason}")
    input_shapes, examples = dict(shapes), examples or {}
    if form == "torch" and not input_shapes:
        input_shapes = {name: shape for name, (shape, _) in examples.items()}
    dtypes = tuple(examples.get(name, ((), "float32"))[1] for name in input_shapes)
    stem = model.name.rpartition(":")[2] if form == "torch" and not model.exists() else model.stem or "model"
    # A module may depend on any file, so a cached conversion of it could be stale.
    keeps = form != "torch" or model.is_file()
    folder = cache()
    cached = folder / _digest(model, form, input_shapes, place.versions) / f"{stem}.onnx" if keeps else None
    if cached is not None and (record := _read(cached.with_suffix(".json"))).get("tool") and cached.is_file():
        cached.parent.touch()  # used now, for `_prune`
        return Converted(cached, form, str(record["tool"]))
    with scratch() as work:
        request = Request("convert", str(work), WORKERS[form], str(model.absolute()), form, threads=threads)
        request = replace(request, inputs=tuple(input_shapes), shapes=tuple(input_shapes.values()), dtypes=dtypes)
        answer, reason = supervise.answer(place.interpreter, request, limits)
        if answer is None:
            raise BadModel(f"{model}: cannot be converted to ONNX: {reason}")
        onnx_path = Path(answer["path"])
        if cached is None:
            cached = folder / weights.sha256(onnx_path)[:32] / f"{stem}.onnx"
        with artifact.replacing(cached) as temporary:
            shutil.copyfile(onnx_path, temporary)
    artifact.write_bytes(cached.with_suffix(".json"), json.dumps({"tool": answer["tool"]}).encode())
    _prune(folder, cached.parent)
    return Converted(cached, form, answer["tool"])


def cache() -> Path:
    """The folder of all conversions, each in a subfolder."""
    return environments.cache("converted")


def _prune(folder: Path, newest: Path) -> None:
    """Remove the conversions used longest ago that exceed CACHE_BYTES together with later ones, but not `newest`."""
    total = 0
    with suppress(OSError):  # another process removes as well
        for path in sorted(folder.iterdir(), key=lambda path: (path == newest, path.stat().st_mtime), reverse=True):
            total += environments.bytes_below(path)
            if total > CACHE_BYTES and path != newest:
                shutil.rmtree(path)


def distance(
    model: Path, converted: Converted, outputs: Sequence[str], samples: Sequence[Sample], data_sha256: str, threads: int
) -> float:
    """Relative L2 distance between the outputs of the ONNX form and the original, for the worst output, on some of
    `samples` (all of one shape). Raises BadModel if it exceeds MOST_DISTANCE, or if the original cannot run them."""
    record = converted.path.with_suffix(".json")
    distances = _read(record)
    if data_sha256 not in distances:
        samples = samples[:8]
        with scratch() as work:
            request = Request("reference", str(work), WORKERS[converted.kind], str(model.absolute()), converted.kind)
            inputs, held_out = tuple(samples[0]), tuple(tuple(sample.values()) for sample in samples)
            request = replace(request, inputs=inputs, outputs=tuple(outputs), held_out=held_out, threads=threads)
            distances[data_sha256] = beside_original(request, converted.path, _LIMITS)[1]
        artifact.write_bytes(record, json.dumps(distances).encode())
    value = float(distances[data_sha256])
    if not value <= MOST_DISTANCE:
        raise BadModel(
            f"{model}: its ONNX form, made by {converted.tool}, differs from it by {value:.2%} on the data (limit "
            f"{MOST_DISTANCE:.0%}): convert it with another tool and give the .onnx"
        )
    return value


def beside_original(request: Request, onnx_path: Path, limits: WorkerLimits) -> tuple[tuple[Arrays, ...], float]:
    """Outputs of the request's model in its own framework on the held-out inputs, by sample; and the relative L2
    distance of the ONNX form's outputs from them, for the worst output. Raises BadModel if either cannot run them."""
    backend = WORKERS[request.kind]
    place = environments.find(backend)
    if place.interpreter is None:
        raise BadEnvironment(f"{request.model}: running it needs the {place.name} environment: {place.reason}")
    job = replace(request, task="reference", backend=backend, folder=f"{request.folder}/origin")
    answer, reason = supervise.answer(place.interpreter, job, limits)
    if answer is None:
        raise BadModel(f"{request.model}: cannot run the data in its own framework: {reason}")
    session = open_session(onnx_path, SessionOptions(request.threads, Optimization.BASIC), label=str(onnx_path))
    meter = Tally(request.outputs)
    for original, converted in zip(answer, onnx_outputs(session, request, request.model), strict=True):
        meter.add(original, [np.reshape(array, like.shape) for array, like in zip(converted, original, strict=True)])
    return tuple(map(tuple, answer)), meter.value()


def onnx_outputs(session: InferenceSession, request: Request, label: str) -> tuple[Arrays, ...]:
    """Outputs of an ONNX model on the held-out inputs, by sample; `label` names them in errors."""
    feeds = [dict(zip(request.inputs, sample, strict=True)) for sample in request.held_out]
    return tuple(tuple(run_session(session, request.outputs, feed, label)) for feed in feeds)


def _digest(model: Path, form: str, shapes: Mapping[str, tuple[int, ...]], versions: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps([form, sorted(shapes.items()), sorted(versions.items())]).encode())
    for path in [model] if model.is_file() else sorted(file for file in model.rglob("*") if file.is_file()):
        digest.update(f"{path.relative_to(model)} {path.stat().st_size}\n".encode())
        digest.update(bytes.fromhex(weights.sha256(path)))
    return digest.hexdigest()[:32]


def _read(path: Path) -> dict[str, str | float]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
