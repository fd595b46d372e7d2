"""The interface between a back end's worker module and the loop that drives it, and helpers of both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taglio.compare.request import Request
from taglio.compare.row import Status, WantedRow

Array = NDArray[Any]
Run = Callable[[Sequence[Array]], Sequence[Array]]


class Refused(Exception):
    """A row, or the whole back end, is not possible; the message says why."""

    def __init__(self, reason: str, status: Status = "impossible") -> None:
        super().__init__(reason)
        self.status: Status = status


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A row that is ready to run: `run` takes one array per input and returns one per output, in the back end's order.

    `operators` and `int8_operators` count what runs, by type. `file` is what was opened, "" if the form is in memory
    alone.
    """

    run: Run
    size_bytes: int
    operators: dict[str, int] = field(default_factory=dict)
    int8_operators: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    file: str = ""


def file_bytes(path: Path) -> int:
    """Bytes of an ONNX file, with the weights that `artifact.write_model` put beside it, or of an OpenVINO IR."""
    pattern = f"{path.stem}.*" if path.suffix == ".xml" else f"{path.name}*"
    return sum(file.stat().st_size for file in path.parent.glob(pattern))


class Backend(Protocol):
    """One back end, made by its module's `make` from a request: it converts, and may raise Refused."""

    def open(self, wanted: WantedRow) -> Opened:
        """Prepare a row. Raises Refused with the reason, or any error of the back end."""


def reference(request: Request, run: Run) -> list[list[Array]]:
    """A model's outputs on each held-out sample: the answer to the task "reference"."""
    return [[np.asarray(output) for output in run(sample)] for sample in request.held_out]


def one(values: Sequence[Any]) -> Any:
    """The only value, or all as a list: how Keras takes the inputs of a model."""
    return values[0] if len(values) == 1 else list(values)
