"""How far one set of outputs is from another. Pure.

The relative L2 error of one output, pooled over samples, is ‖y − ŷ‖₂ / ‖y‖₂; of a model, the largest over outputs.
"""

from collections.abc import Sequence

import numpy as np

from taglio.errors import BadData

Outputs = Sequence[np.ndarray]


class RelativeL2:
    """Accumulates ‖y − ŷ‖² and ‖y‖² over samples, per output, so that nothing but sums is kept."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._difference = np.zeros(len(self._names))
        self._reference = np.zeros(len(self._names))

    def add(self, reference: Outputs, changed: Outputs) -> None:
        """Count one sample's outputs."""
        for index, (y, z) in enumerate(zip(reference, changed, strict=True)):
            # Integer outputs (class indices) count as numbers; float64 sums keep small differences.
            a = np.asarray(y, np.float32).ravel()
            b = np.asarray(z, np.float32).ravel()
            difference = a - b
            self._difference[index] += float(np.dot(difference, difference))
            self._reference[index] += float(np.dot(a, a))

    def per_output(self) -> dict[str, float]:
        """Relative error by output name. Raises BadData for an output that is NaN or always zero."""
        result = {}
        for name, difference, reference in zip(self._names, self._difference, self._reference, strict=True):
            if not np.isfinite(reference):
                raise BadData(f"output {name} of the float model is NaN or infinite on the data: check preprocessing")
            if reference == 0.0:
                if difference != 0.0:  # NaN too
                    raise BadData(
                        f"output {name} of the float model is zero on all samples: its relative error is undefined"
                    )
                result[name] = 0.0
                continue
            value = float(np.sqrt(difference / reference))
            result[name] = value if np.isfinite(value) else float("inf")
        return result

    def value(self) -> float:
        """The largest relative error over outputs."""
        return max(self.per_output().values())
