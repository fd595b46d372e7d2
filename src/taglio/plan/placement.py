"""Solve a `Problem`: a labelling with its copies, and a proof of how far from the best it can be at most.

1. The limits are priced (multipliers.py); elimination (relaxation.py) gives the Lagrangian exactly, so its maximum is a
   proven lower bound. Labels whose min-marginal lies above what is known to be reachable can be in no better plan.
2. Labellings within the limits come from crossing the priced answers, region by region (crossover.py), and from moves
   and pairs of moves (descent.py).
3. Branching (branching.py) looks for plans barely above the bound, then further up, and proves where there are none.
4. What the gap still allows goes to HiGHS (program.py), over the labels that are left.

Prices are found first with every value split into two-ended parts, then exactly over the labels that this leaves. In a
graph too wide to eliminate even so, edges are cut and priced (loosened.py).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from taglio.plan.branching import branch
from taglio.plan.crossover import cross
from taglio.plan.descent import Descent
from taglio.plan.elimination import TooWide
from taglio.plan.evaluate import evaluate
from taglio.plan.ledger import Ledger
from taglio.plan.loosened import Loosened
from taglio.plan.multipliers import Answer, Prices, maximise
from taglio.plan.prices import BIG, Account, Market
from taglio.plan.problem import Copies, Problem
from taglio.plan.program import Found, Program
from taglio.plan.relaxation import Relaxation

Outcome = Literal["optimal", "time limit", "infeasible"]
GAP = 1e-3
# Tables with more entries are not built.
_WIDEST = 3e6
# How far above the bound of split tables a label may lie to be kept for exact ones.
_SLACKS = (0.015, 0.06)
# Plans within this many gaps of the bound are bettered by HiGHS, for so long at most.
_NEAR, _MIXING_S = 7.0, 0.6
# And so many nodes.
_MIXED = 220
# Of the time there is, what a graph too wide for elimination gets before HiGHS has its turn.
_LOOSENING_SHARE = 0.8
# And what branching gets.
_BRANCHING_SHARE = 0.4
# Gaps above the bound up to which branching looks for plans, in turn.
_AIMS = (0.9, 3.0, 9.0)
# Prices around the best ones at which more answers are asked for: factors for one limit at a time.
_AROUND = (0.85, 1.15)
# Answers that are crossed with each other.
_CROSSED = 20


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The answer. `labels` and `wires` are empty where none was found; `multipliers` are what the last unit of each
    limit, as a share of it, costs in units of the objective."""

    status: Outcome
    objective: float
    bound: float
    labels: tuple[int, ...]
    wires: tuple[dict[int, Copies], ...]
    multipliers: dict[str, float]
    build_s: float
    solve_s: float
    how: str

    @property
    def gap(self) -> float:
        """(objective − bound) / |objective|, at least 0; infinite without a plan."""
        if not self.labels or not np.isfinite(self.objective):
            return float("inf")
        return max(0.0, (self.objective - self.bound) / max(1e-12, abs(self.objective)))


def solve(
    problem: Problem,
    *,
    gap: float = GAP,
    time_limit_s: float = 60.0,
    incumbent: Sequence[int] | None = None,
    multipliers: Mapping[str, float] | None = None,
    method: Literal["auto", "highs"] = "auto",
) -> Placed:
    """The best plan within `gap`, or what is known after `time_limit_s`.

    `incumbent` and `multipliers` (of an earlier `Placed`) start the search near a running plan. The bound holds for
    every plan, whatever the status. Raises BadOption for a problem that contradicts itself.
    """
    return _Search(problem, gap, time.perf_counter() + time_limit_s, incumbent, multipliers).run(method)


