"""The interval over openings: beside its formula, and how often it holds the truth."""

from math import exp, hypot, inf, log, sqrt

import numpy as np
import pytest

from taglio.confirm.speedup import BETWEEN_RACES, log_ratio, speedup


def test_the_interval_is_students_over_openings_and_that_of_races() -> None:
    ratios = [1.50, 1.55, 1.60, 1.52]
    race = speedup([log(ratio) for ratio in ratios], 0.003, 0.002)
    logs = np.log(ratios)
    half = 2.353 * logs.std(ddof=1) / sqrt(4)  # t at 95 % with 3 degrees of freedom, from a published table
    half = hypot(half, 1.645 * BETWEEN_RACES)
    assert race.ratio == pytest.approx(exp(logs.mean()))
    assert race.low == pytest.approx(exp(logs.mean() - half), rel=1e-4)
    assert race.high == pytest.approx(exp(logs.mean() + half), rel=1e-4)
    assert race.sure == pytest.approx(exp(logs.mean() - 5.841 * logs.std(ddof=1) / sqrt(4)), rel=1e-4)
    assert str(race) == f"{race.ratio:.2f} × ({race.low:.2f} to {race.high:.2f})"


def test_one_opening_has_no_interval_and_replaces_nothing() -> None:
    race = speedup([log(3.0)], 0.003, 0.001)
    assert (race.low, race.high) == (0.0, inf)
    assert not race.replaces_float


@pytest.mark.parametrize(
    ("logs", "replaces"),
    [
        ([0.30, 0.31, 0.29, 0.30], True),
        ([0.015, 0.015, 0.016, 0.015], False),  # sure, but below 1.02
        ([0.30, -0.20, 0.40, 0.05], False),  # a large gain that may be luck
    ],
)
def test_float_is_replaced_by_a_gain_that_is_worth_it_and_sure(logs: list[float], replaces: bool) -> None:
    assert speedup(logs, 1.0, 1.0).replaces_float is replaces


def test_the_interval_holds_the_truth_nine_times_of_ten_and_equals_replace_each_other_rarely() -> None:
    draws = np.random.default_rng(5)
    held = replaced = 0
    for _ in range(2000):
        of_openings = draws.normal(0.0, 0.03, 8)
        race = speedup(list(of_openings + draws.normal(0.0, BETWEEN_RACES)), 1.0, 1.0)
        held += race.low <= 1.0 <= race.high
        replaced += speedup(list(of_openings), 1.0, 1.0).replaces_float  # equals are so in every race
    assert 0.88 < held / 2000 < 0.92
    assert replaced / 2000 < 0.01


def test_the_value_of_an_opening_does_not_see_the_clock_drift() -> None:
    clock = np.linspace(1.0, 2.0, 21)  # the machine becomes twice as slow during the opening
    noise = np.random.default_rng(1).lognormal(0.0, 0.01, (2, 21))
    assert log_ratio(list(3e-3 * clock * noise[0]), list(2e-3 * clock * noise[1])) == pytest.approx(log(1.5), abs=0.02)
