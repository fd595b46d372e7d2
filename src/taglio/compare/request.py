"""The protocol between taglio and its workers; see supervise.py and workers/.

A worker receives a `Request` through a connection, and sends events as tuples:

    "at", ROW                          it opens or runs this row: if it now falls silent or dies, the row is at fault
    "checked", ROW, RowCheck
    "refused", ROW, status, reason
    "round", first                     it waits for a message while the reference runs
    "timed", ROW, Latency
    "answer", value                    the result of a conversion, or the outputs for each sample
    "failed", status, reason           the back end as a whole cannot go on
    "done",
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from taglio.compare.row import WantedRow
from taglio.error.parts import OutputParts

# Model formats and their names in errors.
KINDS = {
    "onnx": "ONNX",
    "keras": "Keras",
    "savedmodel": "a SavedModel",
    "tflite": "TFLite",
    "torch": "PyTorch",
    "huggingface": "a Hugging Face model",
}
Task = Literal["rows", "convert", "reference"]
Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One job of one worker.

    `model` is the user's file, `kind` its format, `onnx` its checked ONNX form. `calibration` and `held_out` are
    samples, each with an array per input; `reference` has the original's outputs on each held-out sample, whose `parts`
    (None: outputs) are measured separately. `folder` is the worker's own writable folder. `converted` is the model
    converted for this back end, if it needs that (a SavedModel for LiteRT). `shapes` are those of the inputs,
    `dtypes` their types if a conversion needs them.
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
    calibration: tuple[Arrays, ...] = ()
    held_out: tuple[Arrays, ...] = ()
    reference: tuple[Arrays, ...] = ()
    parts: OutputParts | None = None
    converted: str = ""
    rows: tuple[WantedRow, ...] = ()
    threads: int = 1
    budget_s: float = 0.0
    memory_bytes: int = 0
    dtypes: tuple[str, ...] = ()
