"""What an optimisation ends with: float, all-int8 and the plan side by side. Values only."""

from dataclasses import dataclass

from taglio.error.loss import RELATIVE, Metric
from taglio.flow.choose_scheme import SchemeResult
from taglio.profile.result import Conditions
from taglio.profile.stopwatch import WallTime


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the model. Latencies in seconds, timed side by side; error on the held-out inputs.

    `accuracy` is top-1 on the held-out labels where the data has any.
    """

    name: str
    latency: WallTime
    predicted_latency_s: float
    error: float
    predicted_error: float
    size_bytes: int
    int8_blocks: int
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """A plan that was tried: where it lies between speed and error. `measured_s` is None where it was not timed."""

    name: str
    predicted_s: float
    measured_s: float | None
    error: float
    int8_blocks: int
    holds: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one optimisation. Errors are losses of `metric` (error/loss.py); `doubt` says by how much seconds
    may be off where the machine was busy."""

    model: str
    model_sha256: str
    conditions: Conditions
    scheme: str
    schemes: tuple[SchemeResult, ...]
    max_error: float
    status: str
    gap: float
    blocks: int
    candidates: int
    calibration_samples: int
    held_out_samples: int
    float32: Variant
    int8: Variant
    plan: Variant
    points: tuple[Point, ...]
    stage_seconds: dict[str, float]
    peak_memory_bytes: int
    plan_sha256: str = ""
    metric: Metric = RELATIVE
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class Quantized:
    """A model quantised without a plan."""

    path: str
    method: str
    blocks: int
    candidates: int
    size_bytes: int
    float_size_bytes: int
    error: float
    notes: tuple[str, ...] = ()
