"""The upper end of a pooled error holds that of other inputs about as often as it says, for few and skewed errors."""

from collections.abc import Callable
from math import exp, sqrt

import numpy as np
import pytest

from taglio.error.upper_end import mean_end, standard_error
from tests.error.recorded_errors import recorded

DRAWS = 600


Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def below(truth: float, probability: float, inputs: int, draw: Draw) -> float:
    """How often the end of so many drawn `inputs` is at least `truth`."""
    rng = np.random.default_rng(7)
    ends = [mean_end(*draw(rng, inputs), probability=probability) for _ in range(DRAWS)]
    return float(np.mean([end is None or end >= truth for end in ends]))


@pytest.mark.parametrize(("inputs", "spread"), [(8, 1.5), (16, 0.3), (48, 0.8)])
def test_it_covers_log_normal_errors(inputs: int, spread: float) -> None:
    """Student's t on the squares covers 64 % with eight inputs that are spread by 1.5."""

    def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.lognormal(0.0, spread, count), np.ones(count)

    truth = exp(spread**2 / 2.0)
    assert below(truth, 0.95, inputs, draw) >= 0.85
    assert 0.70 <= below(truth, 0.8, inputs, draw) <= 0.85
    assert below(truth, 0.05, inputs, draw) <= 0.07


@pytest.mark.parametrize("name", recorded())
@pytest.mark.parametrize("inputs", [8, 24])
def test_it_covers_recorded_errors(name: str, inputs: int) -> None:
    """Few inputs of the face detector often hold none of those that change four times as much as the others."""
    squares, references = recorded()[name]

    def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        rows = rng.choice(len(squares), count, replace=False)
        return squares[rows], references[rows]

    covered = below(squares.sum() / references.sum(), 0.95, inputs, draw)
    assert covered >= (0.4 if name.startswith("face") else 0.92)


@pytest.mark.parametrize("inputs", [16, 24])
def test_inputs_that_hardly_change_do_not_raise_it(inputs: int) -> None:
    """Content types are sure for most files, whose logs have a long lower tail: the end was up to 4 times the error."""
    squares, references = recorded()["content types of files, 4 blocks"]
    rng = np.random.default_rng(7)
    draws = (rng.choice(len(squares), inputs, replace=False) for _ in range(DRAWS))
    ends = [mean_end(squares[rows], references[rows], 0.8) or np.inf for rows in draws]
    assert sqrt(float(np.median(ends)) / (squares.sum() / references.sum())) < 2.2


def test_it_is_the_formula_for_equal_sizes() -> None:
    """Cox's method with t, by hand: logs 0, 1, 2, 3 have mean 1.5 and variance 5/3; t(0.95, 3) = 2.3534."""
    squares = np.exp([0.0, 1.0, 2.0, 3.0])
    variance = 5.0 / 3.0
    log_end = 1.5 + variance / 2.0 + 2.3533634 * sqrt(variance / 4.0 + variance**2 / 6.0)
    assert mean_end(squares, np.ones(4), 0.95) == pytest.approx(exp(log_end), rel=1e-6)
    assert mean_end(9.0 * squares, np.full(4, 9.0), 0.95) == pytest.approx(exp(log_end), rel=1e-6)


def test_errors_that_are_as_good_as_exact_do_not_spread_the_logs() -> None:
    rounding = np.array([1e-14, 1e-13, 1e-12, *np.linspace(1e-4, 3e-4, 9)])
    end, without = mean_end(rounding, np.ones(12), 0.95), mean_end(rounding[3:], np.ones(9), 0.95)
    assert end is not None and without is not None
    assert 1.5e-4 < end < 1.2 * without


def test_one_input_far_beyond_the_others_raises_it() -> None:
    squares = np.append(np.linspace(0.9, 1.1, 23), 20.0)
    end = mean_end(squares, np.ones(24), 0.95)
    assert end is not None and end >= 1.6 * squares.mean()


def test_it_is_unknown_for_one_input_and_errors_that_are_not_finite_and_0_for_exact_ones() -> None:
    assert mean_end(np.array([1.0]), np.ones(1), 0.95) is None
    assert mean_end(np.array([1.0, np.inf, 2.0]), np.ones(3), 0.95) is None
    assert mean_end(np.array([1e-6, 4.0]), np.ones(2), 0.95) is None  # one input alone makes the error
    assert mean_end(np.array([1.0, 2.0]), np.zeros(2), 0.95) is None
    assert mean_end(np.zeros(5), np.ones(5), 0.95) == 0.0
    # Beside an output that float leaves at zero, squares are compared with the mean size.
    end = mean_end(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 4.0]), 0.95)
    assert end is not None and end > 1.0


def test_the_standard_error_is_that_of_repeated_draws() -> None:
    """Against the spread of the error over many draws of eight inputs."""
    rng = np.random.default_rng(0)
    errors, estimates = [], []
    for _ in range(400):
        squares, references = rng.gamma(0.5, 1.0, 8), rng.gamma(4.0, 25.0, 8)
        errors.append(float(np.sqrt(squares.sum() / references.sum())))
        estimates.append(standard_error(squares, references))
    spread = float(np.std(errors) / np.mean(errors))
    assert 0.6 * spread < float(np.median(estimates)) < 1.5 * spread
