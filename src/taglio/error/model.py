"""The error model: a monotone link of a sum that a planner can use exactly. Measures nothing.

Each block in int8 adds its own noise (weights, inner tensors, output); each flow that a float block writes and an int8
block reads adds the noise of quantising it for that reader. How neighbours' noises add or cancel is included in both
(terms.py). So

    s = Σ_blocks own[block, precision] + Σ_(flow, reader) edge[flow, reader] · [written float, read int8]
    error of one output = exp(level) · s^(exponent / 2)          error = the largest over outputs

An exponent of 1 is plain addition of squares; large subsets need less, since later blocks mask earlier noise. The link
is monotone, so a limit on the error is one limit per output on s, which is linear in a planner's variables.

Errors are losses of a metric (loss.py). If the metric moves in steps, the error of an output is relative L2, and a
second monotone link, through `steps`, leads from the largest of them to the loss.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import exp, inf, log

import numpy as np

from taglio.error.loss import Metric
from taglio.error.tally import RUINED, PartLoss
from taglio.error.terms import Design, producers
from taglio.model.graph import Graph
from taglio.notes import Note
from taglio.quantize.precision import Assignment
from taglio.quantize.scheme import Scheme

_LARGEST_LOG = 700.0  # exp of more overflows a float


@dataclass(frozen=True, slots=True)
class BlockNoise:
    """Squared noise of a block in one precision."""

    block: str
    precision: str
    own: float


@dataclass(frozen=True, slots=True)
class EdgeNoise:
    """Squared noise of quantising a flow that its producer writes in float, for one reading block."""

    flow: str
    reader: str
    noise: float


@dataclass(frozen=True, slots=True)
class OutputModel:
    """The noise terms and the link of one model output."""

    output: str
    blocks: tuple[BlockNoise, ...]
    edges: tuple[EdgeNoise, ...]
    level: float
    exponent: float

    def noise(self, graph: Graph, assignment: Assignment) -> float:
        """The sum s of `assignment`."""
        noises = [term.own for term in self.blocks] + [term.noise for term in self.edges]
        return sum((noises[index] for index in self.terms(graph, assignment)), 0.0)

    def terms(
        self, graph: Graph, assignment: Assignment, wired: Collection[tuple[str, str]] = frozenset()
    ) -> np.ndarray:
        """The indices of the terms that `assignment` sums, blocks before edges. `wired` are the (flow, reader) whose
        float values travel as int8."""
        own = tuple((term.block, term.precision) for term in self.blocks)
        edge = tuple((term.flow, term.reader) for term in self.edges)
        return np.flatnonzero(Design(own, edge, producers(graph)).row(assignment, wired))

    def with_noise(self, noise: np.ndarray) -> "OutputModel":
        """The same with other noises, [terms]."""
        own, edge = noise[: len(self.blocks)].tolist(), noise[len(self.blocks) :].tolist()
        return replace(
            self,
            blocks=tuple(replace(term, own=value) for term, value in zip(self.blocks, own, strict=True)),
            edges=tuple(replace(term, noise=value) for term, value in zip(self.edges, edge, strict=True)),
        )

    def from_noise(self, noise: float) -> float:
        """The link: error of a sum s."""
        return exp(self.level + 0.5 * self.exponent * log(noise)) if noise > 0.0 else 0.0

    def noise_limit(self, error: float) -> float:
        """The largest s whose predicted error is `error`; 0 for an error of 0."""
        if error <= 0.0:
            return 0.0
        return exp(min(_LARGEST_LOG, (log(error) - self.level) * 2.0 / self.exponent))


@dataclass(frozen=True, slots=True)
class Alone:
    """The error measured with one block alone in `precision`; relative L2 if the metric moves in steps. On a large
    network, where n neighbours share an evaluation, the error of all of them divided by √n."""

    block: str
    precision: str
    error: float


@dataclass(frozen=True, slots=True)
class Subset:
    """One measured subset: its assignment, its error, and the error predicted by a fit without it."""

    assignment: dict[str, str]
    error: float
    predicted: float


@dataclass(frozen=True, slots=True)
class ErrorModel:
    """Predicts the error of any assignment.

    The measured error of nine of ten new subsets is at most predicted × exp(`upper_log`) + `upper_add`: the conformal
    quantile of cross-validated log ratios, or of differences if the metric moves in steps (combine.py).
    `samples` is the number of held-out inputs measured. Outputs whose error was never near the largest have no model.
    `steps` are knots (relative L2, loss), rising in both; empty for a smooth metric. `notes` are doubts about these
    figures. `parts` are the losses with all blocks in int8. `study` is equal for studies of the same errors, "" if that
    is unknown.
    """

    model_sha256: str
    data_sha256: str
    scheme: Scheme
    metric: Metric
    outputs: tuple[OutputModel, ...]
    upper_log: float
    samples: int
    evaluations: int
    alone: tuple[Alone, ...]
    subsets: tuple[Subset, ...]
    upper_add: float = 0.0
    steps: tuple[tuple[float, float], ...] = ()
    notes: tuple[Note, ...] = ()
    parts: tuple[PartLoss, ...] = ()
    study: str = ""

    def predict(self, graph: Graph, assignment: Assignment) -> float:
        """Predicted error of `assignment`; 0 if nothing is quantised."""
        noise = max((model.from_noise(model.noise(graph, assignment)) for model in self.outputs), default=0.0)
        return self.after_steps(noise)

    def scaled(self, factor: float) -> "ErrorModel":
        """The same model with every L2 noise multiplied by `factor`."""
        outputs = tuple(replace(model, level=model.level + log(factor)) for model in self.outputs)
        return replace(self, outputs=outputs)

    @property
    def largest(self) -> float:
        """The largest finite error that the study measured; infinite if it measured none."""
        errors = [single.error for single in self.alone] + [subset.error for subset in self.subsets]
        errors += [part.loss for part in self.parts]
        return max((error for error in errors if error < RUINED), default=inf)

    def after_steps(self, noise: float) -> float:
        """The error for an L2 `noise` of the outputs: the noise itself, or the loss by `steps`. None is larger than the
        largest that was measured, where outputs are all noise and a sum of squares overestimates."""
        if not self.steps or noise <= 0.0:
            return min(noise, self.largest)
        return float(np.interp(noise, *np.transpose(self.steps)))

    def upper(self, error: float) -> float:
        """The upper end of a predicted `error`."""
        return error * exp(self.upper_log) + self.upper_add

    def typical_miss(self) -> float:
        """Median prediction error of unseen subsets: relative to the measured error, or a loss if the metric moves in
        steps; 0 without subsets."""
        if self.metric.smooth:
            misses = [abs(subset.predicted / subset.error - 1.0) for subset in self.subsets if subset.error > 0.0]
        else:
            misses = [abs(subset.predicted - subset.error) for subset in self.subsets]
        return float(np.median(misses)) if misses else 0.0

    def noise_target(self, bound: float) -> float:
        """The largest L2 noise of any output whose upper end keeps the limit `bound`.

        If the metric moves in steps and no measured noise does, the largest whose predicted loss keeps it.
        """
        if not self.steps:
            return bound / exp(self.upper_log)
        noises = np.geomspace(self.steps[0][0] or 1e-9, self.steps[-1][0], 400)
        losses = np.array([self.after_steps(float(noise)) for noise in noises])
        for margin in (self.upper_add, 0.0):
            kept = noises[losses + margin <= bound]
            if len(kept):
                return float(kept[-1])
        return float(noises[0])
