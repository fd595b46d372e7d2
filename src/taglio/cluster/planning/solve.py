"""Solve a `Problem`: find labels and copies, and a proven lower bound on the cost of any.

1. The limits are priced (cutting_planes.py), and elimination (relaxation.py) gives a lower bound on the rest (Lagrange).
2. Local search turns the answers at the best prices, and at prices nearby, into plans: the first ones break a limit or
   leave part of one unused, and those at other prices place groups of blocks differently.

If the graph is too wide to eliminate, edges are relaxed and priced like limits (`EdgeRelaxation`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from taglio.cluster.planning.costs import BIG, Account, Costs
from taglio.cluster.planning.cutting_planes import Plane, maximise
from taglio.cluster.planning.elimination import TooWide
from taglio.cluster.planning.improve import improve
from taglio.cluster.planning.problem import Kind, Problem
from taglio.cluster.planning.relaxation import WIDEST, EdgeRelaxation, Relaxation
from taglio.plan.result import GAP

Outcome = Literal["optimal", "time limit", "infeasible"]
# Answers that local search begins from.
_ANSWERS = 24


@dataclass(frozen=True, slots=True, eq=False)
class SolvedProblem:
    """The answer: `labels`, empty if none were found, and `copies` (value, device)."""

    status: Outcome
    objective: float
    bound: float
    labels: tuple[int, ...]
    copies: np.ndarray

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
    patience_s: float = 0.0,
    incumbent: Sequence[int] | None = None,
) -> SolvedProblem:
    """The best plan within `gap`, or the best found after `time_limit_s`; while there is none, up to `patience_s`.

    `incumbent` starts the search near a running plan. The bound is valid for every plan, whatever the status. Nodes
    must be in topological order and have an allowed label; only seconds may be negative.
    """
    begun = time.perf_counter()
    ends_s = begun + time_limit_s
    return _PricedSearch(problem, gap, ends_s, max(ends_s, begun + patience_s), incumbent).run()


class Undecided(Exception):
    """Time was up before a plan was found, or shown to be impossible."""


class _PricedSearch:
    """State of the search: best plan and bound. No plan costs more than `most`."""

    def __init__(
        self, problem: Problem, gap: float, ends_s: float, latest_s: float, incumbent: Sequence[int] | None
    ) -> None:
        self.problem, self.gap, self.ends_s, self.latest_s = problem, gap, ends_s, latest_s
        self.costs = Costs(problem)
        self.alive = self.costs.possible()
        self.objective, self.bound = np.inf, -np.inf
        self.labels, self.copies = np.zeros(0, dtype=np.intp), np.zeros((0, self.costs.devices), dtype=np.intp)
        self.most = float(self.costs.most()[0]) * (1.0 + 1e-9) + 1e-9
        self.given = None if incumbent is None else np.array(incumbent, dtype=np.intp)
        self.multipliers = np.zeros(len(self.costs.rows))

    def run(self) -> SolvedProblem:
        """Run all steps and return the answer."""
        if not self.alive.any(axis=1).all():  # whatever else is chosen, such a node breaks a limit
            return SolvedProblem("infeasible", np.inf, np.inf, (), self.copies)
        if self.given is not None and self.alive[np.arange(len(self.given)), self.given].all():
            self._offer(self.given)
        try:
            relaxation = Relaxation(self.costs, self.alive, limit=WIDEST)
        except TooWide:
            self._by_edge_relaxation()
        else:
            self._by_prices(relaxation)
        if not len(self.labels):
            self._offer_simple()
        infeasible = self.bound > self.most
        labels = () if infeasible else tuple(self.labels.tolist())
        return SolvedProblem(
            "infeasible" if infeasible else "optimal" if self._done() else "time limit",
            float(self.objective),
            float(min(self.bound, self.objective)),
            labels,
            self.copies,
        )

    @property
    def deadline(self) -> float:
        """When to stop: later while there is no plan."""
        return self.ends_s if len(self.labels) else self.latest_s

    def _done(self) -> bool:
        """Whether the gap is small enough."""
        return bool(np.isfinite(self.objective)) and self.objective - self.bound <= self.gap * abs(self.objective)

    def _over(self) -> bool:
        """Whether all is proven, or time is up."""
        return self._done() or self.bound > self.most or time.perf_counter() > self.deadline

    def _offer(self, labels: np.ndarray) -> None:
        """Offer labels with the copies that are cheapest at the prices."""
        self._keep(self.costs.account(self.costs.price(self.multipliers), labels))

    def _keep(self, account: Account) -> None:
        """Keep a labelling if it is the best plan."""
        if account.objective >= min(self.objective, BIG / 10) or (account.rows > self.costs.uppers + 1e-9).any():
            return
        memory = self.problem.memory
        unpriced = bool(self.problem.implications) or (memory is not None and memory.peak)
        if not unpriced or not self.costs.totals(account.labels, account.copies).broken:
            self.objective, self.labels, self.copies = account.objective, account.labels, account.copies

    def _offer_simple(self) -> None:
        """Offer everything in float on one device, or as close as allowed: a fallback if the search found no plan."""
        allowed, seconds = self.problem.allowed, self.problem.seconds
        floats = [form.reads == Kind.FLOAT and form.writes == Kind.FLOAT for form in self.problem.forms]
        for device in range(self.costs.devices):
            off = 2.0 * (np.arange(self.costs.devices) != device)[:, None] + ~np.array(floats)
            cost = np.where(allowed, seconds / max(1e-12, float(seconds.max())) + 2.0 * off, np.inf)
            self._offer(cost.reshape(len(allowed), -1).argmin(axis=1))

    def _by_prices(self, relaxation: Relaxation) -> None:
        """Find the bound by cutting planes, and plans by local search from answers at the best prices and nearby."""

        def oracle(point: np.ndarray) -> Plane:
            answer, account = relaxation.answer(point)
            self.bound = max(self.bound, answer.bound)
            self._keep(account)
            return answer

        self.multipliers = maximise(
            oracle,
            self.multipliers,
            tolerance=0.15 * self.gap,
            calls=80,
            stop=lambda bound: bound > self.most or self._over(),
        ).multipliers
        prices, rng = self.multipliers, np.random.default_rng(0)
        for number in range(_ANSWERS):
            if self._over():
                return
            _, account = relaxation.answer(prices)
            self._keep(account)
            self._improve(account.labels, self.multipliers)
            if number % 4 == 3 and len(self.labels):
                self._improve(self.labels, self.multipliers)
            prices = (self.multipliers + 0.01 * abs(self.bound)) * rng.lognormal(0.0, 0.3, len(self.multipliers))

    def _by_edge_relaxation(self) -> None:
        """Find bound and plans for a graph too wide to eliminate."""
        costs, relaxed = self.costs, EdgeRelaxation(self.costs, self.alive)
        self._offer_simple()
        while not self._over():
            priced, value, labels = relaxed.run(self.multipliers)
            self.bound = max(self.bound, value)
            account = costs.account(priced, labels)
            self._keep(account)
            if relaxed.calls % 20 == 1:  # one answer in twenty is improved
                for start in [labels, self.labels] if len(self.labels) else [labels]:
                    self._improve(start, self.multipliers)
            goal = self.objective if np.isfinite(self.objective) else value + 0.1 * abs(value)
            self.multipliers = relaxed.step(self.multipliers, account.rows - costs.uppers, goal - value)
        self.multipliers = relaxed.best

    def _improve(self, labels: np.ndarray, multipliers: np.ndarray) -> None:
        good = self.bound / (1.0 - self.gap) if self.bound > 0 else self.bound
        priced = self.costs.price(multipliers)
        objective, labels = improve(self.costs, priced, multipliers, labels, self.alive, good)
        if objective < self.objective:
            self._keep(self.costs.account(priced, labels))
