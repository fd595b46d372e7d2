"""The value that a new error stays below, from errors that were seen. Interprets no data."""

from collections.abc import Sequence
from math import inf

# The share of new errors that an interval is to hold.
COVERAGE = 0.9


def conformal_quantile(
    errors: Sequence[float], coverage: float = COVERAGE, weights: Sequence[float] | None = None
) -> float:
    """The value that a new error stays below with probability `coverage`: the ⌈(n+1)·coverage⌉-th smallest of n
    exchangeable errors (Vovk et al., split conformal prediction); the largest if n is too small, infinite if n is 0.

    `weights` (at most 1, the weight of the new error) weight each error by how close its case is to the new one
    (Tibshirani et al. 2019, covariate shift).
    """
    if not errors:
        return inf
    ordered = sorted(zip(errors, weights or [1.0] * len(errors), strict=True))
    wanted = coverage * (sum(weight for _, weight in ordered) + 1.0) - 1e-9
    reached = 0.0
    for error, weight in ordered:
        reached += weight
        if reached >= wanted:
            return error
    return ordered[-1][0]
