"""Losses of changed outputs against the float model's, part by part, and their upper ends. Runs no model."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from taglio.error.compared import as_array, comparable, resized, unequal, union
from taglio.error.information import Watch
from taglio.error.judge import Judge, TaskJudge, fewest_samples, judge_of
from taglio.error.loss import COSINE, RELATIVE, Bound, Metric
from taglio.error.parts import OutputParts, whole
from taglio.error.upper_end import mean_end

Outputs = Sequence[np.ndarray]

# Replaces an error that is not finite: far beyond any limit, with a finite logarithm.
RUINED = 1e3


@dataclass(frozen=True, slots=True)
class PartLoss:
    """The loss of one part of the outputs (`RUINED` if not finite), and the information that it `lost`: words that
    follow its name, or ""."""

    name: str
    loss: float
    lost: str = ""


@dataclass(frozen=True, slots=True)
class OtherLoss:
    """A further metric with a limit, on the same outputs: its loss, and its value (for a task, against the labels if
    there are any)."""

    metric: Metric
    loss: float
    value: float


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric, its judge if sums are not enough, and further metrics with limits and their judges."""

    metric: Metric
    judge: Judge | None = None
    others: tuple[tuple[Bound, Judge | None], ...] = ()

    @property
    def judges(self) -> tuple[Judge | None, ...]:
        """The judge of the metric, and those of the further metrics."""
        return self.judge, *(judge for _, judge in self.others)

    def relative_to(self, evidence: Sequence[Sequence[Any]]) -> "Measure":
        """The same with the float model's own value in each metric, from the evidence of each of `judges`."""

        def with_value(metric: Metric, judge: Judge | None, kept: Sequence[Any]) -> Metric:
            labelled = isinstance(judge, TaskJudge) and judge.labelled
            if judge is None or not (labelled or metric.own):
                return metric
            return replace(metric, float_value=judge.value(kept), labelled=labelled)

        others = tuple(
            (replace(bound, metric=with_value(bound.metric, judge, kept)), judge)
            for (bound, judge), kept in zip(self.others, evidence[1:], strict=True)
        )
        return Measure(with_value(self.metric, self.judge, evidence[0]), self.judge, others)


