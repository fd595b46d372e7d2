"""The user's model in any format: its ONNX form, and its outputs as the reference for every row.

The reference of a converted model (convert.py) is the original's output on the held-out inputs.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from taglio.compare import convert, environments, supervise
from taglio.compare.convert import examples_of
from taglio.compare.request import Request
from taglio.compare.result import Conversion
from taglio.compare.supervise import Limits
from taglio.compare.variants import Source
from taglio.errors import BadModel
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session, run_session


def kind(model: Path) -> str:
    """The model's format, one of KINDS. Raises BadModel for any other."""
    found = convert.kind(model)
    if not found:
        raise BadModel(
            f"{model}: give an .onnx, .keras, .h5, .tflite or .pt2 file, a SavedModel folder, a Hugging Face model "
            "folder, or a PyTorch module:function"
        )
    return found


def as_onnx(
    model: Path, data: Path, shapes: dict[str, tuple[int, ...]], threads: int, limits: Limits
) -> tuple[Path, tuple[Conversion, ...]]:
    """The ONNX form of `model`, and how it was made. Raises BadModel or BadEnvironment if it cannot be made."""
    form = kind(model)
    if form == "onnx":
        return model, ()
    made = convert.as_onnx(model, shapes, threads, examples_of(data), limits)
    return made.path, (Conversion(form, "onnx", made.tool, None, str(made.path)),)


def converted_for(request: Request, limits: Limits) -> tuple[Conversion | None, str]:
    """The conversion of the ONNX form that the back end of `request` needs, if any, or why it failed."""
    if request.backend != "litert" or request.kind in ("keras", "tflite"):
        return None, ""
    place = environments.find("onnx2tf")
    if environments.find("litert").interpreter is None:  # its rows report this
        return None, ""
    if place.interpreter is None:
        return None, f"an ONNX model needs onnx2tf to become TensorFlow's: {place.reason}"
    job = replace(request, task="convert", backend="onnx2tf", rows=(), folder=f"{request.folder}/onnx2tf")
    answer, reason = supervise.convert(place.interpreter, job, limits)
    if not answer:
        return None, f"onnx2tf could not convert the model: {reason}"
    return Conversion("onnx", "SavedModel", answer["tool"], None, answer["path"]), ""


def write_arrays(request: Request, source: Source, limits: Limits) -> float | None:
    """Write the inputs and the original's outputs; returns the distance of the ONNX form's outputs from them (None: the
    ONNX form is the original).

    Raises BadModel if the original cannot run the inputs.
    """
    data = source.data
    arrays: dict[str, np.ndarray] = {} if data.held_out.labels is None else {"labels": data.held_out.labels}
    for part, dataset in (("calibration", data.calibration), ("held_out", data.held_out)):
        for index, name in enumerate(request.inputs):
            arrays[f"{part}_{index}"] = np.stack([sample[name] for sample in dataset.samples])
    distance = None
    if request.kind == "onnx":
        reference = _onnx_outputs(Path(request.model), source, Optimization.NONE)
    else:
        np.savez(request.arrays, **arrays)  # type: ignore[arg-type]
        reference = convert.original_outputs(request, limits)
        converted = _onnx_outputs(Path(request.onnx), source, Optimization.BASIC)
        distance = convert.distance_of(request.outputs, reference, converted)
    arrays |= {f"reference_{index}": column for index, column in enumerate(reference)}
    np.savez(request.arrays, **arrays)  # type: ignore[arg-type]
    return distance


def _onnx_outputs(path: Path, source: Source, level: Optimization) -> list[np.ndarray]:
    options = SessionOptions(source.options.threads, level)
    session = open_session(path, options, label=str(path))
    names = source.model.outputs
    samples = [run_session(session, names, feed, source.data.held_out.source) for feed in source.data.held_out.samples]
    return [np.stack([sample[index] for sample in samples]) for index in range(len(names))]
