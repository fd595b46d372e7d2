"""The protocol between taglio and its workers. Standard library only; see supervise.py and workers/.

A worker reads one JSON file, the `Request`, marks the row that it opens or runs (`workers/marker.py`), and writes one
JSON object per line. If it is silent for too long, or dies, the marked row is at fault:

    {"event": "versions", "versions": {...}}     once the back end is loaded
    {"event": "checked", "row": ID, ...}         the fields of `Checked`
    {"event": "refused", "row": ID, "status": …, "reason": …}
    {"event": "round", "first": …}               waits for a line on standard input while the reference runs
    {"event": "timed", "row": ID, ...}           the fields of `Latency`
    {"event": "layer", ...}                      the fields of `Layer`
    {"event": "failed", "status": …, "reason": …}  the back end as a whole cannot go on
    {"event": "written", ...}                    answer to a conversion
    {"event": "done"}
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from taglio.compare.row import Wanted

# Model formats and their names in errors.
KINDS = {
    "onnx": "ONNX",
    "keras": "Keras",
    "savedmodel": "a SavedModel",
    "tflite": "TFLite",
    "torch": "PyTorch",
    "huggingface": "a Hugging Face model",
}
Task = Literal["rows", "layers", "convert", "reference", "versions"]


@dataclass(frozen=True, slots=True)
class Request:
    """One job of one worker.

    `model` is the user's file, `kind` its format, `onnx` its checked ONNX form. `arrays` is an .npz of `calibration_I`
    and `held_out_I` (samples first, in the order of `inputs`), `reference_I` (the original's outputs on the held-out
    inputs, in the order of `outputs`), the parts of the outputs, and optionally `labels`. `folder` is the worker's own
    writable folder.
    `converted` is the model converted for this back end, if it needs that (a SavedModel for LiteRT). `blocks` is a JSON
    file of `Known` blocks for the task "layers". `shapes` are those of the inputs, `dtypes` their types if a conversion
    needs them.
    """

    task: Task
    folder: str
    backend: str = ""
    model: str = ""
    kind: str = ""
    onnx: str = ""
    inputs: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[str, ...] = ()
    arrays: str = ""
    blocks: str = ""
    converted: str = ""
    rows: tuple[Wanted, ...] = ()
    threads: int = 1
    budget_s: float = 0.0
    memory_bytes: int = 0
    seed: int = 0
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """A block of the ONNX form, for back ends that find its operators or tensors by name.

    `alone` is an ONNX file in which only this block is int8, if one was written.
    """

    name: str
    kind: str
    operators: tuple[str, ...]
    outputs: tuple[str, ...]
    flops: int
    float_bytes: int
    int8_bytes: int | None
    refusal: str
    alone: str = ""


def known_blocks(request: Request) -> tuple[Known, ...]:
    """The blocks described in the request's file."""
    values = json.loads(Path(request.blocks).read_text())
    return tuple(Known(**{**v, "operators": tuple(v["operators"]), "outputs": tuple(v["outputs"])}) for v in values)


def decode(value: dict[str, Any]) -> Request:
    """The request from its JSON form (`dataclasses.asdict`)."""
    rows = tuple(Wanted(**row) for row in value["rows"])
    shapes = tuple(tuple(shape) for shape in value["shapes"])
    lists = {name: tuple(value[name]) for name in ("inputs", "outputs", "dtypes")}
    return Request(**{**value, **lists, "rows": rows, "shapes": shapes})
