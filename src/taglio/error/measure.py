"""Measure the output error of assignments on the switchable graph. Fits nothing."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taglio.error.loss import Metric, Outputs, Tally, call_user
from taglio.error.sketch import Sketcher
from taglio.error.switchable import Switchable
from taglio.errors import BadData
from taglio.quantize.precision import Assignment


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One evaluation: `l2` and `loss` by output, and the sketch [outputs, size] of the differences in units of `l2`;
    size is 0 where none was asked for."""

    l2: np.ndarray
    loss: np.ndarray
    sketch: np.ndarray


class ErrorMeter:
    """Losses against the float model on a fixed set of samples; the float outputs are computed once and kept."""

    def __init__(
        self,
        switchable: Switchable,
        samples: Sequence[Mapping[str, np.ndarray]],
        names: Sequence[str],
        metric: Metric | None = None,
        labels: np.ndarray | None = None,
    ) -> None:
        """`labels` [samples, ...] are for a user's metric. Raises BadData for float outputs NaN or infinite."""
        self._switchable = switchable
        self._samples = tuple(samples)
        self._labels = labels[: len(self._samples)] if labels is not None else None
        self.names = tuple(names)
        self._reference = [*switchable.run_all({}, self._samples)]
        for outputs in self._reference:
            for name, value in zip(self.names, outputs, strict=True):
                if not np.isfinite(np.asarray(value, np.float64)).all():
                    raise BadData(
                        f"output {name} of the float model is NaN or infinite on the data: check preprocessing"
                    )
        self.metric = self._anchored(metric or Metric())
        self._sketcher = Sketcher([[np.asarray(each).size for each in outputs] for outputs in self._reference])

    @property
    def samples(self) -> int:
        """How many samples an error is measured on."""
        return len(self._samples)

    @property
    def references(self) -> Sequence[Sequence[np.ndarray]]:
        """The float model's outputs [samples][outputs]."""
        return self._reference

    @property
    def wires(self) -> frozenset[str]:
        """The tensors that can be quantised for the wire alone."""
        return frozenset(wire.tensor for wire in self._switchable.wires)

    def error(self, assignment: Assignment) -> float:
        """Loss of the model with `assignment` quantised, the largest over outputs."""
        return self._tally(self._switchable.run_all(assignment, self._samples), sketch=False)[0].value(self._labels)

    def read(self, assignment: Assignment, wires: Collection[str] = (), *, sketch: bool = True) -> Reading:
        """Everything that the study keeps of one evaluation; `wires` travel as int8 besides."""
        tally, sums = self._tally(self._switchable.run_all(assignment, self._samples, wires), sketch=sketch)
        l2 = tally.l2()
        raw = np.sqrt(tally.squares())
        scale = np.divide(l2, raw, out=np.zeros_like(l2), where=(raw > 0.0) & np.isfinite(l2))
        finite = np.isfinite(sums).all(axis=1) & np.isfinite(l2)
        return Reading(l2, tally.losses(self._labels), np.where(finite[:, None], sums, 0.0) * scale[:, None])

    def sample_errors(self, assignment: Assignment) -> np.ndarray:
        """‖ŷ − y‖² and ‖y‖² by sample and output, shape [2, samples, outputs]."""
        rows = []
        changed = self._switchable.run_all(assignment, self._samples)
        for outputs, reference in zip(changed, self._reference, strict=True):
            tally = Tally(self.names)
            tally.add(reference, outputs)
            rows.append((tally.squares(), tally.references()))
        return np.array(rows).transpose(1, 0, 2)

    def _tally(self, changed: Iterable[Outputs], *, sketch: bool) -> tuple[Tally, np.ndarray]:
        tally = Tally(self.names, self.metric)
        sums = np.zeros((len(self.names), self._sketcher.size if sketch else 0))
        for index, (outputs, reference) in enumerate(zip(changed, self._reference, strict=True)):
            differences = tally.add(reference, outputs)
            if sketch:
                self._sketcher.add(sums, index, differences)
        return tally, sums.astype(np.float32)

    def _anchored(self, metric: Metric) -> Metric:
        """A user's metric with the float model's own value on these samples."""
        if not metric.own:
            return metric
        tally = Tally(self.names, metric)
        for reference in self._reference:
            tally.add(reference, reference)
        return replace(metric, float_value=call_user(metric.name, tally.outputs(), self._labels))
