"""Solve a `Problem`: find labels and copies, and a proven lower bound on the cost of any.

1. Lagrangian bound: the limits are priced (cutting_planes.py) and the rest is solved exactly by elimination
   (relaxation.py); first with every value split into two-ended parts, then exactly over the labels that a better plan
   can still use: those whose min-marginal is below a cost known to be attainable.
2. Branch and bound (branch_and_bound.py) searches for plans just above the bound, then further up, and proves where
   there are none; its near-feasible answers are improved by local search, and HiGHS chooses the copies of leaves.

If the graph is too wide to eliminate, edges are relaxed and priced like limits (`EdgeRelaxation`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from taglio.plan.branch_and_bound import Branching, cheapest_copies, improve
from taglio.plan.costs import BIG, Account, Costs
from taglio.plan.cutting_planes import Answer, maximise
from taglio.plan.elimination import TooWide
from taglio.plan.problem import Kind, Problem, surrounded
from taglio.plan.relaxation import WIDEST, EdgeRelaxation, Relaxation, tightest

Outcome = Literal["optimal", "time limit", "infeasible"]
GAP = 5e-3
# Multipliers are improved until the possible gain is below this multiple of the gap: for split and for exact tables.
_ROUGH, _FINE = 3.0, 0.15
# Relative distance above the bound of split tables within which labels are kept for exact tables.
_SLACKS = (0.015, 0.06, 0.25, np.inf)
# In a graph too wide to eliminate, one answer in this many is improved.
_EVERY = 20
# Share of branching time that may go to improving its answers.
_IMPROVING_SHARE = 0.25
# Gaps above the bound within which branching first searches for plans, and the factor by which that grows each time.
_AIM, _FURTHER = 0.9, 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
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
    incumbent: Sequence[int] | None = None,
) -> Placed:
    """The best plan within `gap`, or the best found after `time_limit_s`.

    `incumbent` starts the search near a running plan. The bound is valid for every plan, whatever the status. Nodes
    must be in topological order and have an allowed label; only seconds may be negative.
    """
    return _Search(problem, gap, time.perf_counter() + time_limit_s, incumbent).run()


class _Search:
    """State of the search: best plan, bound and remaining labels.

    Labels that are not `alive`, a mask (nodes, labels), are in no plan cheaper than `floor`, and no plan costs more
    than `most`.
    """

    def __init__(self, problem: Problem, gap: float, deadline: float, incumbent: Sequence[int] | None) -> None:
        self.problem, self.gap, self.deadline = problem, gap, deadline
        self.allowed = self.alive = problem.allowed.reshape(len(problem.nodes), -1)
        self.costs = Costs(problem)
        self.objective, self.bound = np.inf, -np.inf
        self.labels, self.copies = np.zeros(0, dtype=np.intp), np.zeros((0, self.costs.devices), dtype=np.intp)
        self.floor, self.most = np.inf, float(self.costs.most()[0]) * (1.0 + 1e-9) + 1e-9
        self.given = None if incumbent is None else np.array(incumbent, dtype=np.intp)
        self.multipliers = np.zeros(len(self.costs.rows))

    def run(self) -> Placed:
        """Run all steps and return the answer."""
        if self.given is not None and self.allowed[np.arange(len(self.given)), self.given].all():
            self._offer(self.given)
        try:
            rough = Relaxation(self.costs, self.alive, arity=1, limit=WIDEST)
        except TooWide:
            self._by_edge_relaxation()
        else:
            self._by_prices(rough)
        if not len(self.labels):
            self._offer_simple()
        infeasible = self.bound > self.most
        labels = () if infeasible else tuple(self.labels.tolist())
        return Placed(
            "infeasible" if infeasible else "optimal" if self._done() else "time limit",
            float(self.objective),
            float(min(self.bound, self.objective)),
            labels,
            self.copies,
        )

    def _done(self) -> bool:
        """Whether the gap is small enough."""
        return bool(np.isfinite(self.objective)) and self.objective - self.bound <= self.gap * abs(self.objective)

    def _over(self) -> bool:
        """Whether all is proven, or time is up."""
        return self._done() or self.bound > self.most or time.perf_counter() > self.deadline

    def _cutoff(self) -> float:
        """Cost above which plans are ignored: they improve on the best by less than the gap, or break a strict edge."""
        return self.objective - 0.9 * self.gap * abs(self.objective) if len(self.labels) else BIG / 10

    def _offer(self, labels: np.ndarray) -> None:
        """Offer labels with the copies that are cheapest at the prices."""
        self._keep(self.costs.account(self.costs.price(self.multipliers), labels))

    def _keep(self, account: Account) -> None:
        """Keep a labelling if it is the best plan."""
        if account.objective < self.objective and (account.rows <= self.costs.uppers + 1e-9).all():
            self._take(account.labels, account.copies, account.objective)

    def _take(self, labels: np.ndarray, copies: np.ndarray, objective: float) -> None:
        memory = self.problem.memory
        looked_at = bool(self.problem.implications) or (memory is not None and memory.peak)
        if looked_at and self.costs.totals(labels, copies).broken:
            return
        if objective < min(self.objective, BIG / 10):
            self.objective, self.labels, self.copies = objective, labels, copies

    def _offer_simple(self) -> None:
        """Offer everything in float on one device, or as close as allowed: a fallback if the search found no plan."""
        allowed, seconds = self.problem.allowed, self.problem.seconds
        floats = [form.reads == Kind.FLOAT and form.writes == Kind.FLOAT for form in self.problem.forms]
        for device in range(self.costs.devices):
            off = 2.0 * (np.arange(self.costs.devices) != device)[:, None] + ~np.array(floats)
            cost = np.where(allowed, seconds / max(1e-12, float(seconds.max())) + 2.0 * off, np.inf)
            self._offer(cost.reshape(len(allowed), -1).argmin(axis=1))

    def _by_prices(self, rough: Relaxation) -> None:
        """Find bound and plans by prices."""
        everything = self.alive
        self._price(rough, 1.0 if rough.exact else _ROUGH)
        for slack in _SLACKS:
            # A given plan beyond this slack but near: the labels that it needs are kept right away.
            above = self.objective * (1.0 - self.gap) - self.bound
            if self.given is not None and slack * abs(self.bound) < above < _SLACKS[2] * abs(self.bound):
                continue
            if self._over():
                return
            threshold = min(self.bound + slack * abs(self.bound), self.objective)
            rough.run(self.costs.price(self.multipliers))
            self._drop(rough.marginals(), threshold)
            relaxation = rough
            if not rough.exact:
                relaxation = tightest(self.costs, self.alive)
                self._price(relaxation, _FINE)
            if not self._over() and (self.bound < threshold * (1.0 - 1e-6) or slack == _SLACKS[-1]):
                self._find(relaxation)
            # The labels kept contain a plan cheaper than the threshold, and hence every better one.
            if self._done() or self.objective * (1.0 - self.gap) <= threshold:
                return
            self.alive, self.floor = everything, np.inf

    def _drop(self, marginals: np.ndarray, threshold: float) -> None:
        """Drop labels that no plan up to `threshold` uses, by lower bounds (nodes, labels)."""
        kept = self.alive & (marginals <= threshold)
        if kept.any(axis=1).all():
            self.alive, self.floor = kept, min(self.floor, threshold)
        else:  # No plan is as cheap as the threshold, which is therefore a bound.
            self.bound = max(self.bound, min(threshold, self.floor))

    def _by_edge_relaxation(self) -> None:
        """Find bound and plans for a graph too wide to eliminate."""
        costs, relaxed = self.costs, EdgeRelaxation(self.costs, self.alive)
        self._offer_simple()
        while not self._over():
            priced, value, labels = relaxed.run(self.multipliers)
            self.bound = max(self.bound, value)
            account = costs.account(priced, labels)
            self._keep(account)
            if relaxed.calls % _EVERY == 1:
                for start in [labels, self.labels] if len(self.labels) else [labels]:
                    self._improve(start, self.multipliers, self.alive)
            goal = self.objective if np.isfinite(self.objective) else value + 0.1 * abs(value)
            self.multipliers = relaxed.step(self.multipliers, account.rows - costs.uppers, goal - value)
        self.multipliers = relaxed.best

    def _price(self, relaxation: Relaxation, tolerance: float) -> None:
        """Raise the bound until the possible gain is below `tolerance` gaps."""

        def oracle(point: np.ndarray) -> Answer:
            answer, account = relaxation.answer(point)
            self.bound = max(self.bound, min(answer.bound, self.floor))
            self._keep(account)
            return answer

        reach = 0.25 if not self.multipliers.any() else 0.03
        self.multipliers = maximise(
            oracle,
            self.multipliers,
            tolerance=tolerance * self.gap,
            calls=80,
            reach=reach,
            stop=lambda bound: bound > self.most or self._over(),
        ).multipliers

    def _find(self, relaxation: Relaxation) -> None:
        """Find plans within the limits: branch for plans just above the bound, then further up."""
        relaxation.run(self.costs.price(self.multipliers))
        marginals, aim = relaxation.marginals(), _AIM
        while not self._over() and self.bound < self.floor:
            if not self._branch(marginals, self.bound + aim * self.gap * abs(self.bound)):
                return
            aim *= _FURTHER

    def _improve(self, labels: np.ndarray, multipliers: np.ndarray, offered: np.ndarray) -> None:
        good = self.bound / (1.0 - self.gap) if self.bound > 0 else self.bound
        priced = self.costs.price(multipliers)
        objective, labels = improve(self.costs, priced, multipliers, labels, offered, good)
        if objective < self.objective:
            self._keep(self.costs.account(priced, labels))

    def _branch(self, marginals: np.ndarray, aim: float) -> bool:
        """Search for plans up to `aim` by branching; if there is none, `aim` is a bound. False if undecided."""
        aim = min(aim, self.floor)
        alive = self.alive & (marginals <= min(aim, self._cutoff()))
        if not alive.any(axis=1).all():
            self.bound = max(self.bound, min(aim, self._cutoff()))
            return True
        begun, spent = time.perf_counter(), 0.0

        def show(account: Account, multipliers: np.ndarray, marginals: np.ndarray) -> None:
            nonlocal spent
            self._keep(account)
            now = time.perf_counter()
            if spent <= _IMPROVING_SHARE * (now - begun):
                # By labels with a bound near the least one, and the best of every node.
                least = float(marginals.min())
                near = np.maximum(least + 3.0 * self.gap * abs(least), marginals.min(axis=1))
                self._improve(account.labels, multipliers, marginals <= near[:, None])
                spent += time.perf_counter() - now

        def close(left: np.ndarray) -> bool:
            labels = left.argmax(axis=1)
            if surrounded(self.problem, labels):
                return True
            copies, bound = cheapest_copies(
                self.costs, labels, cutoff=min(aim, self._cutoff()), time_limit_s=self.deadline - time.perf_counter()
            )
            if copies is not None:
                self._take(labels, copies, self.costs.totals(labels, copies).objective)
            return bound >= min(aim, self._cutoff())

        branching = Branching(self.costs, lambda: min(aim, self._cutoff()), show, close, self.deadline)
        bound = branching.run(alive, self.multipliers)
        self.bound = max(self.bound, bound)
        return bound >= min(aim, self._cutoff())
