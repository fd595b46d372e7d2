"""What is known of a problem while it is solved: the best plan, the bound, the labels left. Searches nothing."""

import time

import numpy as np

from taglio.plan.evaluate import evaluate
from taglio.plan.prices import BIG, Account, Market
from taglio.plan.problem import Copies, Problem
from taglio.plan.program import Found


class Known:
    """The best plan (no labels: none yet), the labels that were given, and the proven bound.

    Labels that are not `alive`, a mask (nodes, labels), are in no plan cheaper than `floor`, and no plan costs more
    than `most`; `mixed` is the objective that HiGHS last tried to better by mixing.
    """

    def __init__(self, problem: Problem, gap: float, deadline: float) -> None:
        self.started = time.perf_counter()
        problem.check()
        self.problem, self.gap, self.deadline = problem, gap, deadline
        self.alive = problem.allowed.reshape(len(problem.nodes), -1)
        self.market = Market(problem)
        self.objective, self.bound = np.inf, -np.inf
        self.labels: np.ndarray | None = None
        self.given: np.ndarray | None = None
        self.wires: tuple[dict[int, Copies], ...] = ()
        self.floor = self.most = np.inf
        self.mixed = np.inf

    def done(self) -> bool:
        """Whether the gap is small enough."""
        return bool(np.isfinite(self.objective)) and self.objective - self.bound <= self.gap * abs(self.objective)

    def offer(self, account: Account) -> None:
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

    def cutoff(self) -> float:
        """Plans that cost more do not count: they better the best one by less than the gap."""
        return self.objective - 0.9 * self.gap * abs(self.objective) if np.isfinite(self.objective) else np.inf

    def improve(self, found: Found) -> None:
        """Take what HiGHS found if it is better."""
        if found.labels is not None:
            objective = evaluate(self.problem, found.labels.tolist(), found.wires).objective
            if objective < self.objective:
                self._take(found.labels, found.wires, objective)

    def worth(self, account: Account) -> float:
        """The objective, and what the limits are broken by."""
        over = float(np.maximum(0.0, account.rows - self.market.uppers).sum())
        return account.objective + abs(self.bound) * over

    def keep(self, marginals: np.ndarray, threshold: float) -> None:
        """Drop labels that every plan up to `threshold` does without, by lower bounds (nodes, labels)."""
        kept = self.alive & (marginals <= threshold)
        if not kept.any(axis=1).all():
            # No plan is as cheap as the threshold: that is a bound as well.
            self.bound = max(self.bound, min(threshold, self.floor))
            return
        self.alive, self.floor = kept, min(self.floor, threshold)
