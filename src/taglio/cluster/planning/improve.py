"""Local search: improve a labelling by single moves at given prices. Proves nothing."""

import numpy as np

from taglio.cluster.planning.costs import Account, Costs
from taglio.cluster.planning.tables import Priced

# Rounds of local search.
_ROUNDS = 12


def improve(
    costs: Costs, priced: Priced, multipliers: np.ndarray, labels: np.ndarray, offered: np.ndarray, good_enough: float
) -> Account:
    """Local search by single moves over the labels `offered`, a mask (nodes, labels): at good prices the Lagrangian's
    labelling is nearly optimal, but breaks a limit or leaves part of one unused. Moves that share no value are
    additive, so each round takes many. A limit may stay broken."""
    labels = labels.copy()
    account = costs.account(priced, labels)
    total, uppers = account.sums, costs.uppers
    penalty, step = 4.0 * multipliers + 0.2 * abs(total[0]), 0.05 * abs(total[0])
    nodes, to = np.nonzero(offered)
    first = np.searchsorted(nodes, np.arange(costs.nodes + 1))
    change = costs.changes(priced, labels, account.use, nodes, to)

    def merit(sums: np.ndarray) -> np.ndarray:
        over = np.maximum(0.0, sums[..., 1:] - uppers)
        # The fixed penalty makes breaking a limit, however slightly, cost more than it could gain.
        return np.asarray(sums[..., 0] + over @ penalty + step * (over > 1e-9).any(axis=-1))

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
        feasible = total[0] < 1e8 and (total[1:] <= uppers + 1e-9).all()
        if not stale.any() or (feasible and total[0] <= good_enough):
            break
        account = costs.account(priced, labels)
        total, again = account.sums, np.flatnonzero(stale[nodes])
        change[again] = costs.changes(priced, labels, account.use, nodes[again], to[again])
    return costs.account(priced, labels)
