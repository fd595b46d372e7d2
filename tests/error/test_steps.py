"""The link to a metric in steps never falls, and goes through what was measured where that rises."""

from dataclasses import replace

import numpy as np
import pytest

from taglio.error.steps import monotone
from tests.error.test_model import model


def test_rising_losses_are_met() -> None:
    knots = monotone([0.3, 0.1, 0.2], [0.5, 0.0, 0.1])
    noises, losses = zip(*knots, strict=True)
    assert [float(np.interp(x, noises, losses)) for x in (0.1, 0.2, 0.3)] == [0.0, 0.1, 0.5]


def test_falling_losses_are_pooled() -> None:
    knots = dict(monotone([0.1, 0.2, 0.3, 0.4], [0.0, 0.4, 0.2, 0.6]))
    assert knots[0.2] == knots[0.3] == pytest.approx(0.3)
    assert knots[0.4] == 0.6


def test_any_measurements_give_a_rising_link() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        knots = monotone([*rng.random(30)], [*rng.integers(0, 4, 30) / 4])
        noises, losses = zip(*knots, strict=True)
        assert (np.diff(noises) > 0).all() and (np.diff(losses) >= 0).all() and knots[0] == (0.0, 0.0)


def test_a_bound_on_the_loss_is_a_bound_on_the_noise() -> None:
    stepped = replace(model(), steps=((0.0, 0.0), (0.1, 0.0), (0.2, 0.5)), upper_add=0.1)
    # 0.25 less the margin of 0.1 is reached at 0.13.
    assert stepped.noise_target(0.25) == pytest.approx(0.13, rel=0.02)
    assert stepped.after_steps(stepped.noise_target(0.25)) + stepped.upper_add <= 0.25
    # The margin alone is more than the bound: what is predicted to hold is tried, and measured.
    assert stepped.after_steps(stepped.noise_target(0.05)) <= 0.05
    assert model(upper_log=0.5).noise_target(2.0) == pytest.approx(2.0 / np.exp(0.5))
