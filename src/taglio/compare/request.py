"""What a worker is told, and what it says while it works. Standard library only; see supervise.py and workers/.

A worker reads one JSON file, the `Request`, and writes one JSON object a line:

    {"event": "versions", "versions": {...}}     once the back end is loaded
    {"event": "start", "row": ID}                opening a row; silence after it counts against the row's limit
    {"event": "checked", "row": ID, ...}         the fields of `Checked`
    {"event": "refused", "row": ID, "status": …, "reason": …}
    {"event": "run", "row": ID}                  about to run a row for its time, first round
    {"event": "round", "first": …}               waits for a line on standard input: the reference has its turn
    {"event": "timed", "row": ID, ...}           the fields of `Latency`
    {"event": "layer", ...}                      the fields of `Layer`
    {"event": "support", ...}                    the fields of `Support`
    {"event": "failed", "status": …, "reason": …}  the back end as a whole cannot go on
    {"event": "written", ...}                    answer to a conversion
    {"event": "done"}
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from taglio.compare.row import Wanted

# The formats that models come in, and what errors call them.
KINDS = {
    "onnx": "ONNX",
    "keras": "Keras",
    "savedmodel": "a SavedModel",
    "tflite": "TFLite",
    "torch": "PyTorch",
    "huggingface": "Hugging Face's",
}
Task = Literal["rows", "layers", "support", "convert", "reference", "versions"]


@dataclass(frozen=True, slots=True)
class Request:
    """One job of one worker.

    `model` is the user's file, `kind` its format, `onnx` the checked ONNX form of it. `arrays` is an .npz of
    `calibration_I` and `held_out_I` (samples first, in the order of `inputs`), `reference_I` (the original's outputs on
    the held-out inputs, in the order of `outputs`) and perhaps `labels`. `folder` is the worker's own, to write in.
    `converted` is what a converter made of the model for this back end, where one is needed (a SavedModel for LiteRT).
    `blocks` is a JSON file of `Known` blocks for the task "layers".
    Rows in `known` were checked before: they are opened and timed only. `shapes` are those of the inputs, `dtypes`
    their types where a conversion needs them.
    """

    task: Task
    backend: str
    model: str
    kind: str
    onnx: str
    inputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[str, ...]
    arrays: str
    blocks: str
    converted: str
    folder: str
    rows: tuple[Wanted, ...]
    known: tuple[str, ...]
    threads: int
    budget_s: float
    minimum_rounds: int
    memory_bytes: int
    seed: int
    dtypes: tuple[str, ...] = ()


# To be replaced field by field, where a job needs few of them.
EMPTY = Request("convert", "", "", "", "", (), (), (), "", "", "", "", (), (), 1, 0.0, 1, 0, 0)


@dataclass(frozen=True, slots=True)
class Known:
    """A block of the ONNX form: what core knows of it, for back ends that find its operators or tensors again by name.

    `alone` is an ONNX file in which only this block is int8, where core wrote one.
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
    """The blocks that core described."""
    values = json.loads(Path(request.blocks).read_text())
    return tuple(Known(**{**v, "operators": tuple(v["operators"]), "outputs": tuple(v["outputs"])}) for v in values)


def decode(value: dict[str, Any]) -> Request:
    """The request that `dataclasses.asdict` turned into JSON."""
    rows = tuple(Wanted(**row) for row in value["rows"])
    shapes = tuple(tuple(shape) for shape in value["shapes"])
    lists = {name: tuple(value[name]) for name in ("inputs", "outputs", "known", "dtypes")}
    return Request(**{**value, **lists, "rows": rows, "shapes": shapes})
