"""Fit the noise terms of an error model to measured subsets. Pure: errors in, terms out.

Every term starts from a measurement of its block alone and is corrected by a factor exp(θ). Gauss–Newton finds
the θ, level and exponent that minimise squared log ratios of predicted to measured error, with a ridge on θ. Logarithms
because an error of 0.1 % must be predicted as well as one of 10 %; the ridge because there are more terms than subsets.
"""

from dataclasses import dataclass

import numpy as np

_FLOOR = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The fitted link: noise[i] per term, error = exp(level) · (row · noise)^(exponent/2)."""

    noise: np.ndarray
    level: float
    exponent: float

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """Errors of design rows, shape [subsets]."""
        total = np.maximum(rows @ self.noise, _FLOOR**2)
        return np.asarray(np.exp(self.level + 0.5 * self.exponent * np.log(total)))


def fit_terms(rows: np.ndarray, errors: np.ndarray, start: np.ndarray) -> Terms:
    """Fit to `rows` [subsets, terms] (0/1), measured `errors` [subsets] and starting noises `start` [terms].

    Subsets without an error are left out, since zero has no logarithm; their terms start near zero anyway.
    """
    keep = ((rows @ start) > 0.0) & (errors > 0.0)
    rows, target = rows[keep], np.log(np.maximum(errors[keep], _FLOOR))
    start = np.maximum(start, _FLOOR**2)
    theta, level, exponent = np.zeros(len(start)), 0.0, 1.0
    if len(target) == 0:
        return Terms(start, level, exponent)
    size = len(start)
    # Of the noises, the level and the exponent. Errors are exact, and starting noises are rough where blocks share what
    # they read: with 0.1 for the noises, 400 evaluations of the digits ranked others at 0.89 instead of 0.96.
    ridge = np.array([0.001] * size + [0.0001, 0.001])
    damping, previous = 1e-3, np.inf
    for _ in range(25):
        noise = start * np.exp(theta)
        total = rows @ noise
        residual = target - (level + 0.5 * exponent * np.log(total))
        cost = float(np.sum(residual**2) + ridge @ np.array([*theta, level, exponent - 1.0]) ** 2)
        if cost > previous * (1 + 1e-12):
            damping *= 10.0
            if damping > 1e6:
                break
        else:
            if previous - cost < 0.01 * max(previous, 1e-9) and np.isfinite(previous):
                break
            previous, best = cost, (theta, level, exponent, noise, total, residual)
            damping = max(damping / 10.0, 1e-9)
        theta, level, exponent, noise, total, residual = best
        slope = 0.5 * exponent * rows * noise / total[:, None]
        jacobian = np.column_stack([slope, np.ones(len(total)), 0.5 * np.log(total)])
        gradient = jacobian.T @ residual - ridge * np.array([*theta, level, exponent - 1.0])
        step = _ridge_step(jacobian, ridge + damping, gradient)
        theta = np.clip(theta + np.clip(step[:size], -2.0, 2.0), -8.0, 8.0)
        level += float(step[size])
        exponent = float(np.clip(exponent + step[size + 1], 0.3, 1.5))
    _, level, exponent, noise, *_ = best
    return Terms(noise, level, exponent)


def _ridge_step(jacobian: np.ndarray, ridge: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """(JᵀJ + diag(ridge))⁻¹ gradient, from the smaller of two systems: as many equations as subsets (Woodbury), or as
    terms."""
    if len(jacobian) >= len(ridge):
        return np.asarray(np.linalg.solve(jacobian.T @ jacobian + np.diag(ridge), gradient))
    scaled = jacobian / ridge
    inner = np.linalg.solve(scaled @ jacobian.T + np.eye(len(jacobian)), scaled @ gradient)
    return np.asarray((gradient - jacobian.T @ inner) / ridge)
