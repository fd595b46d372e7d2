"""Measure the output error of assignments on the switchable graph. Fits nothing."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from taglio.error.compared import as_array
from taglio.error.judge import TaskJudge
from taglio.error.loss import Metric
from taglio.error.parts import OutputParts
from taglio.error.switchable import Switchable
from taglio.error.tally import Measure, Outputs, Tally, finite
from taglio.errors import BadData
from taglio.memory import OUTPUTS, Shelf
from taglio.quantize.precision import Assignment, Forms, key_of


@dataclass(frozen=True, slots=True, eq=False)
class ErrorReading:
    """One evaluation: `l2` and `loss` by part."""

    l2: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What was measured of an assignment: the `error` to compare with the limit (Tally.judged), the `loss` by itself,
    whether or not a part is lost or a further limit broken, and relative L2 by part (empty: not measured). `wired` are
    the (flow, reader) whose float values travelled as int8."""

    assignment: Assignment
    error: float
    loss: float
    l2: Mapping[str, float]
    wired: frozenset[tuple[str, str]] = frozenset()


class ErrorMeter:
    """Losses against the float model on a fixed set of samples; the float outputs are computed once and kept.

    `references` are those outputs, [samples][outputs]; `evaluation_s` is about how long an evaluation takes: running
    every sample, and reading its outputs. `measured` is the evidence so far.
    """

    def __init__(
        self,
        switchable: Switchable,
        samples: Sequence[Mapping[str, np.ndarray]],
        parts: OutputParts,
        measure: Measure | None = None,
        limit: float = inf,
        *,
        memory_bytes: int | None = None,
    ) -> None:
        """`parts` are those of the outputs; `measure` is relative L2 if None, and `limit` the
        limit on its metric. `memory_bytes` is what this process may use (None: no limit); float outputs beyond their
        share of it are kept in a file. Raises BadData for an output of the float model that is all NaN or infinite."""
        start = time.perf_counter()
        self.measured = dict[Forms, Evidence]()
        self._switchable = switchable
        self._samples = samples
        self._parts = parts
        self._limit = limit
        self.names = self._parts.names
        room_bytes = None if memory_bytes is None else OUTPUTS * memory_bytes
        self.references = Shelf((switchable.run({}, sample) for sample in samples), room_bytes)
        for index, name in enumerate(self._parts.outputs):
            refuse_missing(name, (outputs[index] for outputs in self.references))
        self.measure = anchored(measure or Measure(Metric()), lambda: self.references)
        self.evaluation_s = time.perf_counter() - start

    @property
    def metric(self) -> Metric:
        """The metric, with the float model's own value on these samples."""
        return self.measure.metric

    @property
    def samples(self) -> int:
        """How many samples an error is measured on."""
        return len(self._samples)

    def error(self, assignment: Assignment) -> float:
        """The loss to compare with the limit, with `assignment` quantised (Tally.judged)."""
        return self.tally(assignment).judged(self._limit)

    def evidence(self, assignment: Assignment) -> Evidence:
        """All that is measured of `assignment`, once."""
        forms = key_of(assignment)
        if not forms:
            self.measured[forms] = Evidence({}, 0.0, 0.0, {})
        if forms not in self.measured:
            tally = self.tally(assignment)
            l2 = dict(zip(self.names, finite(tally.l2()).tolist(), strict=True))
            self.measured[forms] = Evidence(assignment, tally.judged(self._limit), float(finite(tally.value())), l2)
        return self.measured[forms]

    def tally(self, assignment: Assignment, *, watched: bool = True) -> Tally:
        """The tally of the outputs with `assignment` quantised."""
        tally = Tally(self._parts, self.measure, watched=watched)
        for sample, reference in zip(self._samples, self.references, strict=True):
            tally.add(reference, self._switchable.run(assignment, sample))
        return tally

    def read(self, assignment: Assignment) -> ErrorReading:
        """One evaluation for the study."""
        tally = self.tally(assignment, watched=False)
        return ErrorReading(tally.l2(), tally.losses())


def anchored(measure: Measure, references: Callable[[], Iterable[Outputs]], *, every: bool = False) -> Measure:
    """`measure` with the float model's own value in each metric. `references` gives the float model's outputs, sample
    by sample, for metrics that need them. Raises BadData for outputs and labels that a task cannot use and, if they are
    of `every` held-out input, for those with which any model would agree, or none."""
    judges = measure.judges
    if not any(judges):
        return measure
    evidence: list[list[Any]] = [[] for _ in judges]
    for index, outputs in enumerate(references()):
        for judge, kept in zip(judges, evidence, strict=True):
            if judge is not None:
                kept.append(judge.evidence(index, outputs, outputs))

    for judge, kept in zip(judges, evidence, strict=True):
        if every and isinstance(judge, TaskJudge):
            judge.refuse_useless(judge.value(kept))
    return measure.relative_to(evidence)


def refuse_missing(name: str, values: Iterable[np.ndarray]) -> None:
    """Raises BadData if the float model's output is all NaN for an input, or never finite."""
    floats = (array for array in map(as_array, values) if array.dtype.kind == "f" and array.size)
    seen = [(bool(np.isnan(array).all()), bool(np.isfinite(array).any())) for array in floats]
    if any(missing for missing, _ in seen) or (seen and not any(finite for _, finite in seen)):
        raise BadData(f"output {name} of the float model is NaN or infinite on the data: check preprocessing")
