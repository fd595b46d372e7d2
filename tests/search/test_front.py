"""The front holds the plans that another limit would bring, and none that noise alone makes better."""

from taglio.search.front import Point, front
from tests.search.test_finalists import wall


def point(error: float | None, seconds: float | None, reason: str = "") -> Point:
    latency = None if seconds is None else wall(seconds)
    return Point("plan", "onnxruntime", {}, seconds, latency, error, judged=False, holds=False, reason=reason)


def listed(*points: Point, plan_s: float = 6.0, plan_error: float = 0.008) -> list[tuple[float | None, float | None]]:
    chosen = front(points, 10.0, plan_s, plan_error, 0.01, any_unit=False)
    return [(point.error, point.measured_s) for point in chosen]


def test_tighter_points_are_slower_and_looser_ones_faster_than_the_plan() -> None:
    tighter, looser = point(0.004, 8.0), point(0.03, 5.0)
    assert listed(looser, point(0.008, 6.0), tighter) == [(0.004, 8.0), (0.03, 5.0)]
    # As slow as float, slower than the plan with a larger error, within the limit, useless, out, not timed.
    nothing = (
        point(0.004, 9.9), point(0.03, 7.0), point(0.009, 5.0), point(0.7, 1.0), point(0.03, 5.0, "it does not run"),
        point(None, 5.0), point(0.03, None),
    )  # fmt: skip
    assert listed(*nothing) == []


def test_a_point_that_another_beats_or_that_gains_only_noise_is_left_out() -> None:
    assert listed(point(0.02, 5.0), point(0.03, 5.5), point(0.04, 4.9), point(0.05, 4.0)) == [(0.02, 5.0), (0.05, 4.0)]
    assert listed(point(0.002, 9.0), point(0.004, 8.9), point(0.005, 7.0)) == [(0.002, 9.0), (0.005, 7.0)]


def test_of_points_that_no_limit_tells_apart_the_fastest_is_listed() -> None:
    assert listed(point(0.02, 5.0), point(0.021, 4.0), point(0.022, 3.0), point(0.04, 2.0)) == [
        (0.022, 3.0),
        (0.04, 2.0),
    ]
    assert listed(point(0.007, 8.0)) == []  # the plan has 0.008


def test_at_most_five_points_are_listed_those_first_that_are_near_the_limit() -> None:
    tighter = [point(0.001 * number, 9.6 - 0.6 * number) for number in range(1, 5)]
    looser = [point(0.01 + 0.01 * number, 6.0 - number) for number in range(1, 6)]
    assert [error for error, _ in listed(*looser, *tighter)] == [0.003, 0.004, 0.02, 0.03, 0.04]


def test_without_a_plan_every_point_faster_than_float_is_looser() -> None:
    assert listed(point(0.02, 9.0), point(0.1, 4.0), plan_s=10.0, plan_error=0.0) == [(0.02, 9.0), (0.1, 4.0)]
