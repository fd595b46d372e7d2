"""The notes' regressions: error as a polynomial of which blocks are in int8. Needs scikit-learn (the bench extra)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

DEGREES = {"linear": 1, "quadratic": 2, "cubic": 3}


@dataclass(frozen=True, slots=True)
class Score:
    """How predictions compare with what was measured."""

    r2: float
    mean_absolute: float
    median_relative: float
    spearman: float


def polynomial(rows: np.ndarray, errors: np.ndarray, degree: int) -> Callable[[np.ndarray], np.ndarray]:
    """Least squares on all products of up to `degree` different blocks; `rows` [subsets, blocks] are 0 or 1."""
    model = make_pipeline(PolynomialFeatures(degree, interaction_only=True), LinearRegression())
    model.fit(rows, errors)
    return lambda unseen: np.asarray(model.predict(unseen))


def score(predicted: np.ndarray, truth: np.ndarray) -> Score:
    """R², mean absolute error, median relative error and Spearman's rank correlation."""
    spread = float(((truth - truth.mean()) ** 2).sum())
    return Score(
        1.0 - float(((predicted - truth) ** 2).sum()) / spread,
        float(np.abs(predicted - truth).mean()),
        float(np.median(np.abs(predicted / truth - 1.0))),
        float(np.corrcoef(_ranks(predicted), _ranks(truth))[0, 1]),
    )


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, ties sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse])
