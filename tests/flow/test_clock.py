"""A time limit is divided among the stages that are left."""

from math import inf

import pytest

import taglio
from taglio.confirm import race
from taglio.embedded import digits_data, digits_model
from taglio.errors import BadOption
from taglio.flow.clock import FIXED, LEAST, TYPICAL_S, Clock


def test_the_time_that_is_left_is_for_all_later_stages() -> None:
    whole_s = sum(TYPICAL_S.values())
    clock = Clock(1.0, (FIXED + 0.5 * (1.0 - FIXED)) * whole_s)
    assert clock.effort("screen") == pytest.approx(0.5)
    last_s = (FIXED + 0.25 * (1.0 - FIXED)) * (TYPICAL_S["plan"] + TYPICAL_S["confirm"])
    clock = Clock(1.0, whole_s + last_s)
    clock.laps["screen"] = whole_s
    assert clock.effort("plan") == pytest.approx(0.25)
    assert clock.effort("error") < 0.25
    clock.laps["error"] = whole_s
    assert clock.effort("plan") == LEAST
    assert Clock(0.001, 1.0).effort("plan") == 0.001  # what was asked for is less


@pytest.mark.parametrize("limit_s", [0.0, -1.0, inf, "soon"])
def test_a_limit_must_be_a_time(limit_s: float) -> None:
    with pytest.raises(BadOption, match="`time_limit_s` is"):
        taglio.optimize(digits_model(), digits_data(), max_error=0.02, time_limit_s=limit_s)


def test_a_race_within_a_time_limit_takes_no_longer_than_what_is_left() -> None:
    clock = Clock(1.0, 100.0)
    for laps_s, left_s in ((80.0, 16.0), (93.0, 5.0), (99.0, 5.0)):  # the delivery takes 4 s
        clock.laps["plan"] = laps_s
        patience = clock.patience()
        assert (patience.most_seconds, patience.seconds) == (left_s, min(race.USUAL.seconds, left_s))
    assert clock.patience(2.0).most_seconds == 2.0
