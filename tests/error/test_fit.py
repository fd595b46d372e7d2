"""The fit finds made-up noises: it predicts subsets that it never saw, whatever the link and the unit of error."""

from dataclasses import dataclass

import numpy as np
import pytest

from taglio.error.fit import Terms, fit_terms


@dataclass(frozen=True)
class World:
    """Terms whose squares add behind a link, and starting values that are off, as what is measured alone is."""

    rows: np.ndarray
    errors: np.ndarray
    start: np.ndarray
    unseen: np.ndarray
    truth: np.ndarray

    def fit(self, scale: float = 1.0) -> Terms:
        return fit_terms(self.rows, self.errors * scale, self.start * scale**2)

    def misses(self, terms: Terms) -> np.ndarray:
        """|log(predicted / true)| of unseen subsets."""
        return np.asarray(np.abs(np.log(terms.predict(self.unseen) / self.truth)))


def world(seed: int, exponent: float = 1.0, level: float = 0.0, noise: float = 0.0) -> World:
    rng = np.random.default_rng(seed)
    squares = (1e-2 * np.exp(rng.normal(0.0, 1.0, 20))) ** 2

    def truth(rows: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(level + 0.5 * exponent * np.log(rows @ squares)))

    rows = (rng.random((80, 20)) < rng.uniform(0.05, 1.0, (80, 1))).astype(float)
    rows[rows.sum(axis=1) == 0.0, 0] = 1.0
    unseen = (rng.random((40, 20)) < 0.5).astype(float)
    errors = truth(rows) * np.exp(rng.normal(0.0, noise, 80))
    return World(rows, errors, squares * np.exp(rng.normal(0.0, 0.7, 20)), unseen, truth(unseen))


@pytest.mark.parametrize(
    ("exponent", "level", "noise", "mean", "worst"),
    [(1.0, 0.0, 0.0, 0.04, 0.2), (0.8, 0.5, 0.05, 0.05, 0.2), (0.8, 0.0, 0.2, 0.08, 0.3)],
)
def test_unseen_subsets_of_a_known_world_are_predicted(
    exponent: float, level: float, noise: float, mean: float, worst: float
) -> None:
    for seed in range(4):
        drawn = world(seed, exponent, level, noise)
        terms = drawn.fit()
        assert drawn.misses(terms).mean() < mean and drawn.misses(terms).max() < worst
        assert terms.exponent == pytest.approx(exponent, abs=0.1 + noise)
        assert (terms.noise > 0.0).all()


def test_terms_and_subsets_without_error_are_survived() -> None:
    """A block whose quantisation changes nothing: alone its error is 0, and beside others it adds nothing."""
    drawn = world(4)
    start = np.concatenate([drawn.start, [0.0]])
    rows = np.column_stack([drawn.rows, np.arange(80) % 2])
    lone = np.zeros((1, 21))
    lone[0, -1] = 1.0
    terms = fit_terms(np.concatenate([rows, lone]), np.concatenate([drawn.errors, [0.0]]), start)
    unseen = np.column_stack([drawn.unseen, np.ones(40)])
    assert np.abs(np.log(terms.predict(unseen) / drawn.truth)).mean() < 0.08
    assert terms.predict(lone)[0] < 1e-6

    errors = drawn.errors.copy()
    errors[:3] = 0.0  # no fit can explain these; it must not fall over them either
    predicted = fit_terms(drawn.rows, errors, drawn.start).predict(drawn.unseen)
    assert np.isfinite(predicted).all() and (predicted > 0.0).all()
