"""Solve a `Problem`: find labels and copies, and a proven lower bound on the cost of any.

1. Lagrangian bound: the limits are priced (cutting_planes.py) and the rest is solved exactly by elimination
   (relaxation.py); first with every value split into two-ended parts, then exactly over the labels that a better plan
   can still use: those whose min-marginal is below a cost known to be attainable.
2. Branch and bound searches for plans just above the bound, then further up, and proves where there are none. If a few
   large groups of blocks fill a limit, the answers at the best prices place whole groups differently. Fixing one node
   splits such a group, which raises the bound of both halves. A half whose bound reaches the cutoff holds no better
   plan; the half with the lowest bound is explored next. Answers near a plan become plans by local search. Where every
   label is fixed, HiGHS chooses the copies: if a few large copies fill a limit, or live activations (which have no
   price) a memory, no prices lead to the best combination.

If the graph is too wide to eliminate, edges are relaxed and priced like limits (`EdgeRelaxation`).
"""

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from taglio.cluster.planning.cheapest_copies import cheapest_copies
from taglio.cluster.planning.costs import BIG, Account, Costs
from taglio.cluster.planning.cutting_planes import Plane, maximise
from taglio.cluster.planning.elimination import TooWide
from taglio.cluster.planning.improve import improve
from taglio.cluster.planning.problem import Problem, surrounded
from taglio.cluster.planning.relaxation import EdgeRelaxation, Relaxation, tightest
from taglio.plan.result import GAP