class Tally:
    """Losses of one set of changed outputs against the reference, sample by sample.

    Only sums and a judge's evidence are kept per sample. Outputs that are not float (class indices, masks, text) count
    only if no output is float, by the share of values that change. `ragged` are the numbers of samples on which the
    length of an output changed, by output.
    """

    def __init__(
        self, parts: OutputParts | Sequence[str], metric: Metric | Measure | None = None, *, watched: bool = False
    ) -> None:
        """`parts` are those of the outputs, or the outputs' names, each then one part. `metric` is relative L2 if None.
        `watched` keeps the values that `lost` needs. Samples must be added in the order that the judges expect."""
        self._parts = parts if isinstance(parts, OutputParts) else whole(parts)
        metric = metric or RELATIVE
        measure = metric if isinstance(metric, Measure) else Measure(metric, judge_of(metric, self._parts.outputs))
        self._measure, self._metric, self._judge = measure, measure.metric, measure.judge
        count = len(self._parts.parts)
        # By sample, each [parts]: ‖ŷ − y‖², ‖y‖², y · (ŷ − y); if not float, the numbers of unequal and of all values.
        self._rows: list[np.ndarray] = []
        self._exact = np.zeros(count, bool)
        self._evidence: list[list[Any]] = [[] for _ in measure.judges]
        self._loss_per_part: np.ndarray | None = None
        self.ragged = Counter[str]()
        self._watches = [Watch() for _ in range(count)] if watched else []

    def add(self, reference: Outputs, changed: Outputs) -> None:
        """Add one sample."""
        parts, self._loss_per_part = self._parts, None
        row = np.zeros((3, len(parts.parts)))
        outputs = zip(parts.outputs, reference, changed, strict=True)
        pairs = [self._pair(index, y, z) for index, (_, y, z) in enumerate(outputs)]
        for index, part in enumerate(parts.parts):
            y, z = pairs[part.output]
            if y.dtype.kind != "f":
                self._exact[index] = True
                difference = unequal(y, z)
                row[:2, index] = difference.sum(), difference.size
            else:
                a, b = comparable(parts.take(index, y), parts.take(index, z))
                with np.errstate(all="ignore"):
                    difference = b - a
                    row[:, index] = np.dot(difference, difference), a @ a, a @ difference
                if self._watches:
                    self._watches[index].add(a, b)
        for kept, judge in zip(self._evidence, self._measure.judges, strict=True):
            if judge is not None:
                kept.append(judge.evidence(len(self._rows), reference, changed))
        self._rows.append(row)

    def _pair(self, output: int, reference: np.ndarray, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both as arrays; if lengths of float outputs differ, values that only one of them has count as changed from
        0."""
        y, z = as_array(reference), as_array(changed)
        if y.shape == z.shape:
            return y, z
        self.ragged[self._parts.outputs[output]] += 1
        if y.dtype.kind != "f":
            return y, z
        wide_y, wide_z, shape = union(y, z)
        if wide_y.ndim != y.ndim or not self._parts.fits(output, shape):
            return y, resized(z, y.shape) if z.ndim == y.ndim else resized(z.ravel(), (y.size,)).reshape(y.shape)
        return resized(wide_y, shape), resized(wide_z, shape)

    def _sums(self) -> np.ndarray:
        rows = np.array(self._rows).reshape(-1, 3, len(self._parts.parts))
        with np.errstate(all="ignore"):
            return np.asarray(rows.sum(axis=0))

    @property
    def counted(self) -> np.ndarray:
        """Which parts count, bool [parts]: the float ones, or all if no output is float."""
        return ~self._exact if not self._exact.all() else np.ones(len(self._exact), bool)

    def l2(self) -> np.ndarray:
        """Relative L2 per part, which the noise model is fitted to: 0 for parts that do not count, infinite if float is
        zero on all samples and the changed output is not."""
        sums = self._sums()
        errors = np.zeros(len(self._parts.parts))
        for index in np.flatnonzero(self.counted):
            difference, reference, _ = sums[:, index]
            if difference == 0.0:
                continue
            if not isfinite(difference):
                errors[index] = inf
            elif self._exact[index]:
                errors[index] = difference / reference
            else:
                errors[index] = sqrt(difference / reference) if reference > 0.0 else inf
        return errors

    def losses(self) -> np.ndarray:
        """Loss per part, of all samples together or of the worst; the same for each if the metric scores all outputs.
        A user's metric may take long, so it is computed once."""
        if self._loss_per_part is None:
            if self._metric.worst_input and self._rows:
                rows = range(len(self._rows))
                self._loss_per_part = np.max(finite(np.array([self._of_row(row).losses() for row in rows])), axis=0)
            else:
                self._loss_per_part = self._losses(self._metric, self._judge, self._evidence[0])
        return self._loss_per_part

    def _losses(self, metric: Metric, judge: Judge | None, evidence: Sequence[Any]) -> np.ndarray:
        if judge is not None:
            return np.full(len(self._parts.parts), metric.loss(judge.value(evidence)))
        l2 = self.l2()
        if metric.name == COSINE:
            sums = self._sums()
            angles = [_angle(of_part, l2_of_part) for of_part, l2_of_part in zip(sums.T, l2, strict=True)]
            return np.where(self._exact, l2, angles)
        return l2

    def value(self) -> float:
        """The largest loss over parts."""
        return float(self.losses().max())

    def score(self) -> float | None:
        """The value of a task scored against labels, which may be better than the float model's; None for other
        metrics."""
        return self._judge.value(self._evidence[0]) if self._judge is not None and self._metric.labelled else None

    def others(self) -> tuple[OtherLoss, ...]:
        """Losses of the further metrics that have limits."""
        losses = []
        for index, ((bound, judge), evidence) in enumerate(zip(self._measure.others, self._evidence[1:], strict=True)):
            loss = float(self._losses(bound.metric, judge, evidence).max())
            if bound.metric.worst_input:
                loss = max(self._of_row(row).others()[index].loss for row in range(len(self._rows)))
            value = bound.metric.value(loss) if judge is None else judge.value(evidence)
            losses.append(OtherLoss(bound.metric, loss, value))
        return tuple(losses)

    def judged(self, limit: float) -> float:
        """The number to compare with the metric's `limit`: its loss; if a further limit is broken by some factor, at
        least that factor times `limit`; infinite if a part lost its information."""
        value = self.value()
        if self.lost():
            return inf
        pairs = zip(self._measure.others, self.others(), strict=True)
        share = max((bound.share(other.loss) for (bound, _), other in pairs), default=0.0)
        if share <= 1.0:
            return value
        return max(value, share * limit if limit > 0.0 else inf)

    def parts(self) -> tuple[PartLoss, ...]:
        """The loss of each part that counts, and the information that it lost."""
        losses = finite(self.losses())
        return tuple(
            PartLoss(self._parts.names[index], float(losses[index]), self._lost(int(index)))
            for index in np.flatnonzero(self.counted)
        )

    def lost(self) -> str:
        """The name of the first part that lost its information, and how; "" if none did, or nothing was `watched`."""
        for index in np.flatnonzero(self.counted):
            if how := self._lost(int(index)):
                return f"{self._parts.names[index]} {how}"
        return ""

    def _lost(self, index: int) -> str:
        if self._exact[index] or not self._watches:
            return ""
        difference, reference, _ = self._sums()[:, index]
        if not isfinite(difference):
            return "is NaN or infinite"
        if reference == 0.0 and difference > 0.0:
            return "is not 0, as it is in float for every input"
        return self._watches[index].lost(ordered=self._parts.parts[index].output not in self._parts.ranked)

    def unchanged(self) -> dict[str, float]:
        """Share of unchanged values by output that is not float."""
        unequal_values, values, _ = self._sums()
        return {
            self._parts.names[index]: 1.0 - float(unequal_values[index] / max(1.0, values[index]))
            for index in np.flatnonzero(self._exact)
        }

    def only(self, rows: Sequence[int], measure: Measure | None = None) -> "Tally":
        """The tally of the samples at `rows` alone, under `measure` if losses are relative to what the float model has
        on them (`measure_on`). Information counts as lost if it is over all samples; further metrics that need more
        samples than these are left out."""
        measure = measure or self._measure
        pairs = zip(measure.others, self._evidence[1:], strict=True)
        usable = [(other, kept) for other, kept in pairs if fewest_samples(other[0].metric) <= len(rows)]
        tally = Tally(self._parts, replace(measure, others=tuple(other for other, _ in usable)))
        tally._rows = [self._rows[row] for row in rows]
        evidence = (self._evidence[0], *(kept for _, kept in usable))
        tally._evidence = [[kept[row] for row in rows] if kept else [] for kept in evidence]
        tally._exact, tally._watches = self._exact, self._watches
        return tally

    def measure_on(self, rows: Sequence[int]) -> Measure:
        """Of the float model's tally: the measure whose losses are relative to its own values on the samples at
        `rows`."""
        return self._measure.relative_to([[kept[row] for row in rows] if kept else [] for kept in self._evidence])

    def by_input(self) -> np.ndarray | None:
        """The largest loss over parts of every sample, shape [samples], `RUINED` if not finite; None for a metric that
        has no value by input."""
        if not self._metric.by_input:
            return None
        return finite(np.array([self._of_row(row).losses().max() for row in range(len(self._rows))]))

    def _of_row(self, row: int) -> "Tally":
        """The tally of one sample alone."""
        bounds = tuple((replace(bound, metric=_pooled(bound.metric)), judge) for bound, judge in self._measure.others)
        return self.only([row], Measure(_pooled(self._metric), self._judge, bounds))

    def end(self, groups: Sequence[int], probability: float) -> float | None:
        """The loss that other samples like these stay below with `probability`, that of the worst part
        (upper_end.py). `groups` [samples] are equal for samples that repeat each other, which count as one. None if
        fewer than two are distinct, if samples vary too much to tell, for a metric that is not smooth, or for a metric
        of the worst sample."""
        if self._judge is not None or self._metric.worst_input or not self._rows:
            return None
        distinct, member = np.unique(np.asarray(groups), return_inverse=True)
        squares, references, roots = self._by_part()
        ends = []
        for index in np.flatnonzero(self.counted):
            of_input = np.bincount(member, squares[:, index], len(distinct))
            weights = np.bincount(member, references[:, index], len(distinct))
            mean = mean_end(of_input, weights, probability)
            if mean is None:
                return None
            ends.append(sqrt(mean) if roots[index] else mean)
        return max(ends, default=None)

    def _by_part(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Squared losses and their weights, [samples, parts], and which parts' losses are roots, bool [parts]. The
        weighted mean is the squared loss of all samples where the loss is a root, else the loss itself."""
        rows = np.array(self._rows)
        squares, references = rows[:, 0].copy(), rows[:, 1]
        if self._metric.name == COSINE:
            for index in np.flatnonzero(~self._exact):
                angles = [_angle(row[:, index], isfinite(row[0, index])) for row in rows]
                squares[:, index] = np.square(angles) * references[:, index]
        return squares, references, ~self._exact


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Inputs with the float model's `answers`, against which other models are measured, part by part."""

    samples: Sequence[Mapping[str, np.ndarray]]
    answers: Sequence[Outputs]
    parts: OutputParts

    def loss(self, metric: Metric, run: Callable[[Mapping[str, np.ndarray]], Outputs]) -> float:
        """The largest loss over parts of what `run` answers to the inputs; `RUINED` if not finite."""
        tally = Tally(self.parts, metric)
        for sample, answer in zip(self.samples, self.answers, strict=True):
            tally.add(answer, run(sample))
        return float(finite(tally.value()))


def finite(errors: np.ndarray | float) -> np.ndarray:
    """Errors, with `RUINED` for those of outputs that became NaN or infinite, which no artifact can hold."""
    return np.asarray(np.nan_to_num(errors, nan=RUINED, posinf=RUINED, neginf=RUINED))


def _pooled(metric: Metric) -> Metric:
    return replace(metric, worst_input=False)


def _angle(sums: np.ndarray, l2: float) -> float:
    """√(2 · cosine distance) from the three sums of a part; computing 1 − cos directly would lose small angles."""
    if not isfinite(l2):
        return 2.0
    square, reference, along = sums.tolist()
    y = sqrt(reference)
    longer = 2.0 * along + square  # ‖ŷ‖² − ‖y‖²
    z = sqrt(max(0.0, y * y + longer))
    if y == 0.0 or z == 0.0:
        return 0.0 if square == 0.0 else sqrt(2.0)
    return sqrt(max(0.0, square - (longer / (y + z)) ** 2) / (y * z))
