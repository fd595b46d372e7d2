"""Plans that were tried, as values, and the front of speed and error among those that were timed. Measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from taglio.profile.wall_time import WallTime
from taglio.quantize.precision import BFLOAT16

# The most points of the front, and the most of them with a smaller error than the plan.
_MOST, _TIGHTER = 5, 2
# The least factor by which a point must be faster than its neighbour of a smaller error: less may be noise.
_FASTER = 1.03
# The least factor between the errors of two points for which different limits are worth listing.
_APART = 1.2
# Outputs with a larger loss are useless. This does not apply to a user's function, which has a unit of its own.
_USELESS = 0.5


@dataclass(frozen=True, slots=True)
class Point:
    """A plan that was tried in a place of this machine, or the float model of a place that is excluded.

    `forms` are those of the blocks that are not float32. `predicted_s` is None where no table predicts the place,
    `latency` where the plan was not timed. `error` is that of the deployed file on all held-out inputs if it was
    `judged`, else the one to expect according to the search; None if it is unknown, or an output loses its information.
    `holds` says whether the plan keeps all limits as far as is known, `reason` why it is excluded."""

    name: str
    runtime: str
    forms: dict[str, str]
    predicted_s: float | None
    latency: WallTime | None
    error: float | None
    judged: bool
    holds: bool
    reason: str = ""

    @property
    def measured_s(self) -> float | None:
        """Median seconds of a run; None if it was not timed."""
        return None if self.latency is None else self.latency.median_s

    @property
    def int8_blocks(self) -> int:
        """How many blocks are in a quantised form."""
        return sum(form != BFLOAT16.name for form in self.forms.values())


def front(
    points: Sequence[Point], float_s: float, plan_s: float, plan_error: float, max_error: float, *, any_unit: bool
) -> tuple[Point, ...]:
    """The timed points that another limit on the error would choose, by increasing error. They are slower than the plan
    with a smaller error than `plan_error`, or faster with an error beyond `max_error`. No other point beats them in
    both, and all are faster than the float model. With `any_unit`, large errors are not left out as useless."""
    timed = [(point, point.error, point.measured_s) for point in points if not point.reason]
    rows = [(point, error, seconds) for point, error, seconds in timed if error is not None and seconds is not None]
    tighter, looser = list[Point](), list[Point]()
    tighter_s, looser_s = float_s / _FASTER, min(float_s, plan_s) / _FASTER
    for point, error, seconds in sorted(rows, key=lambda row: row[1:]):
        if _APART * error < plan_error and _FASTER * plan_s <= seconds <= tighter_s:
            tighter = [*_apart(tighter, error), point]
            tighter_s = seconds / _FASTER
        elif error > max_error and (any_unit or error <= _USELESS) and seconds <= looser_s:
            looser = [*_apart(looser, error), point]
            looser_s = seconds / _FASTER
    tighter = tighter[-_TIGHTER:]
    return (*tighter, *looser[: _MOST - len(tighter)])


def _apart(points: Sequence[Point], error: float) -> list[Point]:
    """The `points` whose errors are far enough below `error`, which a faster point has."""
    return [point for point in points if _APART * (point.error or 0.0) <= error]
