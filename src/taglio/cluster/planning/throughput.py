"""The plan with the shortest period (busy seconds of the busiest device or link), and a lower bound on any plan's.

1. Priced, the busy seconds of all devices and links add up: with prices λ ≥ 0 a plan's period T is at least
   min (Σ λ load + min(0, (1 − Σ λ) · aim)) over all plans with a period up to `aim`. This is eliminated as in solve.py.
   Copies and labels that alone take longer than `aim` are left out, so a lower aim gives a higher bound; labels whose
   min-marginal is above the aim are in no such plan.
2. Answers at prices near the best are improved by local search, towards aims between the bound and the best plan.
3. CP-SAT (cp_sat.py) improves the best plan among the labels of plans at least as good, and raises the bound.

CP-SAT includes a lower bound of the components' overhead. Plans are compared by simulated busy time, which includes all
of it, once their components are merged (merge.py).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.costs import Costs, evaluate
from taglio.cluster.planning.cp_sat import PeriodProgram
from taglio.cluster.planning.cutting_planes import Plane, maximise
from taglio.cluster.planning.describe import period_s
from taglio.cluster.planning.elimination import TooWide
from taglio.cluster.planning.improve import improve
from taglio.cluster.planning.merge import merged
from taglio.cluster.planning.problem import Resource, Totals
from taglio.cluster.planning.relaxation import WIDEST, Relaxation
from taglio.cluster.planning.resources import busy_times, request_shares
from taglio.cluster.planning.solve import Undecided, solve

_PERIOD = "period"


def fastest_stream(
    assembled: Assembled, start: Sequence[int] | None, gap: float, time_limit_s: float
) -> tuple[Totals, float, float] | None:
    """A placement, its period (`period_s`) and a lower bound on any. None if no placement keeps the limits. Raises
    Undecided."""
    return _PeriodSearch(assembled, start, gap, time_limit_s).run()


@dataclass(frozen=True, slots=True, eq=False)
class _Core:
    """The problem restricted to periods up to an aim: its costs, their period rows, the labels left (nodes, labels),
    and the bound as a share of the aim; also prices and tables, unless the graph is too wide for them."""

    costs: Costs
    periods: np.ndarray
    alive: np.ndarray
    bound: float
    prices: np.ndarray | None = None
    relaxation: Relaxation | None = None


class _PeriodSearch:
    """The best plan (its totals and period) and the bound so far."""

    def __init__(self, assembled: Assembled, start: Sequence[int] | None, gap: float, time_limit_s: float) -> None:
        begun = time.perf_counter()
        self.assembled, self.start, self.gap, self.time_limit_s = assembled, start, gap, time_limit_s
        self.deadline = begun + time_limit_s
        self.shares = request_shares(assembled.workloads)
        self.totals: Totals | None = None
        self.period, self.low = inf, 0.0

    def run(self) -> tuple[Totals, float, float] | None:
        """The answer."""
        problem, share = self.assembled.problem, 0.1 * self.time_limit_s
        if self.start is not None:
            self._offer(evaluate(problem, self.start))
        placed = solve(problem, gap=10 * self.gap, time_limit_s=share, incumbent=self.start)
        if placed.status == "infeasible":
            return None
        if placed.labels:
            self._offer(evaluate(problem, placed.labels, placed.copies))
        if not self._done():
            self._improve()
        if self.totals is None:
            if self.low < self._aim():
                raise Undecided
            return None
        return self.totals, self.period, min(self.low, self.period)

    def _done(self) -> bool:
        return self.low >= (1.0 - self.gap) * self.period

    def _offer(self, totals: Totals) -> None:
        """Keep a placement if it is within the limits and its simulated period is the shortest so far."""
        if totals.broken:
            return
        totals = merged(self.assembled, totals)
        if (period := period_s(self.assembled, totals)) < self.period:
            self.totals, self.period = totals, period

    def _improve(self) -> None:
        """Improve the best plan: by descent for 15 % of the time at most, then by CP-SAT, whose first search takes 30 %
        of what is left. Descents end once they miss an aim within 5 % of the best plan."""
        until = time.perf_counter() + 0.15 * self.time_limit_s
        self._descend(self._core(self._aim()), until)
        missed = 1e-3 * self._aim()
        while time.perf_counter() < until and not self._done():
            aim = float(np.sqrt(max(self.low, missed) * self._aim()))
            core = self._core(aim)
            if core.bound <= 1.0:
                self._descend(core, until)
            missed = aim if self.period > aim else missed
            if missed > self._aim() / 1.05:
                break
        better = self._search(self._aim(), 1.0 if self.totals is None else 0.3)
        while better and not self._done():
            better = self._search((1.0 - 0.9 * self.gap) * self._aim(), 1.0)

    def _search(self, aim: float, share: float) -> bool:
        """Search by CP-SAT for a plan with a period up to an aim, for a share of the time left. Return whether to
        search again below the best plan. If the aim is below the best plan, the search ends with the first better plan
        or a proof that there is none: the aim excludes copies that take longer, and tensors have few sizes."""
        reached, left_s = self.period <= aim, self.deadline - time.perf_counter()
        core = self._core(aim)
        if left_s <= 0.0 or self._done() or core.bound > 1.0:
            return False
        # Plans with other labels than those left have longer periods than the aim.
        program = PeriodProgram(core.costs, core.alive, core.periods, self.assembled.overhead_s, self.low, aim)
        if self.totals is not None:
            program.hint(self.totals.labels, self.totals.copies)
        before = self.period
        solution = program.solve(
            gap=0.5 * self.gap, time_limit_s=share * left_s, first=not reached and self.totals is not None
        )
        self.low = max(self.low, min(solution.bound, aim))
        if solution.labels is not None:
            self._offer(evaluate(self.assembled.problem, solution.labels.tolist(), solution.copies))
        return reached or self.period < before

    def _aim(self) -> float:
        """The period of the best plan; without one, more than any plan's."""
        if self.totals is not None:
            return self.period
        costs = Costs(replace(self.assembled.problem, resources=self._periods(inf)))
        overhead_s = len(costs.problem.nodes) * float(self.assembled.overhead_s.sum())
        return float(costs.most()[1 : 1 + len(costs.problem.resources)].max()) + overhead_s

    def _periods(self, upper: float) -> tuple[Resource, ...]:
        return busy_times(self.assembled.workloads, self.assembled.cluster, self.shares, upper, _PERIOD)

    def _core(self, aim: float) -> _Core:
        """The problem restricted to periods up to an aim; its bound may raise that of the search."""
        core = self._restricted(aim)
        self.low = max(self.low, min(core.bound, 1.0) * aim)
        return core

    def _restricted(self, aim: float) -> _Core:
        problem = self.assembled.problem
        unweighted = tuple(replace(resource, weight=0.0) for resource in problem.resources)
        costs = Costs(replace(problem, resources=(*unweighted, *self._periods(aim)), extra=None, constant=0.0))
        first = 1 + len(unweighted)
        periods = np.array(
            [first <= row.column < first + len(costs.problem.resources) - len(unweighted) for row in costs.rows]
        )
        busy = np.array([costs.limited.unary[..., 1 + row].any() for row in range(len(costs.rows))])
        alive = costs.possible()
        if not alive.any(axis=1).all():
            return _Core(costs, periods, alive, inf)
        try:
            relaxation = Relaxation(costs, alive, arity=1, limit=WIDEST)
        except TooWide:
            return _Core(costs, periods, alive, 0.0)

        def value(prices: np.ndarray, least: float) -> tuple[float, float]:
            """The bound in shares of the aim, and the period (0 or 1) that is best at these prices."""
            paid = float(prices[periods].sum())
            return least + paid + min(0.0, 1.0 - paid), float(paid > 1.0)

        def oracle(prices: np.ndarray) -> Plane:
            priced = costs.price(prices)
            least, labels = relaxation.run(priced)
            bound, period = value(prices, least)
            slope = costs.account(priced, labels).rows - np.where(periods, period, costs.uppers)
            return Plane(bound, bound - float(prices @ slope), slope)

        best = maximise(
            oracle,
            np.where(periods & busy, 1.0 / max(1, (periods & busy).sum()), 0.0),
            tolerance=0.1 * self.gap,
            calls=80,
            reach=0.5,
            stop=lambda bound: bound > 1.0 or time.perf_counter() > self.deadline,
        )
        least, _ = relaxation.run(costs.price(best.multipliers))
        shift = value(best.multipliers, least)[0] - least
        kept = alive & (relaxation.marginals() + shift <= 1.0 + 1e-9)
        bound = best.bound if kept.any(axis=1).all() else max(best.bound, 1.0 + 1e-9)
        return _Core(costs, periods, kept, bound, best.multipliers, relaxation)

    def _descend(self, core: _Core, until: float) -> None:
        """Improve answers at 16 prices around the core's towards its aim, each up to four times: penalties on the
        limits that it broke are doubled."""
        if core.prices is None or core.relaxation is None or core.bound > 1.0:
            return
        costs, rng = core.costs, np.random.default_rng(0)
        for _ in range(16):
            priced = costs.price((core.prices + 0.01) * rng.lognormal(0.0, 0.6, len(core.prices)))
            _, labels = core.relaxation.run(priced)
            penalty = core.prices + 0.02
            for _ in range(4):
                _, labels = improve(costs, priced, penalty, labels, core.alive, inf)
                account = costs.account(priced, labels)
                if (account.rows[~core.periods] <= 1.0 + 1e-9).all():
                    self._offer(evaluate(self.assembled.problem, labels.tolist(), account.copies))
                broken = account.rows > 1.0 + 1e-9
                if not broken.any() or time.perf_counter() > until:
                    return
                penalty[broken] *= 2.0
