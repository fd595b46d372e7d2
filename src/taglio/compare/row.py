"""The rows of a comparison, one per back end and method, before and after measuring. Standard library only, because
workers in environments without taglio's packages import it too."""

from dataclasses import dataclass
from typing import Literal

# How a row ended. Every status except "measured" has a reason.
Status = Literal[
    "measured",  # ran as described
    "impossible",  # the back end does not support it: known beforehand, or reported by the back end
    "failed",  # the back end raised an error
    "crashed",  # its process died from a signal
    "killed",  # its process was killed by something else
    "out of memory",
    "stuck",  # no output for longer than the timeout
    "missing",  # the back end is not installed, or in another version
    "stopped",  # the user stopped the comparison before this row
]


@dataclass(frozen=True, slots=True)
class WantedRow:
    """A row before it is measured.

    `method`: float32, float16, bfloat16, dynamic, static, mixed, … `format`: how the model holds int8 (qdq, tflite,
    pt2e). `types`: activation and weight types, such as u8s8. `engine`: what computes it. `per_channel`: whether
    int8 weights have a scale per channel. `file` is the ONNX file written for it, if any. `refusal` is the reason why
    an impossible row cannot exist. `max_error` is the limit of a row that is made to keep one.
    """

    id: str
    backend: str
    method: str
    format: str = ""
    types: str = ""
    per_channel: bool = True
    engine: str = ""
    file: str = ""
    refusal: str = ""
    max_error: float | None = None

    @property
    def baseline(self) -> bool:
        """Whether this is the float row that the back end's other rows are compared with."""
        return self.id == f"{self.backend}/float32"


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one inference. `baseline_s` is the median of the same back end's float row, run in the same rounds;
    `reference_s` that of ONNX Runtime's float model, which runs between the rounds of every back end."""

    median_s: float
    deviation_s: float
    p95_s: float
    runs: int
    baseline_s: float | None
    reference_s: float | None = None

    @property
    def speedup(self) -> float | None:
        """Float seconds divided by this row's, from the same rounds."""
        return None if self.baseline_s is None or self.median_s <= 0.0 else self.baseline_s / self.median_s

    @property
    def against_reference(self) -> float | None:
        """Seconds of ONNX Runtime's float model divided by this row's: comparable between back ends."""
        return None if self.reference_s is None or self.median_s <= 0.0 else self.reference_s / self.median_s


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Results of checking a row before it is timed.

    Errors are relative L2 distances over held-out inputs, the largest over parts of outputs: `error_to_float` from the
    float row of the same back end, `error_to_original` from the original model in its own framework. `operators` and
    `int8_operators` count by type what the back end really ran (by its profile or compiled graph, not by the file).
    `file` is the model that was opened, "" if the back end made this form in memory.
    """

    size_bytes: int
    error_to_float: float | None
    error_to_original: float | None
    operators: dict[str, int]
    int8_operators: dict[str, int]
    notes: tuple[str, ...] = ()
    file: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A finished row: `checked` and `latency` if it ran, `reason` if not."""

    wanted: WantedRow
    status: Status
    reason: str
    checked: RowCheck | None
    latency: Latency | None
