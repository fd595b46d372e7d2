"""Solve a `Problem`: a labelling with its copies, and a proof of how far from the best it can be at most.

1. The limits are priced (multipliers.py); elimination (relaxation.py) gives the Lagrangian exactly, so its maximum is a
   proven lower bound. Labels whose min-marginal lies above what is known to be reachable can be in no better plan.
2. Labellings within the limits come from crossing the priced answers, region by region (crossover.py), from moves and
   pairs of moves (descent.py), and where that is not enough from fixing part of the network and pricing the rest
   (dive.py).
3. Branching (branching.py) looks for plans barely above the bound, then further up, and proves where there are none.
4. What the gap still allows goes to HiGHS (program.py), over the labels that are left.

Prices are found first with every value split into two-ended parts, then exactly over the labels that this leaves. In a
graph too wide to eliminate even so, edges are cut and priced (loosened.py).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from taglio.plan.descent import Descent
from taglio.plan.elimination import TooWide
from taglio.plan.finding import Finder
from taglio.plan.known import Known
from taglio.plan.ledger import Ledger
from taglio.plan.loosened import Loosened
from taglio.plan.multipliers import Answer, Prices, maximise
from taglio.plan.prices import Account
from taglio.plan.problem import Copies, Kind, Problem
from taglio.plan.program import Program
from taglio.plan.relaxation import WIDEST, Relaxation, tightest

Outcome = Literal["optimal", "time limit", "infeasible"]
GAP = 1e-3
# Prices are found until no more than so many gaps can be won: with split tables, with exact ones.
_ROUGH, _FINE = 3.0, 0.15
# How far above the bound of split tables a label may lie to be kept for exact ones.
_SLACKS = (0.015, 0.06, 0.25, np.inf)
# Of the time there is, what a graph too wide for elimination gets before HiGHS has its turn.
_LOOSENING_SHARE = 0.8
# Pairs of labels at the two ends of an edge, over all edges, beyond which HiGHS's presolve alone takes minutes,
# whatever time it is given.
_MOST_PAIRS = 150_000


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


class _Search(Known):
    """One run: what is known, and how it is bettered."""

    def __init__(
        self,
        problem: Problem,
        gap: float,
        deadline: float,
        incumbent: Sequence[int] | None,
        multipliers: Mapping[str, float] | None,
    ) -> None:
        super().__init__(problem, gap, deadline)
        self.warm = multipliers or {}
        self.given = None if incumbent is None else np.array(incumbent, dtype=np.intp)
        self.multipliers = self._start()
        self.built = self.started
        self.how = ""
        self.most = self._most()

    def run(self, method: str) -> Placed:
        """The answer."""
        if method == "auto":
            self._offer_given()
            try:
                rough = Relaxation(self.market, self.alive, arity=1, limit=WIDEST)
            except TooWide:
                rough = None
            self.built = time.perf_counter()
            if rough is None:
                self._by_loosening()
            elif self._by_prices(rough):
                return self._placed("infeasible")
        if not self.done() and time.perf_counter() < self.deadline and self._by_highs() and self.labels is None:
            return self._placed("infeasible")
        if self.labels is None:
            self._offer_simple()
        return self._placed("optimal" if self.done() else "time limit")

    def _offer_given(self) -> None:
        if self.given is not None and self._allowed(self.given):
            self.offer(self.market.account(self.market.price(self.multipliers), self.given))

    def _offer_simple(self) -> None:
        """Everything in float on one device, or as near to it as is allowed: a plan where the search found none."""
        allowed, seconds = self.problem.allowed, self.problem.seconds
        floats = [form.reads == Kind.FLOAT and form.writes == Kind.FLOAT for form in self.problem.forms]
        for device in range(self.market.devices):
            off = 2.0 * (np.arange(self.market.devices) != device)[:, None] + ~np.array(floats)
            cost = np.where(allowed, seconds / max(1e-12, float(seconds.max())) + 2.0 * off, np.inf)
            labels = cost.reshape(len(allowed), -1).argmin(axis=1)
            self.offer(self.market.account(self.market.price(self.multipliers), labels))

    def _allowed(self, labels: np.ndarray) -> bool:
        table = self.problem.allowed.reshape(len(labels), -1)
        return bool(table[np.arange(len(labels)), labels].all())

    def _start(self) -> np.ndarray:
        return np.array([float(self.warm.get(row.name, 0.0)) for row in self.market.rows])

    def _by_prices(self, rough: Relaxation) -> bool:
        """Bound and plans by prices; True where the limits are proven to contradict each other."""
        self.how = "prices"
        everything = self.alive
        pool, prices = self._price(rough, 1.0 if rough.exact else _ROUGH)
        for slack in _SLACKS:
            if self._given_beyond(slack):
                continue
            if self.bound > self.most or self.done() or time.perf_counter() > self.deadline:
                break
            threshold = min(self.bound + slack * abs(self.bound), self.objective)
            rough.run(self.market.price(prices.multipliers))
            self.keep(rough.marginals(), threshold)
            relaxation = rough
            if not rough.exact:
                relaxation = tightest(self.market, self.alive)
                pool, prices = self._price(relaxation, _FINE)
            if self.done() or self.bound > self.most:
                break
            if self.bound < threshold * (1.0 - 1e-6) or slack == _SLACKS[-1]:
                Finder(self).run(relaxation, pool, prices)
            # A plan cheaper than the threshold is in reach of the labels kept, and with it every better one.
            if self.done() or self.objective * (1.0 - self.gap) <= threshold:
                break
            self.alive, self.floor = everything, np.inf
        return self.bound > self.most

    def _given_beyond(self, slack: float) -> bool:
        """Whether a given plan lies beyond this slack and not far: then the labels that it needs are kept at once."""
        above = self.objective * (1.0 - self.gap) - self.bound
        return self.given is not None and slack * abs(self.bound) < above < _SLACKS[2] * abs(self.bound)

    def _by_loosening(self) -> None:
        """Bound and plans for a graph too wide to eliminate: some edges are cut and priced instead."""
        self.how = "prices, edges cut"
        market = self.market
        loose = Loosened(market, self.alive)
        ledger = Ledger(market)
        descent = Descent(market, ledger)
        self._offer_simple()
        until = min(self.deadline, time.perf_counter() + _LOOSENING_SHARE * (self.deadline - time.perf_counter()))
        while not self.done() and time.perf_counter() < until:
            priced, value, labels = loose.run(self.multipliers)
            self.bound = max(self.bound, value)
            account = market.account(priced, labels)
            self.offer(account)
            if loose.calls % 20 == 1:
                for start in (labels, self.labels):
                    if start is None:
                        continue
                    found, better = descent.improve(priced, self.multipliers, start, self.alive, good_enough=-np.inf)
                    if found < self.objective:
                        self.offer(market.account(priced, better))
            goal = self.objective if np.isfinite(self.objective) else value + 0.1 * abs(value)
            self.multipliers = loose.step(self.multipliers, account.rows - market.uppers, goal - value)
        self.multipliers = loose.best
        if np.isfinite(self.objective) and not self.done():
            self.keep(loose.marginals(), self.objective - 0.9 * self.gap * abs(self.objective))

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
            self.offer(account)
            slope = account.rows - market.uppers
            return Answer(value, value - float(point @ slope), slope)

        def stop(bound: float) -> bool:
            return bound > self.most or self.done() or time.perf_counter() > self.deadline

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

    def _by_highs(self) -> bool:
        """HiGHS over the labels that are left; True where it proves that no plan is."""
        counts = self.alive.sum(axis=1)
        producer, reader = self.market.producer[self.market.edge_value], self.market.readers
        inner = (producer >= 0) & (reader >= 0)
        if int((counts[producer[inner]] * counts[reader[inner]]).sum()) > _MOST_PAIRS:
            return False
        self.how = f"{self.how}, HiGHS" if self.how else "HiGHS"
        program = Program(self.market, self.alive)
        found = program.solve(
            time_limit_s=self.deadline - time.perf_counter(), gap=0.5 * self.gap, cutoff=self.objective
        )
        self.improve(found)
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
