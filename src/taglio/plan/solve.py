"""Solve a `Problem`: find labels and copies, and a proven lower bound on the cost of any.

1. Lagrangian bound: the limits are priced (cutting_planes.py) and the rest is solved exactly by elimination
   (relaxation.py); first with every value split into two-ended parts, then exactly over the labels that a better plan
   can still use: those whose min-marginal is below a cost known to be attainable.
2. Branch and bound (branch_and_bound.py) searches for plans just above the bound, then further up, and proves where
   there are none; its near-feasible answers are improved by single moves and pairs (descent.py).
3. Once every label is fixed, HiGHS chooses the copies (copies.py).

If the graph is too wide to eliminate, edges are relaxed and priced like limits (edge_relaxation.py).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from taglio.plan.branch_and_bound import Branching
from taglio.plan.copies import cheapest_copies
from taglio.plan.costs import BIG, Account, Costs, wires_of
from taglio.plan.cutting_planes import Answer, Prices, maximise
from taglio.plan.descent import Descent
from taglio.plan.edge_relaxation import EdgeRelaxation
from taglio.plan.elimination import TooWide
from taglio.plan.problem import Copies, Kind, Problem, surrounded
from taglio.plan.relaxation import WIDEST, Relaxation, tightest

Outcome = Literal["optimal", "time limit", "infeasible"]
GAP = 5e-3
# Multipliers are improved until the possible gain is below this multiple of the gap: for split and for exact tables.
_ROUGH, _FINE = 3.0, 0.15
# Relative distance above the bound of split tables within which labels are kept for exact tables.
_SLACKS = (0.015, 0.06, 0.25, np.inf)
# A given plan within this many gaps of the bound is likely the best (bounds can be that loose): prove it in one pass.
_GIVEN = 100.0
# In a graph too wide to eliminate, one answer in this many is improved.
_EVERY = 20
# Share of branching time that may go to improving its answers.
_IMPROVING_SHARE = 0.25
# Gaps above the bound within which branching first searches for plans, and the factor by which that grows each time.
_AIM, _FURTHER = 0.9, 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The answer. `labels` and `wires` are empty if none was found; `multipliers` are the marginal cost of each limit:
    units of the objective per whole limit."""

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
) -> Placed:
    """The best plan within `gap`, or the best found after `time_limit_s`.

    `incumbent` and `multipliers` (from an earlier `Placed`) start the search near a running plan. The bound is valid
    for every plan, whatever the status. Raises BadOption for an inconsistent problem.
    """
    return _Search(problem, gap, time.perf_counter() + time_limit_s, incumbent, multipliers).run()


