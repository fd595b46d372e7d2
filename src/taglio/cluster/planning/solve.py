"""Solve a `Problem`: find labels and copies, and a proven lower bound on the cost of any.

1. The limits are priced (cutting_planes.py), and the priced problem is solved by elimination (relaxation.py): the best
   prices give the highest lower bound. First every value is split into parts of one edge; then larger tables hold the
   labels that plans near the bound can use.
2. A dive: the answer nearest to a plan is improved by local search (descent.py), one more block is fixed to a device,
   and the prices are improved again. Where no better plan is left, the last block may be on every other device instead.
3. If the plan is still far above the bound, CP-SAT (cp_sat.py) looks for better ones among the labels that these can
   use, and raises the bound. It also knows what has no price: live activations, and labels that their neighbours
   forbid.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from taglio.cluster.planning.costs import BIG, Account, Costs
from taglio.cluster.planning.cp_sat import Program
from taglio.cluster.planning.cutting_planes import Plane, Prices, maximise
from taglio.cluster.planning.descent import improvements
from taglio.cluster.planning.problem import Kind, Problem
from taglio.cluster.planning.relaxation import Relaxation, pairs, tightest
from taglio.errors import BadOption
from taglio.plan.result import GAP

Outcome = Literal["optimal", "time limit", "infeasible"]
# Prices are improved until the possible gain is below this share of the gap; during a dive, of the bound, and by at
# most so many calls.
_FINE, _ROUGH, _CALLS = 0.15, 1e-4, 15
# Relative distances above the first bound within which labels are kept for the tightest tables; blocks fixed by a dive.
_SLACKS, _DEPTH = (0.06, np.inf), 40
# Relative distance above the bound within which local search uses labels.
_WITHIN = 0.015
# A plan within this many gaps of the bound is good enough: CP-SAT would take seconds for less than predictions are off.
_NEAR = 4.0
# Share of the time for CP-SAT if there is a plan already.
_PROOF_SHARE = 0.15
# CP-SAT is given no more than this many options of copies: it needs minutes for its first bound on more.
_MOST_OPTIONS = 20_000


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
    patience_s: float = 0.0,
    incumbent: Sequence[int] | None = None,
) -> Placed:
    """The best plan within `gap`, or the best found after `time_limit_s`; while there is none, up to `patience_s`.

    `incumbent` is a running plan. The bound is valid for every plan, whatever the status. Nodes must be in topological
    order and have an allowed label; only seconds may be negative.
    """
    started_s = time.perf_counter()
    return _Search(problem, gap, started_s + time_limit_s, started_s + max(time_limit_s, patience_s)).run(incumbent)


class Undecided(Exception):
    """Time was up before a plan was found, or shown to be impossible."""


class _Search:
    """The best plan and the bound so far. No plan costs more than `most`."""

    def __init__(self, problem: Problem, gap: float, ends_s: float, latest_s: float) -> None:
        self.problem, self.gap, self.begun = problem, gap, time.perf_counter()
        self.ends_s, self.latest_s = ends_s, latest_s
        self.costs = Costs(problem)
        self.alive = self.costs.possible()
        self.objective, self.bound = np.inf, -np.inf
        self.labels, self.copies = np.zeros(0, dtype=np.intp), np.zeros((0, self.costs.devices), dtype=np.intp)
        self.most = float(self.costs.most()[0]) * (1.0 + 1e-9) + 1e-9
        self.prices = np.zeros(len(self.costs.rows))

    def run(self, incumbent: Sequence[int] | None) -> Placed:
        """Run all steps and return the answer."""
        if not self.alive.any(axis=1).all():  # whatever else is chosen, such a node breaks a limit
            return Placed("infeasible", np.inf, np.inf, (), self.copies)
        starts = self._simple()
        if incumbent is not None:
            starts.append(np.array(incumbent, dtype=np.intp))
        for labels in starts:
            if self.alive[np.arange(len(labels)), labels].all():
                self._keep(self.costs.account(self.costs.plain, labels))
        self._by_prices()
        if not self._over(_NEAR):
            self._prove()
        infeasible = self.bound > self.most
        return Placed(
            "infeasible" if infeasible else "optimal" if self._within(self.gap) else "time limit",
            float(self.objective),
            float(min(self.bound, self.objective)),
            () if infeasible else tuple(self.labels.tolist()),
            self.copies,
        )

    def _within(self, gap: float) -> bool:
        """Whether the gap is small enough."""
        return bool(np.isfinite(self.objective)) and self.objective - self.bound <= gap * abs(self.objective)

    def _over(self, gaps: float = 1.0) -> bool:
        """Whether a plan is within so many gaps, none is possible, or time is up: later while there is no plan."""
        ends_s = self.ends_s if len(self.labels) else self.latest_s
        return self._within(gaps * self.gap) or self.bound > self.most or time.perf_counter() > ends_s

    def _keep(self, account: Account) -> None:
        """Keep a labelling if it is the best plan."""
        if account.objective < min(self.objective, BIG / 10) and (account.rows <= self.costs.uppers + 1e-9).all():
            self._take(account.labels, account.copies, account.objective)

    def _take(self, labels: np.ndarray, copies: np.ndarray, objective: float) -> None:
        if objective < self.objective and not self.costs.totals(labels, copies).broken:
            self.objective, self.labels, self.copies = objective, labels, copies

    def _simple(self) -> list[np.ndarray]:
        """For every device all nodes there in float, or as near to that as allowed."""
        floats = np.array([form.reads == Kind.FLOAT and form.writes == Kind.FLOAT for form in self.problem.forms])
        apart = np.arange(self.costs.devices)[:, None] != np.arange(self.costs.devices)
        seconds = self.problem.seconds / max(1e-12, float(self.problem.seconds.max()))
        costs = (np.where(self.problem.allowed, seconds + 4.0 * row[:, None] + 2.0 * ~floats, np.inf) for row in apart)
        return [cost.reshape(len(cost), -1).argmin(axis=1) for cost in costs]

    def _cutoff(self) -> float:
        """Cost above which plans are of no use."""
        return self.objective - 0.9 * self.gap * abs(self.objective) if len(self.labels) else self.most

    def _price(
        self, relaxation: Relaxation, *, tolerance: float, calls: int, reach: float
    ) -> tuple[Prices, list[Account]]:
        """The best prices near those known so far, and the answers on the way."""
        answers: list[Account] = []

        def oracle(point: np.ndarray) -> Plane:
            plane, account = relaxation.answer(point)
            answers.append(account)
            self._keep(account)
            return plane

        prices = maximise(
            oracle,
            self.prices,
            tolerance=tolerance,
            calls=calls,
            reach=reach,
            stop=lambda bound: bound > self._cutoff() or self._over(),
        )
        self.prices = prices.multipliers
        return prices, answers

    def _by_prices(self) -> None:
        """Find bound and plans: first over all labels with every value split, then with the tightest tables over the
        labels that plans near the bound can use."""
        rough = pairs(self.costs, self.alive)
        prices, answers = self._price(rough, tolerance=_FINE * self.gap, calls=80, reach=0.25)
        self.bound = prices.bound
        rough.run(self.costs.price(self.prices))
        marginals, low = rough.marginals(), prices.bound
        self._descend(answers, self.alive & (marginals <= self._near(low, marginals)))
        everything = self.alive
        for slack in _SLACKS:
            threshold = min(low + slack * abs(low), self.objective + 1e-9 * abs(self.objective))
            if self._over():
                return
            self.alive = everything & (marginals <= threshold)
            if not self.alive.any(axis=1).all():  # no plan is as cheap as the threshold, which is therefore a bound
                self.bound, self.alive = max(self.bound, threshold), everything
                continue
            self._dive(threshold)
            if self.objective <= threshold:
                return

    def _near(self, bound: float, marginals: np.ndarray) -> np.ndarray:
        """By node, up to which bound local search uses labels: near the bound, and the best in any case."""
        return np.asarray(np.maximum(bound + _WITHIN * abs(bound), marginals.min(axis=1))[:, None])

    def _dive(self, threshold: float) -> None:
        """Raise the bound, up to the threshold below which no plan uses other labels; fix blocks to devices one by one,
        and improve the answers on the way."""
        alive, alternative = self.alive, None
        for depth in range(_DEPTH):
            if self._over():
                return
            relaxation = tightest(self.costs, alive)
            tolerance, calls = (_ROUGH, _CALLS) if depth else (_FINE * self.gap, 80)
            prices, answers = self._price(relaxation, tolerance=tolerance, calls=calls, reach=0.03)
            if not depth:
                self.bound = max(self.bound, min(prices.bound, threshold))
            relaxation.run(self.costs.price(self.prices))
            marginals = relaxation.marginals()
            kept = alive & (marginals < self._cutoff())
            if prices.bound >= self._cutoff() or not kept.any(axis=1).all():
                if alternative is None:
                    return
                alive, alternative = alternative, None
                continue
            self._descend(answers, alive & (marginals <= self._near(prices.bound, marginals)))
            node, device = _disputed(self.costs, kept, answers, prices.shares)
            if node < 0:
                return
            on_device = self.costs.label_device == device
            alive, alternative = kept.copy(), kept.copy()
            alive[node] &= on_device
            alternative[node] &= ~on_device
            alternative = alternative if alternative[node].any() else None

    def _descend(self, answers: Sequence[Account], offered: np.ndarray) -> None:
        """Improve the answer that is nearest to a plan."""
        scale, costs = abs(self.bound), self.costs

        def distance(account: Account) -> float:
            return account.objective + scale * float(np.maximum(0.0, account.rows - costs.uppers).sum())

        labels, priced = min(answers, key=distance).labels, costs.price(self.prices)
        good = self.bound / (1.0 - self.gap) if self.bound > 0.0 else self.bound
        for account in improvements(costs, priced, self.prices + 0.02 * scale, labels, offered, good):
            self._keep(account)

    def _prove(self) -> None:
        """Search by CP-SAT among the labels left."""
        if len(self.costs.readers) * self.costs.devices**2 > _MOST_OPTIONS:
            return
        constant, most = self.problem.constant, min(self.objective, self.most)
        summed = np.arange(1 + len(self.costs.rows)) == 0
        low = max(self.bound, -self.most) - constant
        try:
            program = Program(self.costs, self.alive, summed, None, low, most - constant)
        except BadOption:  # OR-Tools is not installed
            if len(self.labels):
                return
            raise
        if len(self.labels):
            program.hint(self.labels.tolist(), self.copies)
        left_s = self.latest_s - time.perf_counter()
        if len(self.labels):
            left_s = min(self.ends_s - time.perf_counter(), _PROOF_SHARE * (self.ends_s - self.begun))
        answer = program.solve(gap=self.gap, time_limit_s=left_s)
        if answer.labels is not None and answer.copies is not None:
            objective = self.costs.totals(answer.labels, answer.copies).objective
            self._take(answer.labels, answer.copies, objective)
        self.bound = max(self.bound, min(answer.bound + constant, self.objective))


def _disputed(costs: Costs, alive: np.ndarray, answers: Sequence[Account], weights: np.ndarray) -> tuple[int, int]:
    """The most expensive node on whose device the weighted answers disagree most, and the device that most of them
    give it; −1 if they agree."""
    rows, shares = np.arange(costs.nodes), np.zeros((costs.nodes, costs.labels))
    for account, weight in zip(answers, weights.tolist(), strict=True):
        shares[rows, account.labels] += weight
    by_device = np.where(alive, shares, 0.0).reshape(costs.nodes, costs.devices, costs.forms).sum(axis=2)
    work = costs.problem.seconds.max(axis=(1, 2))
    work = 0.2 + work / max(1e-12, float(work.max(initial=0.0)))
    disputed = (np.minimum(by_device, 1.0 - by_device) * work[:, None]).max(axis=1)
    node = int(disputed.argmax())
    return (node if disputed[node] > 1e-6 else -1), int(by_device[node].argmax())
