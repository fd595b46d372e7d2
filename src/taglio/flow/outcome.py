"""The outcome of an optimisation: float, all-int8 and the plan side by side. Values only."""

from dataclasses import dataclass

from taglio.error.loss import RELATIVE, Bound, Metric
from taglio.error.model import Alone
from taglio.error.tally import OtherLoss, PartLoss
from taglio.flow.choose_forms import FormResult
from taglio.flow.choose_repairs import RepairResult
from taglio.flow.choose_scheme import SchemeResult
from taglio.flow.curve import Level
from taglio.profile.result import Conditions
from taglio.profile.wall_time import WallTime
from taglio.runtimes.onnxruntime import NAME


@dataclass(frozen=True, slots=True)
class Variant:
    """One form of the model. Latencies in seconds, timed side by side; error on the held-out inputs.

    `accuracy` is the task's value on the held-out labels if the data has any, or top-1. `error` is that of the worst of
    `parts`, `judged` the value compared with the limit (Tally.judged), and `interval` where the error lies for similar
    inputs in nine of ten cases. `others` are the other limited metrics.
    """

    name: str
    latency: WallTime
    predicted_latency_s: float
    error: float
    predicted_error: float
    size_bytes: int
    int8_blocks: int
    accuracy: float | None
    parts: tuple[PartLoss, ...] = ()
    interval: tuple[float, float] | None = None
    judged: float | None = None
    others: tuple[OtherLoss, ...] = ()
    runtime: str = NAME

    @property
    def lost(self) -> str:
        """The first part that lost information, and what was lost; "" if none did. No limit allows that."""
        return next((f"{each.name} {each.lost}" for each in self.parts if each.lost), "")

    def holds(self, max_error: float) -> bool:
        """Whether the error is within the limit."""
        return (self.error if self.judged is None else self.judged) <= max_error and not self.lost


@dataclass(frozen=True, slots=True)
class Point:
    """A plan that was tried, with its speed and error. `measured_s` is None if it was not timed."""

    name: str
    predicted_s: float
    measured_s: float | None
    error: float
    int8_blocks: int
    holds: bool


@dataclass(frozen=True, slots=True)
class InPlace:
    """A finalist in a place of this machine, or a place that is out. `error` is as deployed there if `judged`, else as
    expected by the search; `latency_s` is None if it was not timed. `reason` says why it is out."""

    name: str
    runtime: str
    latency_s: float | None
    error: float | None
    judged: bool
    holds: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one optimisation. Errors are losses of `metric` (error/loss.py); `doubt` says by how much times may
    be off because the machine was busy, `notes` what else makes the figures less sure. Errors were predicted from
    `search_samples` held-out inputs, those on which the search measured. `places` lists the timings in
    each place if taglio chose the runtime; `curve` is what larger limits are predicted to give, `costly` the blocks
    with the largest error alone in int8."""

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
    notes: tuple[str, ...] = ()
    also: tuple[Bound, ...] = ()
    repairs: tuple[RepairResult, ...] = ()
    forms: tuple[FormResult, ...] = ()
    places: tuple[InPlace, ...] = ()
    curve: tuple[Level, ...] = ()
    costly: tuple[Alone, ...] = ()
    search_samples: int = 0

    def accuracy_text(self, value: float) -> str:
        """An accuracy formatted for the user."""
        return self.metric.score_text(value) if self.metric.labelled else f"{value:.2%}"

    def __str__(self) -> str:
        """Float, all-int8 and the plan, with the runtime where it differs from float's, and notes on the figures."""
        columns = ["", "latency", self.metric.title, "accuracy", "size", "int8 blocks"]
        rows = [columns] + [
            [
                each.name if each.runtime == self.float32.runtime else f"{each.name} in {each.runtime}",
                f"{each.latency.median_s * 1e3:.3f} ms",
                self.metric.text(each.error, 3),
                "" if each.accuracy is None else f"{each.accuracy:.2%}",
                f"{each.size_bytes / 1e3:.1f} kB",
                str(each.int8_blocks),
            ]
            for each in (self.float32, self.int8, self.plan)
        ]
        widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
        lines = [
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            for row in rows
        ]
        return "\n".join(["  ".join(line).rstrip() for line in lines] + [f"Note: {each}" for each in self.unsure()])

    def unsure(self) -> tuple[str, ...]:
        """What makes the figures less sure: `doubt` and `notes`."""
        return (*([self.doubt] if self.doubt else []), *self.notes)

    def predicted(self, each: Variant) -> bool:
        """Whether the stored profile predicts this variant; times in other runtimes are no predictions."""
        return each.runtime == self.conditions.runtime


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
    parts: tuple[PartLoss, ...] = ()