class _Search:
    """State of the search: best plan, bound and remaining labels.

    Labels that are not `alive`, a mask (nodes, labels), are in no plan cheaper than `floor`, and no plan costs more
    than `most`.
    """

    def __init__(
        self,
        problem: Problem,
        gap: float,
        deadline: float,
        incumbent: Sequence[int] | None,
        multipliers: Mapping[str, float] | None,
    ) -> None:
        self.started = self.built = time.perf_counter()
        problem.check()
        self.problem, self.gap, self.deadline = problem, gap, deadline
        self.alive = self.alive_at_first = problem.allowed.reshape(len(problem.nodes), -1)
        self.costs = Costs(problem)
        self.objective, self.bound = np.inf, -np.inf
        self.labels: np.ndarray | None = None
        self.wires: tuple[dict[int, Copies], ...] = ()
        self.floor, self.most = np.inf, self._most()
        self.given = None if incumbent is None else np.array(incumbent, dtype=np.intp)
        self.multipliers = np.array([float((multipliers or {}).get(row.name, 0.0)) for row in self.costs.rows])
        self.how = ""

    def run(self) -> Placed:
        """Run all steps and return the answer."""
        self._offer_given()
        self.how = "prices"
        try:
            rough = Relaxation(self.costs, self.alive, arity=1, limit=WIDEST)
        except TooWide:
            self._by_edge_relaxation()
        else:
            self.built = time.perf_counter()
            if self._by_prices(rough):
                return self._placed("infeasible")
        if self.labels is None:
            self._offer_simple()
        return self._placed("optimal" if self.done() else "time limit")

    def done(self) -> bool:
        """Whether the gap is small enough."""
        return bool(np.isfinite(self.objective)) and self.objective - self.bound <= self.gap * abs(self.objective)

    def cutoff(self) -> float:
        """Cost above which plans are ignored: they would improve on the best by less than the gap."""
        return self.objective - 0.9 * self.gap * abs(self.objective) if np.isfinite(self.objective) else np.inf

    def offer(self, account: Account) -> None:
        """Keep a labelling if it is the best plan, after repairing broken implications."""
        if account.objective < self.objective and surrounded(self.problem, account.labels):
            account = self._mended(account)
        if account.objective < self.objective and (account.rows <= self.costs.uppers + 1e-9).all():
            self._take(account.labels, account.wires(), account.objective)

    def _mended(self, account: Account) -> Account:
        """The labelling with forbidden labels replaced by the cheapest allowed one on the same device, if any."""
        labels, costs = account.labels.copy(), self.costs
        priced = costs.price(self.multipliers)
        forbidden = {each.node: each.labels for each in self.problem.implications}
        for _ in range(len(forbidden)):
            found = surrounded(self.problem, labels)
            for node in found:
                here = costs.label_device == costs.label_device[labels[node]]
                open_ = np.flatnonzero(self.alive_at_first[node] & here & ~forbidden[node])
                if not len(open_):
                    return account
                labels[node] = open_[priced.unary[node, open_].argmin()]
            if not found:
                break
        return costs.account(priced, labels)

    def _take(self, labels: np.ndarray, wires: tuple[dict[int, Copies], ...], objective: float) -> None:
        memory = self.problem.memory
        looked_at = bool(self.problem.implications) or (memory is not None and memory.peak)
        if looked_at and self.costs.totals(labels, wires).broken:
            return
        if objective < BIG / 10:
            self.objective, self.labels, self.wires = objective, labels, wires

    def _worth(self, account: Account) -> float:
        """The objective plus a penalty for broken limits."""
        over = float(np.maximum(0.0, account.rows - self.costs.uppers).sum())
        return account.objective + abs(self.bound) * over

    def _keep(self, marginals: np.ndarray, threshold: float) -> None:
        """Drop labels that no plan up to `threshold` uses, by lower bounds (nodes, labels)."""
        kept = self.alive & (marginals <= threshold)
        if not kept.any(axis=1).all():
            # No plan is as cheap as the threshold, which is therefore a bound.
            self.bound = max(self.bound, min(threshold, self.floor))
            return
        self.alive, self.floor = kept, min(self.floor, threshold)

    def _offer_given(self) -> None:
        if self.given is not None and self.alive[np.arange(len(self.given)), self.given].all():
            self.offer(self.costs.account(self.costs.price(self.multipliers), self.given))

    def _offer_simple(self) -> None:
        """Offer everything in float on one device, or as close as allowed: a fallback if the search found no plan."""
        allowed, seconds = self.problem.allowed, self.problem.seconds
        floats = [form.reads == Kind.FLOAT and form.writes == Kind.FLOAT for form in self.problem.forms]
        for device in range(self.costs.devices):
            off = 2.0 * (np.arange(self.costs.devices) != device)[:, None] + ~np.array(floats)
            cost = np.where(allowed, seconds / max(1e-12, float(seconds.max())) + 2.0 * off, np.inf)
            labels = cost.reshape(len(allowed), -1).argmin(axis=1)
            self.offer(self.costs.account(self.costs.price(self.multipliers), labels))

    def _by_prices(self, rough: Relaxation) -> bool:
        """Find bound and plans by prices; True if the limits are proven to contradict each other."""
        everything = self.alive
        prices = self._price(rough, 1.0 if rough.exact else _ROUGH)
        for slack in _SLACKS:
            if self._given_beyond(slack):
                continue
            if self.bound > self.most or self.done() or time.perf_counter() > self.deadline:
                break
            threshold = min(self.bound + slack * abs(self.bound), self.objective)
            rough.run(self.costs.price(prices.multipliers))
            self._keep(rough.marginals(), threshold)
            relaxation = rough
            if not rough.exact:
                relaxation = tightest(self.costs, self.alive)
                prices = self._price(relaxation, _FINE)
            if self.done() or self.bound > self.most:
                break
            if self.bound < threshold * (1.0 - 1e-6) or slack == _SLACKS[-1]:
                self._find(relaxation, prices)
            # The labels kept contain a plan cheaper than the threshold, and hence every better one.
            if self.done() or self.objective * (1.0 - self.gap) <= threshold:
                break
            self.alive, self.floor = everything, np.inf
        return self.bound > self.most

    def _given_beyond(self, slack: float) -> bool:
        """Whether a given plan is beyond this slack but near: then the labels that it needs are kept right away."""
        above = self.objective * (1.0 - self.gap) - self.bound
        return self.given is not None and slack * abs(self.bound) < above < _SLACKS[2] * abs(self.bound)

    def _by_edge_relaxation(self) -> None:
        """Find bound and plans for a graph too wide to eliminate."""
        self.how, costs = "prices, edges relaxed", self.costs
        relaxed, descent = EdgeRelaxation(costs, self.alive), Descent(costs)
        self._offer_simple()
        while not self.done() and time.perf_counter() < self.deadline:
            priced, value, labels = relaxed.run(self.multipliers)
            self.bound = max(self.bound, value)
            account = costs.account(priced, labels)
            self.offer(account)
            if relaxed.calls % _EVERY == 1:
                for start in [labels] if self.labels is None else [labels, self.labels]:
                    self._descend(descent, start, self.multipliers, self.alive)
            goal = self.objective if np.isfinite(self.objective) else value + 0.1 * abs(value)
            self.multipliers = relaxed.step(self.multipliers, account.rows - costs.uppers, goal - value)
        self.multipliers = relaxed.best

    def _price(self, relaxation: Relaxation, tolerance: float) -> Prices:
        """Raise the bound until the possible gain is below `tolerance` gaps."""
        costs = self.costs

        def oracle(point: np.ndarray) -> Answer:
            priced = costs.price(point)
            value, labels = relaxation.run(priced)
            account = costs.account(priced, labels)
            self.bound = max(self.bound, min(value, self.floor))
            self.offer(account)
            slope = account.rows - costs.uppers
            return Answer(value, value - float(point @ slope), slope)

        def stop(bound: float) -> bool:
            return bound > self.most or self.done() or time.perf_counter() > self.deadline

        reach = 0.25 if not self.multipliers.any() else 0.03
        prices = maximise(oracle, self.multipliers, tolerance=tolerance * self.gap, calls=80, reach=reach, stop=stop)
        self.multipliers = prices.multipliers
        return prices

    def _find(self, relaxation: Relaxation, prices: Prices) -> None:
        """Find plans within the limits, starting from the answers near the best prices."""
        costs = self.costs
        relaxation.run(costs.price(prices.multipliers))
        marginals = relaxation.marginals()
        descent = Descent(costs)
        # A running plan near the bound is likely the best: prove it in one pass.
        near = self.objective - self.bound <= _GIVEN * self.gap * abs(self.bound)
        aim = np.inf if self.given is not None and near else _AIM
        while not self._ended():
            upto = self.bound + aim * self.gap * abs(self.bound)
            if not self._branch(relaxation, descent, marginals, prices.multipliers, upto):
                break
            aim *= _FURTHER

    def _offered(self, marginals: np.ndarray) -> np.ndarray:
        """Labels to try in plans: those with a bound near the least one, and the best of every node."""
        least = float(marginals.min())
        near = least + 3.0 * self.gap * abs(least)
        kept: np.ndarray = marginals <= np.maximum(near, marginals.min(axis=1))[:, None]
        return kept

    def _ended(self) -> bool:
        """Whether the gap is small enough, no labels are left, or time is up."""
        proven = self.done() or self.bound >= self.floor or self.bound > self.most
        return proven or time.perf_counter() > self.deadline

    def _descend(self, descent: Descent, labels: np.ndarray, multipliers: np.ndarray, offered: np.ndarray) -> None:
        good = self.bound / (1.0 - self.gap) if self.bound > 0 else self.bound
        priced = self.costs.price(multipliers)
        objective, labels = descent.improve(priced, multipliers, labels, offered, good_enough=good)
        if objective < self.objective:
            self.offer(self.costs.account(priced, labels))

    def _branch(
        self, relaxation: Relaxation, descent: Descent, marginals: np.ndarray, multipliers: np.ndarray, aim: float
    ) -> bool:
        """Search for plans up to `aim` by branching; if there is none, `aim` is a bound. False if undecided."""
        aim = min(aim, self.floor)
        upto = min(aim, self.cutoff())
        alive = self.alive & (marginals <= upto)
        if not alive.any(axis=1).all():
            self.bound = max(self.bound, upto)
            return True
        costs, begun, spent = self.costs, time.perf_counter(), 0.0
        worths: list[float] = []

        def show(account: Account, multipliers: np.ndarray, marginals: np.ndarray) -> None:
            nonlocal spent
            self.offer(account)
            now = time.perf_counter()
            worths.append(self._worth(account))
            # Spend time only on answers nearer to a plan than most.
            if spent <= _IMPROVING_SHARE * (now - begun) and worths[-1] <= np.median(worths):
                self._descend(descent, account.labels, multipliers, self._offered(marginals))
                spent += time.perf_counter() - now

        def close(left: np.ndarray) -> bool:
            labels = left.argmax(axis=1)
            if surrounded(self.problem, labels):
                return True
            cutoff = min(aim, self.cutoff())
            copies, bound = cheapest_copies(
                costs, labels, cutoff=cutoff, time_limit_s=self.deadline - time.perf_counter()
            )
            if copies is not None:
                wires = wires_of(copies)
                objective = costs.totals(labels, wires).objective
                if objective < self.objective:
                    self._take(labels, wires, objective)
            return bound >= min(aim, self.cutoff())

        branching = Branching(costs, lambda: min(aim, self.cutoff()), show, close, self.deadline)
        bound = branching.run(alive, multipliers, relaxation)
        self.bound = max(self.bound, bound)
        return bound >= min(aim, self.cutoff())

    def _most(self) -> float:
        """An upper bound on the cost of any labelling: a lower bound above it proves that none keeps the limits."""
        tables = self.costs.limited.columns(np.array([0]), np.ones(1))
        total = np.where(self.alive, tables.unary[..., 0], 0.0).max(axis=1).sum()
        by_value = tables.send_float.max(axis=(1, 2, 3)) + tables.send_int8.max(axis=(1, 2, 3))
        by_value += tables.quantize.max(axis=(1, 2, 3), initial=0.0)
        total += self.costs.devices * by_value.sum()
        total += (self.costs.fan_out * tables.dequantize.max(axis=(1, 2), initial=0.0)).sum()
        return float(total + self.problem.constant) * (1.0 + 1e-9) + 1e-9

    def _placed(self, status: Outcome) -> Placed:
        now = time.perf_counter()
        names = [row.name for row in self.costs.rows]
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
