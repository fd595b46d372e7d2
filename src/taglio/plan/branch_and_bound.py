"""Branch and bound on the Lagrangian: branch where its answers disagree, reprice each half, lowest bound first.

If a few large groups of blocks fill a limit, the answers at the best prices place whole groups differently. Fixing one
node splits such a group, which raises the bound of both halves. A half whose bound reaches the cutoff holds no better
plan; the half with the lowest bound is explored next. Answers near a plan become plans by local search. Once every
label is fixed, HiGHS chooses the copies: if a few large copies fill a limit, no prices lead to the best combination.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import highspy
import numpy as np

from taglio.plan.costs import Account, Costs, Priced
from taglio.plan.cutting_planes import Answer, Quiet, maximise
from taglio.plan.problem import Kind, surrounded
from taglio.plan.relaxation import Relaxation, tightest

# Rounds of local search; the gap of the copies, and the most choices among which HiGHS looks for them.
_ROUNDS, _COPIES_GAP, _MOST_CHOICES = 12, 1e-4, 1e5


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """Remaining labels, their bound and prices, and what to branch on: a node whose labels are split in two (−1 if
    every node has one label). Masks: `alive` (nodes, labels), `sides` (labels)."""

    bound: float
    alive: np.ndarray
    multipliers: np.ndarray
    node: int
    sides: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Branching:
    """The search. A plan must cost less than `cutoff()`. `show` is called for every half with its answer nearest to a
    plan, the prices there, and the least cost of a plan with each label (nodes, labels). `close` is called when each
    node has one label left (copies may still differ) and returns whether those labels hold no plan below the cutoff."""

    costs: Costs
    cutoff: Callable[[], float]
    show: Callable[[Account, np.ndarray, np.ndarray], None]
    close: Callable[[np.ndarray], bool]
    deadline: float

    def run(self, alive: np.ndarray, multipliers: np.ndarray) -> float:
        """A lower bound on every plan with these labels, at most the final `cutoff()`."""
        unsettled = np.inf
        waiting = self._look(alive, multipliers, tightest(self.costs, alive))
        while waiting:
            half = waiting.pop()
            if half.bound >= self.cutoff():
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
        return min(unsettled, self.cutoff())

    def _look(self, alive: np.ndarray, multipliers: np.ndarray, relaxation: Relaxation) -> list[Half]:
        """These labels with their bound and where to branch; empty if no plan is below the cutoff. `relaxation` covers
        these labels or more."""
        costs, cutoff = self.costs, self.cutoff
        pool: list[Account] = []

        def oracle(point: np.ndarray) -> Answer:
            answer, account = relaxation.answer(point, alive)
            pool.append(account)
            return answer

        found = maximise(
            oracle,
            multipliers,
            tolerance=1e-4,
            calls=15,
            reach=0.03,
            stop=lambda bound: bound >= cutoff() or time.perf_counter() > self.deadline,
            goal=cutoff,
        )
        bound = found.bound
        if bound >= cutoff():
            return []
        relaxation.run(costs.price(found.multipliers), alive)
        marginals = relaxation.marginals()
        over = [float(np.maximum(0.0, each.rows - costs.uppers).sum()) for each in pool]
        nearest = min(range(len(pool)), key=lambda index: pool[index].objective + abs(bound) * over[index])
        self.show(pool[nearest], found.multipliers, marginals)
        kept = alive & (marginals < cutoff())
        counts = kept.sum(axis=1)
        if not counts.all() or ((counts == 1).all() and self.close(kept)):
            return []
        node, sides = _where(costs, kept, pool, found.shares)
        return [Half(bound, kept, found.multipliers, node, sides)]


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
    broken = {node for account in pool for node in surrounded(costs.problem, account.labels)}
    for each in costs.problem.implications:  # not part of the priced problem
        if each.node in broken:
            for node, mask in ((each.node, each.labels), *each.neighbours):
                if sides := split(node, mask):
                    return node, sides
    node = int((alive.sum(axis=1) > 1).argmax())
    one = every == alive[node].argmax()
    sides = alive[node] & one, alive[node] & ~one
    return (node if sides[1].any() else -1), sides


def improve(
    costs: Costs, priced: Priced, multipliers: np.ndarray, labels: np.ndarray, offered: np.ndarray, good_enough: float
) -> tuple[float, np.ndarray]:
    """Local search by single moves over the labels `offered`, a mask (nodes, labels): at good prices the Lagrangian's
    labelling is nearly optimal, but breaks a limit or leaves part of one unused. Returns the objective (infinite if a
    limit stays broken) and the labels. Moves that share no value are additive, so each round takes many."""
    labels = labels.copy()
    total, use = costs.by_move(priced, labels)
    uppers = costs.uppers
    penalty, step = 4.0 * multipliers + 0.2 * abs(total[0]), 0.05 * abs(total[0])
    nodes, to = np.nonzero(offered)
    first = np.searchsorted(nodes, np.arange(costs.nodes + 1))
    change = costs.changes(priced, labels, use, nodes, to)

    def merit(sums: np.ndarray) -> np.ndarray:
        over = np.maximum(0.0, sums[..., 1:] - uppers)
        # The fixed penalty makes breaking a limit, however slightly, cost more than it could gain.
        return np.asarray(sums[..., 0] + over @ penalty + step * (over > 1e-9).any(axis=-1))

    def feasible() -> bool:
        return bool((total[1:] <= uppers + 1e-9).all()) and total[0] < 1e8

    for _ in range(_ROUNDS):
        stale, open_ = np.zeros(costs.nodes, dtype=bool), np.ones(len(nodes), dtype=bool)
        while len(nodes):
            now, after = float(merit(total)), np.where(open_, merit(total + change), np.inf)
            best = int(after.argmin())
            if after[best] >= now - 1e-9 * abs(now):
                break
            total = total + change[best]
            labels[nodes[best]] = to[best]
            near = costs.near[nodes[best]]
            stale[near] = True
            for other in near.tolist():
                open_[first[other] : first[other + 1]] = False
        if not stale.any() or (feasible() and total[0] <= good_enough):
            break
        total, use = costs.by_move(priced, labels)
        again = np.flatnonzero(stale[nodes])
        change[again] = costs.changes(priced, labels, use, nodes[again], to[again])
    total, _ = costs.by_move(priced, labels)
    return (float(total[0]) if feasible() else np.inf), labels


def cheapest_copies(
    costs: Costs, labels: np.ndarray, *, cutoff: float, time_limit_s: float
) -> tuple[np.ndarray | None, float]:
    """Copies (value, device) that keep the limits and cost at most `cutoff`, None if there are none or none was found
    in time; and a lower bound on the objective, infinite if nothing is cheaper than `cutoff`."""
    ends = costs.ends(labels)
    _, floats, there = costs.readers_on(ends)
    plain = (ends.kind != Kind.INT8)[:, None]
    may = np.stack(  # by value, device and `Copies` number
        [
            ~there,
            there & plain,
            there & (~plain | (floats == 0) | costs.problem.wire_only),
        ],
        axis=2,
    )
    if may.sum(axis=2).prod(axis=1, dtype=float).sum() > _MOST_CHOICES:
        return None, -np.inf
    choices = [(value, each) for value, row in enumerate(may) for each in product(*map(np.flatnonzero, row))]
    value, copies = np.array([each for each, _ in choices]), np.array([each for _, each in choices])
    ends = costs.ends(labels, value)
    amounts = costs.by_value(costs.limited, ends, costs.given(ends, copies))
    total = costs.limited.unary[np.arange(costs.nodes), labels].sum(axis=0)
    total[0] += costs.problem.constant
    within = costs.uppers + 1e-9 * np.maximum(1e-6, np.abs(costs.uppers))
    limits = np.concatenate([[cutoff], within]) - total
    taken, bound = _one_of_each(value, amounts, limits, time_limit_s)
    return None if taken is None else copies[taken], total[0] + bound


def _one_of_each(
    group: np.ndarray, amounts: np.ndarray, limits: np.ndarray, time_limit_s: float
) -> tuple[np.ndarray | None, float]:
    """One column of each group, as a mask, with the least sum of the first of its `amounts` (column, limit) within the
    limits; None if none were found. And a lower bound, infinite if there are none."""
    highs, scale, count = Quiet(), 1e3 / max(1e-12, float(np.abs(amounts[:, 0]).max())), len(group)
    columns = np.arange(count, dtype=np.int32)
    highs.addVars(count, np.zeros(count), np.ones(count))
    highs.changeColsCost(count, columns, amounts[:, 0] * scale)
    highs.changeColsIntegrality(count, columns, np.full(count, highspy.HighsVarType.kInteger))
    for each in np.unique(group):
        members = np.flatnonzero(group == each).astype(np.int32)
        highs.addRow(1.0, 1.0, len(members), members, np.ones(len(members)))
    for row, limit in zip(amounts.T, limits, strict=True):
        if np.isfinite(limit):
            highs.addRow(-highspy.kHighsInf, limit, count, columns, row)
    highs.setOptionValue("time_limit", max(0.01, time_limit_s))
    highs.setOptionValue("mip_rel_gap", _COPIES_GAP)
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return None, np.inf
    info = highs.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    taken = np.array(highs.getSolution().col_value) > 0.5 if found else None
    return taken, float(info.mip_dual_bound) / scale
