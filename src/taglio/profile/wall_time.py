"""The wall time of repeated runs: medians, their spread, and the sustained time.

Under a processor quota (half a core) most short runs have full speed until the process is paused, and the sustained
speed is what counts: if samples scatter, it is the median of the means of stretches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

# A stretch is twice the default period of Linux's quotas, 0.1 s.
STRETCH_S = 0.2
# Medians of rounds and of models settle within so many passes.
_POLISHES = 5


@dataclass(frozen=True, slots=True)
class WallTime:
    """Seconds of one inference: median, median absolute deviation, 95th percentile, mean, and number of samples, which
    are means of stretches if runs scatter. `steady_s` is the sustained time: the median, or, if samples scatter and
    fill a stretch, the median of the means of stretches."""

    median_s: float
    deviation_s: float
    p95_s: float
    mean_s: float
    runs: int
    steady_s: float

    def times(self, factor: float) -> "WallTime":
        """The same with all times multiplied by `factor`, for another speed of the machine."""
        return WallTime(
            self.median_s * factor,
            self.deviation_s * factor,
            self.p95_s * factor,
            self.mean_s * factor,
            self.runs,
            self.steady_s * factor,
        )


def summarize(samples: Sequence[float], apart: Sequence[float] | None = None) -> WallTime:
    """The wall time of consecutive samples; `apart` are the seconds from each to the next, if something else ran in
    between."""
    middle = median(samples)
    steady_s, lasted = middle, apart or samples
    # A few short runs do not show the sustained time: a single interrupted one would decide.
    if sum(lasted) >= STRETCH_S and scatter(samples):
        steady_s = median(float(np.mean(samples[stretch])) for stretch in stretches(lasted))
    return WallTime(
        middle,
        median(abs(sample - middle) for sample in samples),
        float(np.percentile(samples, 95)),
        float(np.mean(samples)),
        len(samples),
        steady_s,
    )


def without_drift(samples: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The samples of rounds in which every model had a turn, as if all rounds had run at the machine's median speed.

    A round's speed is the median, over models, of how far each is from its own median: median polish (Tukey,
    Exploratory Data Analysis, 1977).
    """
    logs = np.log([*samples.values()])
    drift = np.zeros(logs.shape[1])
    for _ in range(_POLISHES if len(logs) > 1 else 0):
        rest = logs - drift
        drift += np.median(rest - np.median(rest, axis=1, keepdims=True), axis=0)
    steady = np.exp(logs - drift + np.median(drift))
    return dict(zip(samples, steady.tolist(), strict=True))


def stretches(seconds: Sequence[float], least_s: float = STRETCH_S) -> list[slice]:
    """Slices of consecutive samples that together take `least_s` or more; a remainder is joined to the last."""
    slices: list[slice] = []
    begin, total = 0, 0.0
    for index, sample_s in enumerate(seconds):
        total += sample_s
        if total >= least_s:
            slices.append(slice(begin, index + 1))
            begin, total = index + 1, 0.0
    return [*slices[:-1], slice(slices[-1].start if slices else 0, len(seconds))]


def scatter(seconds: Sequence[float]) -> bool:
    """Whether times differ so much that their median is not the sustained time: their middle 80 % span a fifth of the
    median, or their mean is a tenth above it."""
    low, middle, high = np.percentile(seconds, (10, 50, 90))
    return bool(max((high - low) / middle, 2.0 * (float(np.mean(seconds)) / middle - 1.0)) > 0.2)
