"""Speed-up over openings: the ratio, its interval, and whether it shows that something is faster. Measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, inf, log, sqrt
from statistics import NormalDist, fmean, median, stdev

from taglio.student import t_quantile

# The interval holds the true ratio in nine of ten races.
COVERAGE = 0.9
# Standard deviation of the ratio from race to race, as a share of it. Openings of one race do not show it: the load of
# the machine changes within ten seconds, and slows two models differently. Forty reported ratios differed from races of
# 60 openings by 3.3 % (root mean square; benchmarks/told.py), of which openings explain 1.7 %. A few were far off: with
# 2 %, the intervals of 34 hold.
BETWEEN_RACES = 0.02
# A plan replaces float if its ratio is at least WORTH, and above 1 in all but one race of two hundred.
WORTH, DOUBT = 1.02, 0.005


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast a model is as the source model: `ratio`, with the ends of a 90 % interval, over `openings`
    and from race to race. `sure` is the one-sided lower end in this race, of 99.5 % by default. `float_s` and `plan_s`
    are the median seconds of a run."""

    ratio: float
    low: float
    high: float
    sure: float
    openings: int
    float_s: float
    plan_s: float

    def __str__(self) -> str:
        """The ratio with its interval, such as `1.53 × (1.47 to 1.60)`."""
        return f"{self.ratio:.2f} × ({self.low:.2f} to {self.high:.2f})"

    @property
    def replaces_float(self) -> bool:
        """Whether the gain is large and certain enough to replace float."""
        return self.ratio >= WORTH and self.sure > 1.0

    @property
    def half_width(self) -> float:
        """Half of the interval, as a share of the ratio."""
        return 0.5 * (self.high - self.low) / self.ratio


def speedup(log_ratios: Sequence[float], float_s: float, plan_s: float, doubt: float = DOUBT) -> Speedup:
    """The speed-up from the logarithm of float's time over the model's, one value for each opening.

    The interval is Student's t over openings: runs of one opening share its memory layout, so more of them show nothing
    new. The half-width of `BETWEEN_RACES` is added to it as independent errors add, by squares. It is not added for
    `sure`, because models of equal speed are equal in every race. A single opening has no interval. `doubt` is the
    chance that `sure` lies above the true ratio.
    """
    middle, count = fmean(log_ratios), len(log_ratios)
    if count < 2:
        return Speedup(exp(middle), 0.0, inf, 0.0, count, float_s, plan_s)
    error = stdev(log_ratios) / sqrt(count)

    upper = 0.5 * (1.0 + COVERAGE)
    half = hypot(t_quantile(upper, count - 1) * error, NormalDist().inv_cdf(upper) * BETWEEN_RACES)
    sure = exp(middle + t_quantile(doubt, count - 1) * error)
    return Speedup(exp(middle), exp(middle - half), exp(middle + half), sure, count, float_s, plan_s)


def log_ratio(float_s: Sequence[float], plan_s: Sequence[float]) -> float:
    """The value of one opening: the median of log(float / plan) over pairs of runs that ran side by side. The ratio of
    the two medians would scatter five times as much while the clock drifts."""
    return median(log(float_run_s / plan_run_s) for float_run_s, plan_run_s in zip(float_s, plan_s, strict=True))
