"""The best prices of the limits: maximise a concave function by cutting planes in a box around the best point.

Every oracle call gives the Lagrangian's value and slope, hence a plane above it. The next prices are the highest point
of all planes within the box, which grows if the planes were right and shrinks if not (Marsten, Hogan and Blankenship,
1975). Independent of labels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import highspy
import numpy as np

from taglio.plan.highs import Quiet

# Largest price, as a multiple of the first value.
_FARTHEST = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """One oracle call: a proven lower bound, and the plane objective + slope · prices above the function."""

    bound: float
    objective: float
    slope: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """The best prices found and the bound there; `shares` weigh the answers of all calls so that their mean keeps the
    limits where the planes meet."""

    multipliers: np.ndarray
    bound: float
    shares: np.ndarray


def maximise(
    oracle: Callable[[np.ndarray], Plane],
    start: np.ndarray,
    *,
    tolerance: float,
    calls: int,
    reach: float,
    stop: Callable[[float], bool],
) -> Prices:
    """Raise the bound from `start` until the planes promise a relative gain below `tolerance`, `stop` returns true, or
    `calls` are made.

    `reach` is the first half-width of the box, as a share of the first value.
    """
    best, here = -np.inf, start
    planes = _Planes(len(start))
    scale, radius = 1.0, 1.0
    calls_made, ceiling = 0, np.inf
    point = start
    while calls_made < calls:
        answer = oracle(point)
        calls_made += 1
        planes.add(answer.objective, answer.slope)
        if calls_made == 1:
            scale = max(1e-9, abs(answer.bound))
            radius = reach * scale
        promised = ceiling - best
        gained = answer.bound - best
        if answer.bound > best:
            best, here = answer.bound, point
        if calls_made > 1:
            if gained >= 0.4 * promised:
                radius *= 2.0
            elif gained <= 0.0:
                radius *= 0.4
        if len(start) == 0 or stop(best):
            break
        point, ceiling = planes.highest(here, radius)
        if ceiling - best <= tolerance * scale:
            break
    return Prices(here, best, planes.shares(calls_made, scale))


class _Planes:
    """max t subject to t ≤ objective + slope · prices for every plane, prices ≥ 0 in a box."""

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
        """Weights of the planes at their highest point outside any box: those whose mean breaks the limits least."""
        self.highest(np.zeros(self.count), _FARTHEST * scale)
        duals = np.abs(np.array(self.highs.getSolution().row_dual))
        if len(duals) < count or duals.sum() <= 0.0:
            duals = np.eye(count)[-1]
        return np.asarray(np.concatenate([duals, np.zeros(max(0, count - len(duals)))])[:count] / duals.sum())