class _Search:
    """One run: the best known plan and bound, and what is used to better them."""

    def __init__(
        self,
        problem: Problem,
        gap: float,
        deadline: float,
        incumbent: Sequence[int] | None,
        multipliers: Mapping[str, float] | None,
    ) -> None:
        self.started = time.perf_counter()
        problem.check()
        self.problem, self.gap, self.deadline = problem, gap, deadline
        self.alive = [np.flatnonzero(row) for row in problem.allowed.reshape(len(problem.nodes), -1)]
        self.market = Market(problem)
        self.warm = multipliers or {}
        self.given = None if incumbent is None else np.array(incumbent, dtype=np.intp)
        self.objective, self.bound = np.inf, -np.inf
        self.labels: np.ndarray | None = None
        self.wires: tuple[dict[int, Copies], ...] = ()
        self.multipliers = self._start()
        self.built = self.started
        self.how = ""
        # Labels not in `alive` are in no plan cheaper than the floor.
        self.floor = np.inf
        self.mixed = np.inf
        self.most = self._most()

    def run(self, method: str) -> Placed:
        """The answer."""
        if method == "auto":
            try:
                rough = Relaxation(self.market, self.alive, arity=1, limit=_WIDEST)
            except TooWide:
                rough = None
            self.built = time.perf_counter()
            if rough is None:
                self._by_loosening()
            elif self._by_prices(rough):
                return self._placed("infeasible")
        if not self._done() and time.perf_counter() < self.deadline and self._by_highs() and self.labels is None:
            return self._placed("infeasible")
        return self._placed("optimal" if self._done() else "time limit")

    def _start(self) -> np.ndarray:
        return np.array([float(self.warm.get(row.name, 0.0)) for row in self.market.rows])

    def _done(self) -> bool:
        return bool(np.isfinite(self.objective)) and self.objective - self.bound <= self.gap * abs(self.objective)

    def _offer(self, account: Account) -> None:
        """Take a labelling as the best plan if it is one."""
        uppers = self.market.uppers
        if account.objective < self.objective and (account.rows <= uppers + 1e-9).all():
            self._take(account.labels, account.wires(), account.objective)

    def _take(self, labels: np.ndarray, wires: tuple[dict[int, Copies], ...], objective: float) -> None:
        if self.problem.implications or (self.problem.memory is not None and self.problem.memory.peak):
            totals = evaluate(self.problem, labels.tolist(), wires)
            if totals.broken:
                return
        if objective < BIG / 10:
            self.objective, self.labels, self.wires = objective, labels, wires

    def _by_prices(self, rough: Relaxation) -> bool:
        """Bound and plans by prices; True where the limits are proven to contradict each other."""
        self.how = "prices"
        if (
            self.given is not None
            and self.problem.allowed.reshape(len(self.given), -1)[np.arange(len(self.given)), self.given].all()
        ):
            self._offer(self.market.account(self.market.price(self.multipliers), self.given))
        everything = self.alive
        pool, prices = self._price(rough, 1.0 if rough.exact else 0.3)
        for slack in _SLACKS:
            if self.bound > self.most or self._done() or time.perf_counter() > self.deadline:
                break
            threshold = self.bound + slack * abs(self.bound)
            rough.run(self.market.price(prices.multipliers))
            self._keep(rough.marginals(), threshold)
            relaxation = rough
            if not rough.exact:
                relaxation = self._narrowed()
                pool, prices = self._price(relaxation, 0.05)
            if self._done() or self.bound > self.most:
                break
            if self.bound < threshold * (1.0 - 1e-6) or slack == _SLACKS[-1]:
                self._plans(relaxation, pool, prices)
            # A plan cheaper than the threshold is in reach of the labels kept, and with it every better one.
            if self._done() or self.objective * (1.0 - self.gap) <= threshold:
                break
            self.alive, self.floor = everything, np.inf
        return self.bound > self.most

    def _by_loosening(self) -> None:
        """Bound and plans for a graph too wide to eliminate: some edges are cut and priced instead."""
        self.how = "prices, edges cut"
        market = self.market
        loose = Loosened(market, self.alive)
        ledger = Ledger(market)
        descent = Descent(market, ledger)
        until = min(self.deadline, time.perf_counter() + _LOOSENING_SHARE * (self.deadline - time.perf_counter()))
        while not self._done() and time.perf_counter() < until:
            priced, value, labels = loose.run(self.multipliers)
            self.bound = max(self.bound, value)
            account = market.account(priced, labels)
            self._offer(account)
            if loose.calls % 20 == 1:
                objective, better = descent.improve(priced, self.multipliers, labels, self.alive, good_enough=-np.inf)
                if objective < self.objective:
                    self._offer(market.account(priced, better))
            goal = self.objective if np.isfinite(self.objective) else value + 0.1 * abs(value)
            self.multipliers = loose.step(self.multipliers, account.rows - market.uppers, goal - value)
        self.multipliers = loose.best
        if np.isfinite(self.objective) and not self._done():
            self._keep(loose.marginals(), self.objective - 0.9 * self.gap * abs(self.objective))

    def _narrowed(self) -> Relaxation:
        """The labels that are left with exact tables, or split ones where those are too wide."""
        try:
            return Relaxation(self.market, self.alive, arity=3, limit=_WIDEST)
        except TooWide:
            return Relaxation(self.market, self.alive, arity=1, limit=np.inf)

    def _price(self, relaxation: Relaxation, tolerance: float) -> tuple[list[Account], Prices]:
        """Raise the bound until no more than `tolerance` of the gap can be won."""
        market = self.market
        pool: list[Account] = []

        def oracle(point: np.ndarray) -> Answer:
            priced = market.price(point)
            value, labels = relaxation.run(priced)
            account = market.account(priced, labels)
            pool.append(account)
            self.bound = max(self.bound, min(value, self.floor))
            self._offer(account)
            slope = account.rows - market.uppers
            return Answer(value, value - float(point @ slope), slope)

        def stop(bound: float) -> bool:
            return bound > self.most or self._done() or time.perf_counter() > self.deadline

        reach = 0.25 if not self.multipliers.any() else 0.03
        prices = maximise(oracle, self.multipliers, tolerance=tolerance * self.gap, calls=80, reach=reach, stop=stop)
        self.multipliers = prices.multipliers
        return pool, prices

    def _most(self) -> float:
        """More than any labelling can cost: a bound above it proves that none keeps the limits."""
        ledger_free = self.market.price(np.zeros(len(self.market.rows)))
        values = self.problem.values
        devices = self.market.devices
        total = np.where(self.problem.allowed.reshape(len(self.alive), -1), ledger_free.unary, 0.0).max(axis=1).sum()
        by_value = ledger_free.send_float.max(axis=(1, 2)) + ledger_free.send_int8.max(axis=(1, 2))
        by_value += ledger_free.quantize.max(axis=(1, 2))
        total += devices * by_value.sum()
        total += (np.diff(values.start) * ledger_free.dequantize.max(axis=1, initial=0.0)).sum()
        return float(total + ledger_free.constant) * (1.0 + 1e-9) + 1e-9

    def _plans(self, relaxation: Relaxation, pool: list[Account], prices: Prices) -> None:
        """Plans within the limits from the answers near the best prices."""
        market = self.market
        relaxation.run(market.price(prices.multipliers))
        marginals = relaxation.marginals()
        offered = [labels.copy() for labels in self.alive]
        near = self.bound + 3.0 * self.gap * abs(self.bound)
        for node, labels, line in marginals:
            kept = np.unique(labels[line <= near])
            offered[node] = kept if len(kept) else labels[[int(line.argmin())]]
        ledger = Ledger(market)
        descent = Descent(market, ledger)
        good = self.bound / (1.0 - self.gap) if self.bound > 0 else self.bound
        answers = _Answers(self._worth)
        answers.add(pool)
        if self.labels is not None:
            answers.add([market.account(market.price(prices.multipliers), self.labels)])
        self._near(descent, offered, answers, prices.multipliers, good, 4, crossing=False)
        self._mix(marginals, good)
        self._near(descent, offered, answers, prices.multipliers, good, 1, crossing=True)
        self._mix(marginals, good)
        for turn, factor in enumerate(_AIMS):
            if self._done() or time.perf_counter() > self.deadline:
                return
            if turn == 1:
                answers.add(self._around(relaxation, prices.multipliers))
                self._near(descent, offered, answers, prices.multipliers, good, 3, crossing=True)
                self._mix(marginals, good)
            self._branch(descent, marginals, offered, answers, self.bound + factor * self.gap * abs(self.bound), good)
            self._mix(marginals, good)
        if np.isfinite(self.objective) and not self._done():
            self._keep(marginals, self._cutoff())

    def _around(self, relaxation: Relaxation, multipliers: np.ndarray) -> list[Account]:
        """Answers at prices around the best ones: each leans towards one limit, or away from it."""
        found = []
        for row in np.flatnonzero(multipliers > 1e-9 * (1.0 + abs(self.bound))):
            for factor in _AROUND:
                point = multipliers.copy()
                point[row] *= factor
                priced = self.market.price(point)
                found.append(self.market.account(priced, relaxation.run(priced)[1]))
                self._offer(found[-1])
        return found

    def _cutoff(self) -> float:
        """Plans that cost more do not count: they better the best one by less than the gap."""
        return self.objective - 0.9 * self.gap * abs(self.objective) if np.isfinite(self.objective) else np.inf

    def _branch(
        self,
        descent: Descent,
        marginals: Sequence[tuple[int, np.ndarray, np.ndarray]],
        offered: list[np.ndarray],
        answers: "_Answers",
        aim: float,
        good: float,
    ) -> None:
        """Look for plans up to `aim` by branching; where there is none, that is a bound."""
        aim = min(aim, self.floor)
        alive = list(self.alive)
        for node, labels, line in marginals:
            alive[node] = np.intersect1d(alive[node], labels[line <= min(aim, self._cutoff())])
            if not len(alive[node]):
                self.bound = max(self.bound, min(aim, self._cutoff()))
                return
        market = self.market
        seen = 0

        def show(account: Account, multipliers: np.ndarray) -> None:
            nonlocal seen
            self._offer(account)
            seen += 1
            answers.add([account])
            if seen % 2 == 1:
                self._better(descent, offered, answers, multipliers, account.labels, good, crossing=seen % 4 == 1)

        now = time.perf_counter()
        until = now + _BRANCHING_SHARE * (self.deadline - now)
        bound = branch(
            market,
            alive,
            self.multipliers,
            cutoff=lambda: min(aim, self._cutoff()),
            show=show,
            deadline=until,
        )
        self.bound = max(self.bound, bound)

    def _mix(self, marginals: Sequence[tuple[int, np.ndarray, np.ndarray]], good: float) -> None:
        """Better the best plan by HiGHS, where it is near the bound: the nodes of which a second label raises the bound
        least may change, the others stay."""
        near = self.objective - self.bound <= _NEAR * self.gap * abs(self.bound)
        if self._done() or self.labels is None or not near or self.objective >= self.mixed:
            return
        self.mixed = self.objective
        seconds = np.sort([np.partition(np.unique(line), 1)[1] for _, _, line in marginals if np.ptp(line) > 0.0])
        reach = self.bound + 0.4 * self.gap * abs(self.bound)
        reach = min(reach, seconds[_MIXED]) if len(seconds) > _MIXED else reach
        offered = [self.labels[[node]] for node in range(len(self.alive))]
        for node, labels, line in marginals:
            offered[node] = np.union1d(labels[line <= reach], offered[node])
        limit = min(_MIXING_S, self.deadline - time.perf_counter())
        program = Program(self.market, offered)
        self._improve(program.solve(time_limit_s=limit, gap=0.2 * self.gap, cutoff=self.objective, target=good))

    def _improve(self, found: Found) -> None:
        if found.labels is not None:
            objective = evaluate(self.problem, found.labels.tolist(), found.wires).objective
            if objective < self.objective:
                self._take(found.labels, found.wires, objective)

    def _worth(self, account: Account) -> float:
        """The objective, and what the limits are broken by."""
        over = float(np.maximum(0.0, account.rows - self.market.uppers).sum())
        return account.objective + abs(self.bound) * over

    def _near(
        self,
        descent: Descent,
        offered: list[np.ndarray],
        answers: "_Answers",
        multipliers: np.ndarray,
        good: float,
        starts: int,
        *,
        crossing: bool,
    ) -> None:
        """Better the few answers that are nearest to a plan, then the best plan."""
        for labels in answers.nearest()[:starts]:
            if self._done():
                return
            self._better(descent, offered, answers, multipliers, labels, good, crossing=crossing)
        if crossing and self.labels is not None and not self._done():
            self._better(descent, offered, answers, multipliers, self.labels, good, crossing=True)

    def _better(
        self,
        descent: Descent,
        offered: list[np.ndarray],
        answers: "_Answers",
        multipliers: np.ndarray,
        labels: np.ndarray,
        good: float,
        *,
        crossing: bool,
    ) -> None:
        """Take regions of other answers if `crossing`, then single nodes, from `labels` on."""
        market, priced = self.market, self.market.price(multipliers)
        if crossing:
            labels = cross(market, descent.ledger, descent.near, priced, multipliers, labels, answers.nearest())
        objective, labels = descent.improve(priced, multipliers, labels, offered, good_enough=good)
        if objective < self.objective:
            self._offer(self.market.account(priced, labels))

    def _keep(self, marginals: Sequence[tuple[int, np.ndarray, np.ndarray]], threshold: float) -> None:
        """Drop labels that every plan up to `threshold` does without."""
        kept = list(self.alive)
        for node, labels, line in marginals:
            kept[node] = np.intersect1d(self.alive[node], labels[line <= threshold])
            if not len(kept[node]):
                # No plan is as cheap as the threshold: that is a bound as well.
                self.bound = max(self.bound, min(threshold, self.floor))
                return
        self.alive, self.floor = kept, min(self.floor, threshold)

    def _by_highs(self) -> bool:
        """HiGHS over the labels that are left; True where it proves that no plan is."""
        self.how = f"{self.how}, HiGHS" if self.how else "HiGHS"
        program = Program(self.market, self.alive)
        found = program.solve(
            time_limit_s=self.deadline - time.perf_counter(), gap=0.5 * self.gap, cutoff=self.objective
        )
        self._improve(found)
        # Plans that need a label that was dropped cost more than the floor; the cutoff hides what is no better.
        proven = min(found.bound, self.floor, self.objective)
        if np.isfinite(proven):
            self.bound = max(self.bound, proven)
        return found.infeasible and not np.isfinite(self.floor)

    def _placed(self, status: Outcome) -> Placed:
        now = time.perf_counter()
        names = [row.name for row in self.market.rows]
        labels = () if self.labels is None or status == "infeasible" else tuple(self.labels.tolist())
        return Placed(
            status,
            float(self.objective),
            float(min(self.bound, self.objective)),
            labels,
            self.wires if labels else (),
            dict(zip(names, self.multipliers.tolist(), strict=False)),
            self.built - self.started,
            now - self.built,
            self.how,
        )


class _Answers:
    """Labellings of the Lagrangian, those first that are nearest to a plan."""

    def __init__(self, worth: Callable[[Account], float]) -> None:
        self.worth = worth
        self.known: set[bytes] = set()
        self.kept: list[tuple[float, int, np.ndarray]] = []

    def add(self, accounts: Sequence[Account]) -> None:
        """Take the new ones in; the worst are forgotten."""
        for account in accounts:
            key = account.labels.tobytes()
            if key not in self.known:
                self.known.add(key)
                self.kept.append((self.worth(account), len(self.known), account.labels))
        self.kept = sorted(self.kept, key=lambda each: each[:2])[:_CROSSED]

    def nearest(self) -> list[np.ndarray]:
        """Labels, the nearest first."""
        return [labels for _, _, labels in self.kept]
