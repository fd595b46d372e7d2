"""The outcome of an optimisation: float, all int8 and the plan side by side. Values only."""

from dataclasses import dataclass

from taglio.confirm.speedup import Speedup
from taglio.error.loss import RELATIVE, Bound, Metric
from taglio.error.tally import OtherLoss, PartLoss
from taglio.notes import Kind, Note
from taglio.profile.result import Conditions
from taglio.profile.wall_time import WallTime
from taglio.runtimes.onnxruntime import NAME
from taglio.search.front import Point, front
from taglio.search.ledger import Measurement
from taglio.search.unseen import Unseen
from taglio.ways.result import Rate


@dataclass(frozen=True, slots=True)
class Figures:
    """One form of the model. Latencies in seconds, timed side by side; error on the held-out inputs.

    `predicted_latency_s` is at the speed that the machine had then, judged by the float model; None outside the place
    of the stored profile.

    `accuracy` is the task's value on the held-out labels if the data has any, or top-1. `error` is that of the worst of
    `parts`. The error over other inputs like these stays below `error_upper` in 19 of 20 cases; `worst_input` is the
    largest error of a single input. Both are None where they are unknown. `others` are the other limited metrics.
    `int8_blocks` are those in any quantised form.
    """

    name: str
    latency: WallTime
    predicted_latency_s: float | None
    error: float
    predicted_error: float
    size_bytes: int
    int8_blocks: int
    accuracy: float | None
    parts: tuple[PartLoss, ...] = ()
    error_upper: float | None = None
    worst_input: float | None = None
    others: tuple[OtherLoss, ...] = ()
    runtime: str = NAME
    bfloat16_blocks: int = 0

    @property
    def lost(self) -> str:
        """The first part that lost information, and what was lost; "" if none did. No limit allows that."""
        return next((f"{part.name} {part.lost}" for part in self.parts if part.lost), "")

    def holds(self, max_error: float) -> bool:
        """Whether the error is within the limit."""
        return self.error <= max_error and not self.lost


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one optimisation. Errors are losses of `metric` (error/loss.py); `doubt` says by how much times may
    be off because the machine was busy, `notes` what else makes the figures less sure; those in `search_notes` hold for
    any plan for this model and data. Errors were predicted from `search_samples` held-out inputs, those on which the
    search measured; `reused_errors` of them were measured in an earlier run. `points` are all plans that were tried,
    from which `taglio build` takes one for another limit; they are predicted as `Figures` are. `input_errors` are the
    plan's errors on every held-out input, of which the last `unseen.inputs` took no part in the search; () for a metric
    that has none by input.
    `interrupted`: the user stopped the search, and this is the best that it had.
    `speedup` is that of the plan as delivered over the source model, by the race of taglio.confirm; None if it delivers
    the float model without a gain, or nothing could be raced. The float model that was planned is about `simplified`
    times as fast as the source (1: not measured). `rate` is the way that was chosen for a rate, None if the plan was
    chosen for its latency."""

    model: str
    model_sha256: str
    conditions: Conditions
    scheme: str
    max_error: float
    status: str
    gap: float
    blocks: int
    calibration_samples: int
    held_out_samples: int
    float32: Figures
    int8: Figures
    plan: Figures
    points: tuple[Point, ...]
    stage_seconds: dict[str, float]
    peak_memory_bytes: int
    plan_sha256: str = ""
    metric: Metric = RELATIVE
    doubt: str | None = None
    notes: tuple[Note, ...] = ()
    search_notes: tuple[Note, ...] = ()
    also: tuple[Bound, ...] = ()
    forms: tuple[Measurement, ...] = ()
    search_samples: int = 0
    speedup: Speedup | None = None
    unseen: Unseen | None = None
    interrupted: bool = False
    input_errors: tuple[float, ...] = ()
    rate: Rate | None = None
    reused_errors: int = 0
    simplified: float = 1.0

    @property
    def places(self) -> tuple[Point, ...]:
        """The timings in each place of this machine, the fastest first, and what is out there."""
        return tuple(point for point in self.points if point.latency is not None or point.reason)

    @property
    def front(self) -> tuple[Point, ...]:
        """The points that another limit would bring, faster than float in the runs that selected the plan and by the
        race; none of a plan that was chosen for a rate."""
        if self.rate is not None:
            return ()
        seconds = min(self.float_s, self.float32.latency.median_s), self.plan.latency.median_s
        return front(self.points, *seconds, self.plan.error, self.max_error, any_unit=self.metric.own)

    @property
    def float_s(self) -> float:
        """Float's seconds beside those of the runs that selected the plan: by the race, if there was one. So speed-ups
        that are not confirmed compare with the plan's: a faster model must not look slower than the plan."""
        race = self.speedup
        return self.float32.latency.median_s if race is None else race.ratio * self.plan.latency.median_s

    def accuracy_text(self, value: float) -> str:
        """An accuracy formatted for the user."""
        return self.metric.score_text(value) if self.metric.labelled else f"{value:.2%}"

    def __str__(self) -> str:
        """Float, all int8 and the plan with the latencies of the search, and the runtime where it differs from float's;
        the confirmed speed-up; the rate and how to run the plan for it; notes on the figures."""
        columns = ["", "latency", self.metric.title, "accuracy", "size", "int8 blocks"]
        rows = [columns] + [
            [
                figures.name if figures.runtime == self.float32.runtime else f"{figures.name} in {figures.runtime}",
                f"{figures.latency.median_s * 1e3:.3f} ms",
                self.metric.text(figures.error, 3),
                "" if figures.accuracy is None else f"{figures.accuracy:.2%}",
                f"{figures.size_bytes / 1e3:.1f} kB",
                str(figures.int8_blocks),
            ]
            for figures in (self.float32, self.int8, self.plan)
        ]
        widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
        lines = [
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            for row in rows
        ]
        table = ["  ".join(line).rstrip() for line in lines]
        confirmed = [] if self.speedup is None else [f"the plan is {self.speedup} as fast as float32"]
        rated = [] if self.rate is None else [f"run as {self.rate.way}: {self.rate}"]
        return "\n".join([*table, *confirmed, *rated, *(f"Note: {note}" for note in self.unsure())])

    def unsure(self) -> tuple[Note, ...]:
        """What makes the figures less sure: `doubt` and `notes`."""
        return (*([Note(Kind.BUSY_MACHINE, self.doubt)] if self.doubt else []), *self.notes)

    def ratio(self, variant: Figures) -> float | None:
        """Predicted over measured latency; None where the profile does not predict it."""
        predicted_s = variant.predicted_latency_s
        return None if predicted_s is None else predicted_s / variant.latency.median_s

    def predicted_ratio(self, variant: Figures) -> float | None:
        """How many times as fast as float a variant was predicted to be; None where the profile does not predict it."""
        predicted_s = variant.predicted_latency_s
        if predicted_s is None or predicted_s <= 0.0:
            return None
        return self.simplified * self.float32.latency.median_s / predicted_s


@dataclass(frozen=True, slots=True)
class Quantized:
    """A model quantised without a plan. `scheme` is that of static int8, or ""."""

    path: str
    method: str
    blocks: int
    candidates: int
    size_bytes: int
    float_size_bytes: int
    error: float
    notes: tuple[str, ...] = ()
    parts: tuple[PartLoss, ...] = ()
    scheme: str = ""
