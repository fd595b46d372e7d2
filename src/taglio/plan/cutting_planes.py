"""The best prices of the limits: a concave maximum by cutting planes within a box that follows the best point.

Every call of the oracle gives the Lagrangian's value and slope, hence a plane above it. The next prices are the highest
point of all planes within the box; the box grows where the planes were right and shrinks where they were not
(Marsten, Hogan and Blankenship, 1975). Knows nothing of labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from taglio.errors import TaglioError

# Where a goal is out of the planes' reach, the search ends at this share of the way that is missing.
_HOPELESS = 0.15
# Prices are looked for within so many times the first value.
_FARTHEST = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One call at some prices: a proven lower bound, and the plane objective + slope · prices above the function."""

    bound: float
    objective: float
    slope: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """The best prices found, the bound there, how high the planes still reach in the box, and the calls made.

    `shares` weigh the answers of all calls so that together they keep the limits, where the planes meet.
    """

    multipliers: np.ndarray
    bound: float
    ceiling: float
    calls: int
    shares: np.ndarray


def maximise(
    oracle: Callable[[np.ndarray], Answer],
    start: np.ndarray,
    *,
    tolerance: float,
    calls: int,
    reach: float = 0.25,
    stop: Callable[[float], bool] = lambda _: False,
    known: Sequence[tuple[float, np.ndarray]] = (),
    goal: Callable[[], float] = lambda: -np.inf,
) -> Prices:
    """Raise the bound from `start` until the planes promise less than a share `tolerance` more, or `stop`, or `calls`.

    `reach` is the first half-width of the box, as a share of the first value; `known` are planes (objective, slope) of
    earlier answers, whose shares come first. `goal()` is a bound that would be enough: where the planes stay below it,
    what they still promise matters less.
    """
    best, here = -np.inf, start
    planes = _Planes(len(start))
    for objective, slope in known:
        planes.add(objective, slope)
    scale, radius = 1.0, 1.0
    made, ceiling = 0, np.inf
    point = start
    while made < calls:
        answer = oracle(point)
        made += 1
        planes.add(answer.objective, answer.slope)
        if made == 1:
            scale = max(1e-9, abs(answer.bound))
            radius = reach * scale
        promised = ceiling - best
        gained = answer.bound - best
        if answer.bound > best:
            best, here = answer.bound, point
        if made > 1:
            if gained >= 0.4 * promised:
                radius *= 2.0
            elif gained <= 0.0:
                radius *= 0.4
        if len(start) == 0 or stop(best):
            break
        point, ceiling = planes.highest(here, radius)
        while tolerance * scale < ceiling - best <= _HOPELESS * (goal() - ceiling) and radius < _FARTHEST * scale:
            # Within the box the goal is far; further out it may not be.
            radius *= 4.0
            point, ceiling = planes.highest(here, radius)
        if ceiling - best <= max(tolerance * scale, _HOPELESS * (goal() - ceiling)):
            break
    return Prices(here, best, ceiling, made, planes.shares(len(known) + made, scale))


class _Planes:
    """max t where t ≤ objective + slope · prices for every plane, prices ≥ 0 in a box."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.highs = Quiet()
        infinity = highspy.kHighsInf
        for _ in range(count):
            self.highs.addVar(0.0, infinity)
        self.highs.addVar(-infinity, infinity)
        self.highs.changeColCost(count, -1.0)
        self.columns = np.arange(count + 1, dtype=np.int32)

    def add(self, objective: float, slope: np.ndarray) -> None:
        row = np.concatenate([-slope, [1.0]])
        self.highs.addRow(-highspy.kHighsInf, objective, self.count + 1, self.columns, row)

    def highest(self, centre: np.ndarray, radius: float) -> tuple[np.ndarray, float]:
        low, high = np.maximum(0.0, centre - radius), centre + radius
        self.highs.changeColsBounds(self.count, self.columns[:-1], low, high)
        self.highs.run()
        values = np.array(self.highs.getSolution().col_value)
        return np.clip(values[:-1], low, high), float(values[-1])

    def shares(self, count: int, scale: float) -> np.ndarray:
        """The weights of the planes at the highest point, wherever it is: those whose mean breaks the limits least."""
        self.highest(np.zeros(self.count), _FARTHEST * scale)
        duals = np.abs(np.array(self.highs.getSolution().row_dual))
        if len(duals) < count or duals.sum() <= 0.0:
            duals = np.eye(count)[-1]
        result: np.ndarray = np.concatenate([duals, np.zeros(max(0, count - len(duals)))])[:count] / duals.sum()
        return result


class SolverFailed(TaglioError):
    """HiGHS did not run: what it would be asked for is the answer to something else, or nothing."""


class Quiet(highspy.Highs):
    """HiGHS that prints nothing: since 1.16 it names itself while it is made, where no option has been set yet."""

    def __init__(self) -> None:
        highspy.Highs.__init__(self)

    def enableCallbacks(self) -> None:  # noqa: N802
        """Silence first: HiGHS calls this while it is made, and what it calls prints."""
        self.setOptionValue("output_flag", False)
        highspy.Highs.enableCallbacks(self)

    def run(self) -> highspy.HighsStatus:
        """Solve. Raises SolverFailed where that was refused, which HiGHS itself says on standard output alone."""
        status = highspy.Highs.run(self)
        if status == highspy.HighsStatus.kError:
            raise SolverFailed(f"HiGHS did not run a program of {self.getNumCol()} columns and {self.getNumRow()} rows")
        return status
