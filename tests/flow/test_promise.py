"""Rules by which promises are judged, one case a rule."""

import pytest

from taglio.confirm.speedup import Speedup
from taglio.flow.promise import Checked, Promise, Verdict, error_on_new_data, same_error, speed_promise
from taglio.ways.result import Figure

HOLDS, BROKEN, UNKNOWN, REPORTED = Verdict.HOLDS, Verdict.BROKEN, Verdict.UNKNOWN, Verdict.REPORTED


def speed(ratio: float, low: float, high: float) -> Speedup:
    return Speedup(ratio, low, high, low, 8, 1e-3, 1e-3 / ratio)


@pytest.mark.parametrize(
    ("loss", "same_platform", "verdict"),
    [
        (0.008, True, HOLDS),
        (0.00801, True, HOLDS),  # rounding
        (0.009, True, BROKEN),  # within the limit, but not what these files gave
        (0.009, False, HOLDS),
        (0.011, False, BROKEN),
    ],
)
def test_the_error_on_the_same_data(loss: float, same_platform: bool, verdict: Verdict) -> None:
    assert same_error(0.008, loss, loss, 0.01, same_platform=same_platform)[0] is verdict


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [((0.005, 0.009), HOLDS), ((0.005, 0.012), UNKNOWN), ((0.0101, 0.02), BROKEN), (None, HOLDS)],
)
def test_the_error_on_new_data(ends: tuple[float, float] | None, verdict: Verdict) -> None:
    assert error_on_new_data(0.007, ends, 0.01)[0] is verdict


@pytest.mark.parametrize(
    ("now", "same_processor", "verdict"),
    [
        (speed(1.50, 1.45, 1.55), True, HOLDS),
        (speed(1.40, 1.30, 1.48), True, HOLDS),  # the intervals meet
        (speed(1.20, 1.15, 1.25), True, BROKEN),
        (speed(0.39, 0.18, 0.87), True, UNKNOWN),  # other programs used the processors
        (speed(0.39, 0.30, 0.50), True, BROKEN),  # further off than they explain
        (speed(0.80, 0.75, 0.85), False, REPORTED),
    ],
)
def test_the_speed_up(now: Speedup, same_processor: bool, verdict: Verdict) -> None:
    assert speed_promise("speed-up", speed(1.53, 1.47, 1.60), now, same_processor=same_processor).verdict is verdict


def test_the_capacity_is_judged_alike() -> None:
    promise = speed_promise("capacity", Figure(2.0, 1.9, 2.1), Figure(1.5, 1.4, 1.6), same_processor=True)
    assert (promise.then, promise.verdict) == ("2.00 × (1.90 to 2.10)", BROKEN)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [([HOLDS, REPORTED], 0), ([HOLDS, UNKNOWN], 6), ([UNKNOWN, BROKEN, HOLDS], 5)],
)
def test_a_broken_promise_outranks_one_that_cannot_be_judged(verdicts: list[Verdict], code: int) -> None:
    assert Checked(tuple(Promise("", "", "", verdict) for verdict in verdicts)).exit_code == code
