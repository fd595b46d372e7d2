"""Measure the output error of assignments on the switchable graph. Fits nothing."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from taglio.error.metric import RelativeL2
from taglio.error.switchable import Switchable
from taglio.errors import BadData
from taglio.quantize.precision import Assignment


class ErrorMeter:
    """Errors against the float model on a fixed set of samples; the float outputs are computed once and kept."""

    def __init__(
        self, switchable: Switchable, samples: Sequence[Mapping[str, np.ndarray]], names: Sequence[str]
    ) -> None:
        self._switchable = switchable
        self._samples = tuple(samples)
        self.names = tuple(names)
        self._reference = [switchable.run({}, sample) for sample in self._samples]
        self.evaluations = 0
        for outputs in self._reference:
            for name, value in zip(self.names, outputs, strict=True):
                if not np.isfinite(np.asarray(value, np.float64)).all():
                    raise BadData(
                        f"output {name} of the float model is NaN or infinite on the data: check preprocessing"
                    )

    @property
    def samples(self) -> int:
        """How many samples an error is measured on."""
        return len(self._samples)

    def error(self, assignment: Assignment) -> float:
        """Relative L2 error of the model with `assignment` quantised, the largest over outputs."""
        return max(self.per_output(assignment).values())

    def per_output(self, assignment: Assignment) -> dict[str, float]:
        """The same by output."""
        total = RelativeL2(self.names)
        for sample, reference in zip(self._samples, self._reference, strict=True):
            total.add(reference, self._switchable.run(assignment, sample))
        self.evaluations += 1
        return total.per_output()

    def table(
        self, assignments: Sequence[Assignment], progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        """Errors of several assignments by output, shape [assignments, outputs]."""
        rows = []
        for index, assignment in enumerate(assignments):
            rows.append([*self.per_output(assignment).values()])
            if progress:
                progress(index + 1, len(assignments))
        return np.array(rows).reshape(len(assignments), len(self.names))
