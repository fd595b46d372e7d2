"""Close what the Lagrangian leaves open: branch where its answers disagree, price each half again, the cheapest first.

Where a limit is filled by few large pieces, the answers that share the best prices put a whole piece here or there.
Fixing one of its nodes breaks the piece, and both halves have a higher bound. A half whose bound reaches the cutoff has
no better plan; of the others, that of the least bound is next. Decides nothing about plans: the caller is shown every
answer.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from taglio.plan.costs import Account, Costs
from taglio.plan.cutting_planes import Answer, maximise
from taglio.plan.problem import surrounded
from taglio.plan.relaxation import Relaxation, tightest

# Answers that a half takes over from the whole.
_KNOWN = 16
# Halves that keep more than this share of the labels use the whole's tables, unless their own would save so many
# entries for each node: making them takes as long as tens of runs.
_SAME_TABLES, _MANY_ENTRIES = 0.5, 500.0


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """Labels that are left, the bound there, what to branch on (a node's labels in two; node −1 where no node has two),
    and the answers. Labels are masks: (nodes, labels) `alive`, (labels) `sides`."""

    bound: float
    relaxation: Relaxation
    alive: np.ndarray
    multipliers: np.ndarray
    node: int
    sides: tuple[np.ndarray, np.ndarray]
    pool: list[Account]


@dataclass(frozen=True, slots=True, eq=False)
class Branching:
    """The search. `cutoff()` is what a plan must be cheaper than; `show` gets the answer of every half that is nearest
    to a plan, the prices there, and what a plan with each label costs at least, (nodes, labels); `close` gets labels
    where each node has one left (copies may still differ), and says whether no plan of theirs is below the cutoff."""

    costs: Costs
    cutoff: Callable[[], float]
    show: Callable[[Account, np.ndarray, np.ndarray], None]
    close: Callable[[np.ndarray], bool]
    deadline: float

    def run(self, alive: np.ndarray, multipliers: np.ndarray, relaxation: Relaxation) -> float:
        """A lower bound on every plan of these labels, up to what `cutoff()` says in the end. `relaxation` is that of
        these labels or more."""
        unsettled = np.inf
        waiting = self._look(alive, multipliers, [], self._tables(alive, relaxation if relaxation.exact else None))
        while waiting:
            half = waiting.pop()
            if half.bound >= self.cutoff():
                continue
            if time.perf_counter() > self.deadline:
                return min([unsettled, half.bound, *(each.bound for each in waiting)])
            if half.node < 0:
                unsettled = min(unsettled, half.bound)
                continue
            found, relaxation = [], self._tables(half.alive, half.relaxation)
            for side in half.sides:
                labels = half.alive.copy()
                labels[half.node] = side
                known = [each for each in half.pool if side[each.labels[half.node]]]
                found += self._look(labels, half.multipliers, known[-_KNOWN:], relaxation)
            # The half of the least bound comes last, and so is the next: no half above the best plan is looked into.
            waiting = sorted([*waiting, *found], key=lambda each: -each.bound)
        return min(unsettled, self.cutoff())

    def _tables(self, alive: np.ndarray, relaxation: Relaxation | None) -> Relaxation:
        """Tables for these labels: those of more labels, where there are any and their own are not worth making."""
        if relaxation is not None:
            left = alive.sum() / relaxation.given
            # Tables of most eliminations have three axes.
            fewer = (1.0 - left**3) * relaxation.elimination.tables.size
            if left >= _SAME_TABLES and fewer <= _MANY_ENTRIES * self.costs.nodes:
                return relaxation
        return tightest(self.costs, alive)

    def _look(
        self, alive: np.ndarray, multipliers: np.ndarray, known: list[Account], relaxation: Relaxation
    ) -> list[Half]:
        """The bound of these labels and where to branch; nothing where no plan is below the cutoff. `known` are answers
        of a larger set of labels that are in this one too, and `relaxation` is the larger set's."""
        costs, cutoff = self.costs, self.cutoff
        pool = list(known)
        last = multipliers

        def oracle(point: np.ndarray) -> Answer:
            nonlocal last
            last = point
            priced = costs.price(point)
            value, labels = relaxation.run(priced, alive)
            account = costs.account(priced, labels)
            pool.append(account)
            slope = account.rows - costs.uppers
            return Answer(value, value - float(point @ slope), slope)

        found = maximise(
            oracle,
            multipliers,
            tolerance=1e-4,
            calls=15,
            reach=0.03,
            stop=lambda bound: bound >= cutoff() or time.perf_counter() > self.deadline,
            known=[(each.objective, each.rows - costs.uppers) for each in known],
            goal=cutoff,
        )
        bound = found.bound
        if bound >= cutoff():
            return []
        if last is not found.multipliers:
            relaxation.run(costs.price(found.multipliers), alive)
        marginals = relaxation.marginals()
        nearest = min(pool, key=lambda each: each.objective + abs(bound) * _over(costs, each))
        self.show(nearest, found.multipliers, marginals)
        kept = alive & (marginals < cutoff())
        counts = kept.sum(axis=1)
        if not counts.all() or ((counts == 1).all() and self.close(kept)):
            return []
        node, sides = _where(costs, kept, pool, found.shares)
        # The halves of this one take over the last: those that the mean is of, and else the latest.
        pool = [pool[index] for index in np.argsort(found.shares[: len(pool)], kind="stable")]
        return [Half(bound, relaxation, kept, found.multipliers, node, sides, pool)]


def _over(costs: Costs, account: Account) -> float:
    return float(np.maximum(0.0, account.rows - costs.uppers).sum())


def _where(
    costs: Costs, alive: np.ndarray, pool: list[Account], shares: np.ndarray
) -> tuple[int, tuple[np.ndarray, np.ndarray]]:
    """The node of most work about whose device, or else label, the answers disagree most; −1 where none is open."""
    rows, every = np.arange(costs.nodes), np.arange(costs.labels)
    broken = {node for account in pool for node in surrounded(costs.problem, account.labels)}
    fractions = np.zeros((costs.nodes, costs.labels))
    for share, account in zip(shares, pool, strict=False):
        fractions[rows, account.labels] += share
    fractions[~alive] = 0.0
    by_device = fractions.reshape(costs.nodes, costs.devices, costs.forms).sum(axis=2)
    work = costs.problem.seconds.max(axis=(1, 2))
    work = work / max(1e-12, work.max(initial=0.0))
    for scores, part in ((by_device, True), (fractions, False)):
        open_ = np.minimum(scores, 1.0 - scores) * (0.2 + work)[:, None]
        for flat in [each for each in np.argsort(-open_, axis=None)[:50].tolist() if open_.flat[each] > 0.0]:
            node, index = divmod(flat, scores.shape[1])
            one = costs.label_device == index if part else every == index
            sides = alive[node] & one, alive[node] & ~one
            if sides[0].any() and sides[1].any():
                return node, sides
    for each in costs.problem.implications:  # prices know nothing of them
        if each.node in broken:
            for node, mask in ((each.node, each.labels), *each.neighbours):
                if (sides := (alive[node] & mask, alive[node] & ~mask))[0].any() and sides[1].any():
                    return node, sides
    node = int((alive.sum(axis=1) > 1).argmax())
    one = every == alive[node].argmax()
    sides = alive[node] & one, alive[node] & ~one
    return (node if sides[1].any() else -1), sides
