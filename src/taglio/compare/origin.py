"""The user's model, whatever its format: as ONNX, and as the reference that every row is measured against.

ONNX is what the rest of taglio reads, so a Keras, TFLite or PyTorch model is converted once by its own framework's
tools, in that framework's environment; its own outputs on the held-out inputs stay the reference.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from taglio.compare import environments, supervise
from taglio.compare.request import EMPTY, Request
from taglio.compare.result import Conversion
from taglio.compare.supervise import Limits
from taglio.compare.variants import Source
from taglio.error.tally import Tally
from taglio.errors import BadModel
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session, run_session

_KINDS = {".onnx": "onnx", ".keras": "keras", ".h5": "keras", ".tflite": "tflite", ".pt2": "torch"}
_WORKERS = {"keras": "keras", "tflite": "keras", "torch": "pytorch"}


def kind(model: Path) -> str:
    """onnx, keras, tflite or torch. Raises BadModel for anything else."""
    if ":" in model.name and not model.exists():
        return "torch"
    found = _KINDS.get(model.suffix.lower())
    if found is None:
        raise BadModel(f"{model}: give an .onnx, .keras, .h5, .tflite or .pt2 file, or a PyTorch module:function")
    return found


def as_onnx(
    model: Path, out: Path, shapes: dict[str, tuple[int, ...]], threads: int, limits: Limits
) -> tuple[Path, tuple[Conversion, ...]]:
    """The ONNX form of `model`, and how it was made. Raises BadModel where the conversion fails."""
    form = kind(model)
    if form == "onnx":
        return model, ()
    if form != "torch" and not model.exists():
        raise BadModel(f"{model}: no such file: give the path of a model")
    backend = _WORKERS[form]
    place = environments.find(backend)
    if place.interpreter is None:
        raise BadModel(f"{model}: reading it needs the {place.name} environment: {place.reason}")
    folder = (out / "work" / "origin").resolve()
    request = replace(EMPTY, folder=str(folder), backend=backend, model=str(model), kind=form, threads=threads)
    request = replace(request, inputs=tuple(shapes), shapes=tuple(shapes.values()), model=_located(model, form))
    answer, reason = supervise.convert(place.interpreter, request, limits)
    if not answer:
        raise BadModel(f"{model}: cannot be converted to ONNX: {reason}")
    return Path(answer["path"]), (Conversion(form, "onnx", answer["tool"], None, answer["path"]),)


def converted_for(request: Request, limits: Limits) -> tuple[Conversion | None, str]:
    """What the back end of `request` needs made of the ONNX form before it starts, or why that failed."""
    if request.backend != "litert" or request.kind in ("keras", "tflite"):
        return None, ""
    place = environments.find("onnx2tf")
    if environments.find("litert").interpreter is None:  # its rows say so themselves
        return None, ""
    if place.interpreter is None:
        return None, f"an ONNX model needs onnx2tf to become TensorFlow's: {place.reason}"
    job = replace(request, task="convert", backend="onnx2tf", rows=(), folder=f"{request.folder}/onnx2tf")
    answer, reason = supervise.convert(place.interpreter, job, limits)
    if not answer:
        return None, f"onnx2tf could not convert the model: {reason}"
    return Conversion("onnx", "SavedModel", answer["tool"], None, answer["path"]), ""


def write_arrays(request: Request, source: Source, limits: Limits) -> float | None:
    """Write the inputs and the original's outputs; the distance of the ONNX form from them (None: it is the original).

    Raises BadModel where the original cannot run them.
    """
    data, names = source.data, request.inputs
    arrays: dict[str, np.ndarray] = {}
    for part, dataset in (("calibration", data.calibration), ("held_out", data.held_out)):
        for index, name in enumerate(names):
            arrays[f"{part}_{index}"] = np.stack([sample[name] for sample in dataset.samples])
    if data.held_out.labels is not None:
        arrays["labels"] = data.held_out.labels
    if request.kind == "onnx":
        path = Path(request.model)
        outputs = _onnx_outputs(path, source, Optimization.NONE)
        arrays |= {f"reference_{index}": column for index, column in enumerate(outputs)}
        np.savez(request.arrays, **arrays)  # type: ignore[arg-type]
        return None
    np.savez(request.arrays, **arrays)  # type: ignore[arg-type]
    place = environments.find(_WORKERS[request.kind])
    assert place.interpreter is not None
    job = replace(request, task="reference", backend=_WORKERS[request.kind], folder=f"{request.folder}/origin")
    answer, reason = supervise.convert(place.interpreter, job, limits)
    if not answer:
        raise BadModel(f"{request.model}: cannot run the data in its own framework: {reason}")
    converted = _onnx_outputs(Path(request.onnx), source, Optimization.BASIC)
    with np.load(answer["path"]) as own:
        reference = [own[f"reference_{index}"] for index in range(len(request.outputs))]
    meter = Tally(request.outputs)
    meter.add(reference, [np.reshape(c, r.shape) for c, r in zip(converted, reference, strict=True)])
    arrays |= {f"reference_{index}": column for index, column in enumerate(reference)}
    np.savez(request.arrays, **arrays)  # type: ignore[arg-type]
    return meter.value()


def _onnx_outputs(path: Path, source: Source, level: Optimization) -> list[np.ndarray]:
    options = SessionOptions(source.options.threads, level)
    session = open_session(path, options, label=str(path))
    names = source.model.outputs
    samples = [run_session(session, names, feed, source.data.held_out.source) for feed in source.data.held_out.samples]
    return [np.stack([sample[index] for sample in samples]) for index in range(len(names))]


def _located(model: Path, form: str) -> str:
    return str(model) if form == "torch" and not model.exists() else str(model.resolve())
