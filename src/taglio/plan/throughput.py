"""The plan that streams fastest: the least busy seconds of the busiest device or link, and a bound on any plan's.

1. Priced, the busy seconds of all devices and links add up: with prices λ ≥ 0 a plan's period T is at least
   min (Σ λ load + min(0, (1 − Σ λ) · aim)) among all plans of a period up to `aim`. That is eliminated as in solve.py.
   Copies and labels that alone take longer than `aim` are left out, so a nearer aim gives a higher bound, and labels
   whose min-marginal lies above the aim are in no such plan.
2. Answers at prices near the best, improved by local search, give plans, and CP-SAT
   (cp_sat.py) the best of all that use the labels of these.
3. The aim begins little above the bound. CP-SAT looks for the best plan of the labels that are left: few,
   which makes it fast. Where there is none, the aim is a bound, and the next is further up.
4. If time runs short before a plan is found, CP-SAT betters the best that is known.

CP-SAT counts components' overhead too. What is compared and returned is the simulated busy time, which has all of it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.plan.assemble import NOT_CONNECTED, Assembled, busy_times, request_shares
from taglio.plan.branch_and_bound import improve
from taglio.plan.costs import Costs, evaluate
from taglio.plan.cp_sat import PeriodProgram, Stream
from taglio.plan.cutting_planes import Answer, maximise
from taglio.plan.describe import loads
from taglio.plan.elimination import TooWide
from taglio.plan.problem import Problem, Resource, Totals
from taglio.plan.relaxation import WIDEST, Relaxation
from taglio.plan.solve import Placed, solve

# Of the time: what the first plan may take, what may go by until the best known plan is bettered instead, and what
# is kept for a plan of fewer seconds at the same period.
_FIRST_SHARE, _CLIMBING_SHARE, _SPARING_SHARE = 0.1, 0.45, 0.1
# Of the time, what improving answers may take, and what choosing among their labels; how many answers are tried for
# an aim, and how far prices stray from the best ones.
_DESCENT_SHARE, _CHOOSING_SHARE, _ANSWERS, _STRAYING = 0.15, 0.2, 16, 0.6
# Improved answers whose labels are chosen among.
_CHOSEN = 10
# Times that a descent goes on with the limits that it broke twice as dear.
_DEARER = 4
# How far above the bound the aim is at first, in gaps, and how much further after each that had no plan.
_AIM, _FURTHER = 2.0, 2.0
_PERIOD = "period"


def fastest_stream(
    assembled: Assembled, start: Sequence[int] | None, gap: float, time_limit_s: float
) -> tuple[Totals, float, float] | None:
    """A placement, its period and a bound on any: busy seconds of the busiest device or link, a request of the mix of
    all models, component overheads included. None where no placement was found that keeps the limits."""
    return _Search(assembled, start, gap, time_limit_s).run()


def totals_of(problem: Problem, placed: Placed) -> Totals | None:
    """What a placement costs; None where there is none, or it needs a link that is not there."""
    if not placed.labels:
        return None
    totals = evaluate(problem, placed.labels, placed.wires)
    names = [each.name for each in problem.resources]
    return None if totals.resources[names.index(NOT_CONNECTED)] > 0.0 else totals


@dataclass(frozen=True, slots=True, eq=False)
class _Core:
    """What is left below an aim: the costs with that limit, their period rows, labels (nodes, labels), and the bound in
    shares of the aim; with its prices and tables, if the graph is not too wide for them."""

    costs: Costs
    periods: np.ndarray
    alive: np.ndarray
    bound: float
    prices: np.ndarray | None = None
    relaxation: Relaxation | None = None


class _Search:
    """The best plan (its totals and period) and the bound so far."""

    def __init__(self, assembled: Assembled, start: Sequence[int] | None, gap: float, time_limit_s: float) -> None:
        begun = time.perf_counter()
        self.assembled, self.start, self.gap, self.time_limit_s = assembled, start, gap, time_limit_s
        self.climbing_until = begun + _CLIMBING_SHARE * time_limit_s
        self.deadline = begun + (1.0 - _SPARING_SHARE) * time_limit_s
        self.shares = request_shares(assembled.workloads)
        self.totals: Totals | None = None
        self.period, self.low = inf, 0.0

    def run(self) -> tuple[Totals, float, float] | None:
        """The answer."""
        problem, share = self.assembled.problem, _FIRST_SHARE * self.time_limit_s
        if self.start is not None:
            self._offer(evaluate(problem, self.start))
        placed = solve(problem, gap=10 * self.gap, time_limit_s=share, incumbent=self.start)
        if placed.status == "infeasible":
            return None
        self._offer(totals_of(problem, placed))
        if not self._done():
            self._climb()
        if not self._done():
            self._improve()
        if self.totals is None:
            return None
        self._spare()
        return self.totals, self.period, min(self.low, self.period)

    def _done(self) -> bool:
        return self.low >= (1.0 - self.gap) * self.period

    def _offer(self, totals: Totals | None) -> None:
        """Take a placement if it keeps the limits and the simulator finds it faster than the best."""
        if totals is None or totals.broken:
            return
        period = max(loads(self.assembled, totals, list(self.shares)).values(), default=0.0)
        if period < self.period:
            self.totals, self.period = totals, period

    def _climb(self) -> None:
        """Look for plans little above the bound, then further up."""
        aim = self.period if self.totals is not None else self._highest()
        core = self._core(aim)
        self.low = max(self.low, min(core.bound, 1.0) * aim)
        self._find(core)
        further = _AIM * self.gap
        while not self._done() and time.perf_counter() < self.climbing_until:
            aim = min(self.period, self.low * (1.0 + further)) if self.low > 0.0 else self.period
            core = self._core(aim)
            self.low = max(self.low, min(core.bound, 1.0) * aim)
            if core.bound <= 1.0:
                found = self._by_cp_sat(core, aim, self.climbing_until)
                if not (found.infeasible or found.labels is not None):
                    return
            further *= _FURTHER

    def _improve(self) -> None:
        """Better the best plan, however far from the bound it is."""
        aim = self.period if self.totals is not None else self._highest()
        core = self._core(aim)
        self.low = max(self.low, min(core.bound, 1.0) * aim)
        if not self._done() and core.bound <= 1.0:
            self._by_cp_sat(core, aim, self.deadline)

    def _highest(self) -> float:
        """More than any plan's period."""
        costs = Costs(replace(self.assembled.problem, resources=self._periods(inf)))
        overhead_s = len(costs.problem.nodes) * float(self.assembled.overhead_s.sum())
        return float(costs.most()[1 : 1 + len(costs.problem.resources)].max()) + overhead_s

    def _periods(self, upper: float) -> tuple[Resource, ...]:
        return busy_times(self.assembled.workloads, self.assembled.cluster, self.shares, upper, _PERIOD)

    def _core(self, aim: float) -> _Core:
        problem = self.assembled.problem
        held = tuple(
            replace(each, weight=0.0, upper=0.0 if each.name == NOT_CONNECTED else each.upper)
            for each in problem.resources
        )
        costs = Costs(replace(problem, resources=(*held, *self._periods(aim)), extra=None, constant=0.0))
        first = 1 + len(held)
        periods = np.array(
            [first <= row.column < first + len(costs.problem.resources) - len(held) for row in costs.rows]
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

        def oracle(prices: np.ndarray) -> Answer:
            priced = costs.price(prices)
            least, labels = relaxation.run(priced)
            bound, period = value(prices, least)
            slope = costs.account(priced, labels).rows - np.where(periods, period, costs.uppers)
            return Answer(bound, bound - float(prices @ slope), slope)

        best = maximise(
            oracle,
            np.where(periods & busy, 1.0 / max(1, (periods & busy).sum()), 0.0),
            tolerance=0.1 * self.gap,
            calls=80,
            reach=0.5,
            stop=lambda bound: bound > 1.0 or time.perf_counter() > self.deadline,
        )
        self.prices = best.multipliers
        least, _ = relaxation.run(costs.price(best.multipliers))
        shift = value(best.multipliers, least)[0] - least
        kept = alive & (relaxation.marginals() + shift <= 1.0 + 1e-9)
        bound = best.bound if kept.any(axis=1).all() else max(best.bound, 1.0 + 1e-9)
        return _Core(costs, periods, kept, bound, best.multipliers, relaxation)

    def _find(self, core: _Core) -> None:
        """First plans: by descent towards aims between the bound and the best plan, and of all their labels."""
        until = time.perf_counter() + _DESCENT_SHARE * self.time_limit_s
        reached: list[tuple[float, np.ndarray]] = []
        better = True
        while better and core.bound <= 1.0 and time.perf_counter() < until and not self._done():
            before = self.period
            reached += self._descend(core, until)
            better = self.period < before * (1.0 - self.gap)
            aim = float(np.sqrt(max(self.low, 1e-3 * self.period) * self.period))
            core = self._core(aim)
            self.low = max(self.low, min(core.bound, 1.0) * aim)
        if self.totals is None or not reached or self._done():
            return
        alive = np.zeros_like(core.alive)
        for _, labels in [*sorted(reached, key=lambda each: each[0])[:_CHOSEN], (0.0, np.array(self.totals.labels))]:
            alive[np.arange(len(labels)), labels] = True
        core = self._core(self.period)
        if core.bound <= 1.0:
            until = time.perf_counter() + _CHOOSING_SHARE * self.time_limit_s
            self._by_cp_sat(replace(core, alive=alive), self.period, until, everything=False)

    def _descend(self, core: _Core, until: float) -> list[tuple[float, np.ndarray]]:
        """Improve answers at prices about the core's towards its aim: their periods, and labels."""
        if core.prices is None or core.relaxation is None:
            return []
        costs, rng, found = core.costs, np.random.default_rng(0), []
        for _ in range(_ANSWERS):
            priced = costs.price((core.prices + 0.01) * rng.lognormal(0.0, _STRAYING, len(core.prices)))
            _, labels = core.relaxation.run(priced)
            dear = core.prices + 0.02
            for _ in range(_DEARER):
                _, labels = improve(costs, priced, dear, labels, core.alive, inf)
                account = costs.account(priced, labels)
                if (account.rows[~core.periods] <= 1.0 + 1e-9).all():
                    totals = evaluate(self.assembled.problem, labels.tolist(), account.wires())
                    self._offer(totals)
                    if not totals.broken:
                        found.append((float(account.rows[core.periods].max()), labels))
                broken = account.rows > 1.0 + 1e-9
                if not broken.any() or time.perf_counter() > until:
                    return found
                dear[broken] *= 2.0
        return found

    def _by_cp_sat(self, core: _Core, aim: float, until: float, *, everything: bool = True) -> Stream:
        """Look for a plan of a period up to the aim. What is found counts at once, and so does what is proven where the
        core has everything below the aim."""
        program = PeriodProgram(core.costs, core.alive, core.periods, self.assembled.overhead_s, self.low, aim)
        if self.totals is not None:
            program.hint(self.totals.labels, self.totals.wires)
        found = program.solve(gap=0.5 * self.gap, time_limit_s=until - time.perf_counter())
        # A plan with other labels than those that are left has a longer period than the aim.
        if everything:
            self.low = max(self.low, min(found.bound, aim))
        if found.labels is not None:
            self._offer(evaluate(self.assembled.problem, found.labels.tolist(), found.wires))
        return found

    def _spare(self) -> None:
        """Of the plans of this period, one of fewer seconds a request."""
        assert self.totals is not None
        problem, known = self.assembled.problem, self.totals
        counted = evaluate(replace(problem, resources=self._periods(inf)), known.labels, known.wires)
        # Components take the rest, and more of them would take more.
        upper = float(counted.resources.max()) * (1.0 + 1e-6)
        limited = replace(problem, resources=(*problem.resources, *self._periods(upper)))
        share = _SPARING_SHARE * self.time_limit_s
        found = totals_of(limited, solve(limited, gap=self.gap, time_limit_s=share, incumbent=known.labels))
        if found is None:
            return
        found = evaluate(problem, found.labels, found.wires)
        period = max(loads(self.assembled, found, list(self.shares)).values(), default=0.0)
        if not found.broken and period <= self.period * (1.0 + 1e-3 * self.gap) and found.objective < known.objective:
            self.totals, self.period = found, period
