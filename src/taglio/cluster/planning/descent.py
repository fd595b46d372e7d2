"""Local search by single moves: from labels at prices near the best ones to plans within the limits. Proves nothing."""

from collections.abc import Iterator

import numpy as np

from taglio.cluster.planning.costs import Account, Costs, Priced
from taglio.cluster.planning.problem import surrounded
from taglio.cluster.planning.relaxation import Relaxation

# Rounds of moves.
_ROUNDS = 12
# Answers that are improved, and the spread of their prices around the best ones.
_ANSWERS, _STRAYING = 16, 0.6
# Times that an answer is improved again with doubled penalties on the limits that it broke.
_DEARER = 4


def descents(costs: Costs, relaxation: Relaxation, prices: np.ndarray, offered: np.ndarray) -> Iterator[Account]:
    """Labellings moved towards the limits, which they may still break, from answers at the best prices and then at
    prices around them."""
    random = np.random.default_rng(0)
    for number in range(_ANSWERS):
        straying = random.lognormal(0.0, _STRAYING, len(prices)) if number else 1.0
        priced = costs.price((prices + (0.01 if number else 0.0)) * straying)
        _, labels = relaxation.run(priced)
        yield from improvements(costs, priced, prices + 0.02, labels, offered, np.inf)


def improvements(
    costs: Costs, priced: Priced, penalty: np.ndarray, labels: np.ndarray, offered: np.ndarray, good_enough: float
) -> Iterator[Account]:
    """A labelling improved, and again at higher penalties while it breaks a limit."""
    for _ in range(_DEARER):
        labels = improve(costs, priced, penalty, labels, offered, good_enough)
        account = costs.account(priced, labels)
        yield account
        broken = account.rows > costs.uppers + 1e-9
        if not broken.any():
            return
        penalty = np.where(broken, 2.0 * penalty, penalty)


def improve(
    costs: Costs, priced: Priced, multipliers: np.ndarray, labels: np.ndarray, offered: np.ndarray, good_enough: float
) -> np.ndarray:
    """Labels after moves to the labels `offered`, a mask (nodes, labels): at good prices the Lagrangian's labelling is
    nearly optimal, but breaks a limit or leaves part of one unused. Moves that share no value are additive, so each
    round takes many."""
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
        stale_moves = np.flatnonzero(stale[nodes])
        change[stale_moves] = costs.changes(priced, labels, use, nodes[stale_moves], to[stale_moves])
    total, use = costs.by_move(priced, labels)
    for _ in range(_ROUNDS):  # no part of the priced problem: labels that their neighbours' forbid
        forbidden = np.zeros((costs.nodes, costs.labels), dtype=bool)
        for implication in surrounded(costs.problem, labels):
            forbidden[implication.node] |= implication.labels
        moves = np.flatnonzero(forbidden[nodes].any(axis=1) & ~forbidden[nodes, to])
        if not len(moves):
            break
        after = merit(total + costs.changes(priced, labels, use, nodes[moves], to[moves]))
        moves = moves[np.argsort(after, kind="stable")]
        _, cheapest = np.unique(nodes[moves], return_index=True)
        labels[nodes[moves[cheapest]]] = to[moves[cheapest]]
        total, use = costs.by_move(priced, labels)
    return labels
