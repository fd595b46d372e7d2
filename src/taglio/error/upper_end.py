"""Where the pooled error of other inputs like these may lie: Cox's method on the logs of squared errors by input.

Squared errors by input are skewed, about log-normal: a few inputs make most of the sum. Student's t on the squares
covers too little then. For values x with log-mean m and log-variance s², log E[x] = m + s²/2, and its end at
probability p is

    m + s²/2 + t(p, n − 1) · √(s²/n + s⁴ / (2 (n − 1)))

(Cox's method: Zhou and Gao, Statistics in Medicine 16, 1997; with t instead of z: Olsson, Journal of Statistics
Education 13, 2005). Four rules make it fit what is measured:

1. The pooled error is Σ ‖ŷ − y‖² / Σ ‖y‖², so x is ‖ŷ − y‖² / ‖y‖² of an input and its weight is ‖y‖². m and s² are
   weighted, and n is the number of equal weights that tell as much, (Σ w)² / Σ w². Where an input has ‖y‖ = 0, x is
   ‖ŷ − y‖² over the mean ‖y‖², and weights are equal.
2. Exact inputs have no log. Inputs with less than a thousandth of the mean count as exact: together they cannot change
   the mean by more than that, but a rounding error of 1e-14 beside 1e-4 would decide s². The others are a share of the
   weight, whose log has the variance (1 − share) / (share · n); this is added under the root, and the share's log to
   the mean (Aitchison's delta distribution).
3. One input far beyond the others is not log-normal, and Cox's method gives it too little weight. The end is at least
   Student's t on the squares, by the linearised variance of a ratio.
4. If every input is exact, the end is 0: how many others may change is a question of counting, not of errors.
"""

from math import exp, inf, log, sqrt

import numpy as np

from taglio.student import t_quantile

# A value below this share of the mean counts as exact.
_EXACT = 1e-3
# The log of an end beyond which too few inputs say nothing: an error of 1,000.
_UNKNOWN = 2.0 * log(1e3)


def mean_end(squares: np.ndarray, references: np.ndarray, probability: float) -> float | None:
    """The value that Σ squares / Σ references of other inputs stays below with `probability`.

    Both have the shape [inputs]: ‖ŷ − y‖² and ‖y‖² of distinct inputs. Above a half the end is at least the ratio of
    these inputs, below a half at most. None for fewer than two inputs, values that are not finite, or an end that is
    beyond any error.
    """
    squares, references = np.asarray(squares, float), np.asarray(references, float)
    total = float(references.sum())
    if len(squares) < 2 or total <= 0.0 or not (np.isfinite(squares).all() and np.isfinite(total)):
        return None
    pooled = float(squares.sum()) / total
    if pooled == 0.0:
        return 0.0
    weights = references / total
    values = np.divide(squares, references, out=np.zeros_like(squares), where=references > 0.0)
    if (squares[references <= 0.0] > 0.0).any():
        weights, values = np.full(len(squares), 1.0 / len(squares)), squares / references.mean()
    changed = values > _EXACT * pooled
    share = min(1.0, float(weights[changed].sum()))
    inputs, counted = _equal(weights), _equal(weights[changed])
    if counted < 1.5:
        return None
    logs, weights = np.log(values[changed]), weights[changed] / weights[changed].sum()
    middle = float(weights @ logs)
    variance = float(weights @ (logs - middle) ** 2) * counted / (counted - 1.0)
    of_mean = variance / counted + variance**2 / (2.0 * (counted - 1.0)) + (1.0 - share) / (share * inputs)
    expected = middle + variance / 2.0 + log(share)
    # Whole degrees of freedom, rounded down: the end is rather too high.
    end = expected + t_quantile(probability, max(1, int(counted + 1e-9) - 1)) * sqrt(of_mean)
    if end > _UNKNOWN:
        return None
    # The relative error of the ratio is twice that of its root.
    deviation = 2.0 * standard_error(squares, references)
    of_squares = pooled * (1.0 + t_quantile(probability, len(squares) - 1) * deviation)
    return max(of_squares, exp(end)) if probability > 0.5 else min(max(0.0, of_squares), exp(end))


def standard_error(squares: np.ndarray, references: np.ndarray) -> float:
    """The relative standard error of √(Σ squares / Σ references) over the choice of samples; infinite for one sample.

    `squares` and `references`, shape [samples], are ‖ŷ − y‖² and ‖y‖². It is that of a ratio, by linearisation.
    """
    count = len(squares)
    if count < 2:
        return inf
    residual = squares - squares.sum() / references.sum() * references
    return float(np.sqrt(count / (count - 1) * np.sum(residual**2)) / squares.sum() / 2.0)


def _equal(weights: np.ndarray) -> float:
    """The number of equal weights that tell as much as these; 0 for none."""
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0.0 else 0.0