Outcome = Literal["optimal", "time limit", "infeasible"]
# Relative distance above the bound of split tables within which labels are kept for exact tables.
_SLACKS = (0.015, 0.06, 0.25, np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class SolvedProblem:
    """The answer: `labels`, empty if none were found, and `copies` (value, device)."""

    status: Outcome
    objective: float
    bound: float
    labels: tuple[int, ...]
    copies: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """Remaining labels, their bound and prices, and what to branch on: a node whose labels are split in two (−1 if
    every node has one label). Masks: `alive` (nodes, labels), `sides` (labels)."""

    bound: float
    alive: np.ndarray
    multipliers: np.ndarray
    node: int
    sides: tuple[np.ndarray, np.ndarray]


def solve(
    problem: Problem,
    *,
    gap: float = GAP,
    time_limit_s: float = 60.0,
    patience_s: float = 0.0,
) -> SolvedProblem:
    """The best plan within `gap`, or the best found after `time_limit_s`; while there is none, up to `patience_s`.

    The bound is valid for every plan, whatever the status. Nodes must be in topological order and have an allowed
    label; only seconds may be negative.
    """
    begun = time.perf_counter()
    ends_s = begun + time_limit_s
    return _BranchAndBound(problem, gap, ends_s, max(ends_s, begun + patience_s)).run()


class Undecided(Exception):
    """Time was up before a plan was found, or shown to be impossible."""


class _BranchAndBound:
    """State of the search: best plan, bound and remaining labels.

    Labels that are not `alive`, a mask (nodes, labels), are in no plan cheaper than `floor`, and no plan costs more
    than `most`. Branching looks for plans up to `aim`.
    """

    def __init__(self, problem: Problem, gap: float, ends_s: float, latest_s: float) -> None:
        self.problem, self.gap, self.ends_s, self.latest_s = problem, gap, ends_s, latest_s
        self.costs = Costs(problem)
        self.alive = self.costs.possible()
        self.objective, self.bound = np.inf, -np.inf
        self.labels, self.copies = np.zeros(0, dtype=np.intp), np.zeros((0, self.costs.devices), dtype=np.intp)
        self.floor, self.most = np.inf, float(self.costs.most()[0]) * (1.0 + 1e-9) + 1e-9
        self.multipliers = np.zeros(len(self.costs.rows))
        self.aim = np.inf

    def run(self) -> SolvedProblem:
        """Run all steps and return the answer."""
        if not self.alive.any(axis=1).all():  # whatever else is chosen, such a node breaks a limit
            return SolvedProblem("infeasible", np.inf, np.inf, (), self.copies)
        try:
            rough = Relaxation(self.costs, self.alive)
        except TooWide:
            self._by_edge_relaxation()
        else:
            self._by_prices(rough)
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

    def _cutoff(self) -> float:
        """Cost above which plans are ignored: they are above the aim, improve on the best by less than the gap, or
        break a strict edge."""
        return min(self.aim, self.objective - 0.9 * self.gap * abs(self.objective) if len(self.labels) else BIG / 10)

    def _offer(self, labels: np.ndarray) -> None:
        """Offer labels with the copies that are cheapest at the prices."""
        self._keep(self.costs.account(self.costs.price(self.multipliers), labels))

    def _keep(self, account: Account) -> None:
        """Keep a labelling if it is the best plan."""
        if account.objective < self.objective and (account.rows <= self.costs.uppers + 1e-9).all():
            self._take(account.labels, account.copies, account.objective)

    def _take(self, labels: np.ndarray, copies: np.ndarray, objective: float) -> None:
        unpriced = bool(self.problem.implications) or self.problem.memory.peak
        if unpriced and self.costs.totals(labels, copies).broken:
            return
        if objective < min(self.objective, BIG / 10):
            self.objective, self.labels, self.copies = objective, labels, copies

    def _offer_simple(self) -> None:
        """Offer the plans on one device."""
        for labels in self.problem.on_one_device():
            self._offer(labels)

    def _by_prices(self, rough: Relaxation) -> None:
        """Find bound and plans by prices."""
        everything = self.alive
        self._price(rough, 3.0)
        for slack in _SLACKS:
            if self._over():
                return
            threshold = min(self.bound + slack * abs(self.bound), self.objective)
            rough.run(self.costs.price(self.multipliers))
            self._drop(rough.marginals(), threshold)
            relaxation = tightest(self.costs, self.alive)
            self._price(relaxation, 0.15)
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
            if relaxed.calls % 20 == 1:  # one answer in twenty is improved
                for start in [labels, self.labels] if len(self.labels) else [labels]:
                    self._improve(start, self.multipliers, self.alive)
            goal = self.objective if np.isfinite(self.objective) else value + 0.1 * abs(value)
            self.multipliers = relaxed.step(self.multipliers, account.rows - costs.uppers, goal - value)
        self.multipliers = relaxed.best

    def _price(self, relaxation: Relaxation, tolerance: float) -> None:
        """Raise the bound until the possible gain is below `tolerance` gaps."""

        def oracle(point: np.ndarray) -> Plane:
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
        marginals, aim = relaxation.marginals(), 0.9  # in gaps above the bound
        while not self._over() and self.bound < self.floor:
            if not self._branch(marginals, self.bound + aim * self.gap * abs(self.bound)):
                return
            aim *= 2.0

    def _improve(self, labels: np.ndarray, multipliers: np.ndarray, offered: np.ndarray) -> None:
        good = self.bound / (1.0 - self.gap) if self.bound > 0 else self.bound
        priced = self.costs.price(multipliers)
        self._keep(improve(self.costs, priced, multipliers, labels, offered, good))

    def _branch(self, marginals: np.ndarray, aim: float) -> bool:
        """Search for plans up to `aim` by branching; if there is none, `aim` is a bound. False if undecided."""
        self.aim = min(aim, self.floor)
        alive = self.alive & (marginals <= self._cutoff())
        bound = self._below(alive) if alive.any(axis=1).all() else self._cutoff()
        self.bound = max(self.bound, bound)
        return bound >= self._cutoff()

    def _below(self, alive: np.ndarray) -> float:
        """Search for plans with these labels below the cutoff; a lower bound on them, at most the final cutoff."""
        unsettled = np.inf
        waiting = self._look(alive, self.multipliers, tightest(self.costs, alive))
        while waiting:
            half = waiting.pop()
            if half.bound >= self._cutoff():
                continue
            if time.perf_counter() > self.deadline:
                return min([unsettled, half.bound, *(each.bound for each in waiting)])
            if half.node < 0:
                unsettled = min(unsettled, half.bound)
                continue
            found, relaxation = [], tightest(self.costs, half.alive)
            for side in half.sides:
                labels = half.alive.copy()
                labels[half.node] = side
                found += self._look(labels, half.multipliers, relaxation)
            # The half with the lowest bound is last and popped next, so no half above the best plan is explored.
            waiting = sorted([*waiting, *found], key=lambda each: -each.bound)
        return min(unsettled, self._cutoff())

    def _look(self, alive: np.ndarray, multipliers: np.ndarray, relaxation: Relaxation) -> list[Half]:
        """These labels with their bound and where to branch; empty if no plan is below the cutoff. `relaxation` covers
        these labels or more."""
        costs, pool = self.costs, list[Account]()

        def oracle(point: np.ndarray) -> Plane:
            answer, account = relaxation.answer(point, alive)
            pool.append(account)
            return answer

        found = maximise(
            oracle,
            multipliers,
            tolerance=1e-4,
            calls=15,
            reach=0.03,
            stop=lambda bound: bound >= self._cutoff() or time.perf_counter() > self.deadline,
        )
        if found.bound >= self._cutoff():
            return []
        relaxation.run(costs.price(found.multipliers), alive)
        marginals = relaxation.marginals()
        over = [float(np.maximum(0.0, each.rows - costs.uppers).sum()) for each in pool]
        nearest = min(range(len(pool)), key=lambda index: pool[index].objective + abs(found.bound) * over[index])
        self._show(pool[nearest], found.multipliers, marginals)
        kept = alive & (marginals < self._cutoff())
        counts = kept.sum(axis=1)
        if not counts.all() or ((counts == 1).all() and self._close(kept.argmax(axis=1))):
            return []
        node, sides = _where(costs, kept, pool, found.shares)
        return [Half(found.bound, kept, found.multipliers, node, sides)]

    def _show(self, account: Account, multipliers: np.ndarray, marginals: np.ndarray) -> None:
        """Offer a half's answer nearest to a plan, also improved: by labels with a bound near the least one, and the
        best of every node."""
        self._keep(account)
        least = float(marginals.min())
        near = np.maximum(least + 3.0 * self.gap * abs(least), marginals.min(axis=1))
        self._improve(account.labels, multipliers, marginals <= near[:, None])

    def _close(self, labels: np.ndarray) -> bool:
        """Offer the cheapest copies of these labels; whether they hold no plan below the cutoff."""
        if surrounded(self.problem, labels):
            return True
        left_s = self.deadline - time.perf_counter()
        copies, bound = cheapest_copies(self.costs, labels, time_limit_s=left_s)
        if copies is not None:
            self._take(labels, copies, self.costs.totals(labels, copies).objective)
        return bound >= self._cutoff()


def _where(
    costs: Costs, alive: np.ndarray, pool: list[Account], shares: np.ndarray
) -> tuple[int, tuple[np.ndarray, np.ndarray]]:
    """The most expensive node on whose device, or else label, the answers disagree most; −1 if none is open."""
    rows, every = np.arange(costs.nodes), np.arange(costs.labels)
    fractions = np.zeros((costs.nodes, costs.labels))
    for share, account in zip(shares, pool, strict=False):
        fractions[rows, account.labels] += share
    fractions[~alive] = 0.0
    by_device = fractions.reshape(costs.nodes, costs.devices, costs.forms).sum(axis=2)
    work = costs.problem.seconds.max(axis=(1, 2))
    work = work / max(1e-12, work.max(initial=0.0))

    def split(node: int, one: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        sides = alive[node] & one, alive[node] & ~one
        return sides if sides[0].any() and sides[1].any() else None

    for scores, parts in ((by_device, costs.label_device), (fractions, every)):
        open_ = np.minimum(scores, 1.0 - scores) * (0.2 + work)[:, None]
        for flat in [each for each in np.argsort(-open_, axis=None)[:50].tolist() if open_.flat[each] > 0.0]:
            node, index = divmod(flat, scores.shape[1])
            if sides := split(node, parts == index):
                return node, sides
    broken = {each.node for account in pool for each in surrounded(costs.problem, account.labels)}
    for each in costs.problem.implications:  # not part of the priced problem
        if each.node in broken:
            for node, mask in ((each.node, each.labels), *each.neighbours):
                if sides := split(node, mask):
                    return node, sides
    node = int((alive.sum(axis=1) > 1).argmax())
    one = every == alive[node].argmax()
    sides = alive[node] & one, alive[node] & ~one
    return (node if sides[1].any() else -1), sides
