"""The comparison as a library function, from values or paths. Measures nothing itself."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from taglio import artifact
from taglio.arguments import number, positive
from taglio.compare import environments
from taglio.compare.checkpoint import FILE
from taglio.compare.emit import emit as emitted
from taglio.compare.measure import Question
from taglio.compare.measure import compare as measure
from taglio.compare.result import COMPARISON, Comparison
from taglio.errors import BadData, BadModel, BadOption
from taglio.profile.machine import available_cores
from taglio.profile.stopwatch import Progress
from taglio.scratch import scratch
from taglio.transaction import held

BACKENDS = tuple(environments.BACKENDS)


def compare(
    model: Any,
    data: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    backends: Sequence[str] = BACKENDS,
    rows: Sequence[str] = (),
    emit: str = "",
    layers: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
    preprocess: str = "",
    max_error: float = 0.01,
    seed: int = 0,
    threads: int | None = None,
    effort: float = 1.0,
    row_limit_s: float = 300.0,
    progress: Progress | None = None,
) -> Comparison:
    """Every back end's ways to run and quantise one model, measured side by side in separate processes.

    `model` is a path (.onnx, .keras, .h5, .tflite, .pt2), "module:function", or an `onnx.ModelProto`; `data` a path or
    arrays by input name. Rows of back ends that are not installed say how to install them. With `out` everything is
    kept there, and after an interruption the same call continues. `rows` names the rows to measure; `emit`, such as
    "openvino/bfloat16", is the row whose model is copied to `out`, ready to run.

    >>> found = taglio.compare(model.source, {"image": images}, backends=["onnxruntime"], rows=["float32"], effort=0.01)
    >>> [row.wanted.id for row in found.rows]
    ['onnxruntime/float32']
    """
    number("max_error", max_error)
    with scratch() as folder:
        place = Path(out) if out is not None else folder / "out"
        question = Question(
            _model(model, folder),
            _data(data, folder),
            place,
            {name: tuple(sizes) for name, sizes in (shapes or {}).items()},
            preprocess,
            tuple(backends),
            layers,
            threads or available_cores(),
            seed,
            positive("effort", effort),
            max_error,
            positive("row_limit_s", row_limit_s),
            tuple(rows),
            emit,
        )
        if emit and out is None:
            raise BadOption(f'`emit` "{emit}" needs `out`, the directory to write to')
        with held(place, create=True):
            result = measure(question, progress)
            if not result.stopped:
                if emit:
                    result = replace(result, emitted=str(emitted(emit, result.rows, place)))
                artifact.save(place / f"{COMPARISON}.json", COMPARISON, result.model_sha256, result)
                (place / FILE).unlink(missing_ok=True)  # finished: the next such call measures anew
    return result


def _model(model: Any, folder: Path) -> Path:
    if isinstance(model, str | os.PathLike):
        return Path(model)
    if not isinstance(model, onnx.ModelProto):
        raise BadModel(f"the model is a {type(model).__name__}: give a path or an onnx.ModelProto")
    path = folder / f"{model.graph.name or 'model'}.onnx"
    onnx.save(model, path)
    return path


def _data(data: Any, folder: Path) -> Path:
    if isinstance(data, str | os.PathLike):
        return Path(data)
    if not isinstance(data, Mapping):
        raise BadData(f"`data` is a {type(data).__name__}: give a path, or arrays by input name")
    path = folder / "data.npz"
    np.savez(path, **{str(name): np.asarray(values) for name, values in data.items()})  # type: ignore[arg-type]
    return path
