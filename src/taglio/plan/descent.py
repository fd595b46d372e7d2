"""Local search by single moves and pairs: turn a nearly optimal labelling into one within the limits. No bound.

At good prices the Lagrangian's labelling is nearly optimal but breaks a limit or leaves part of one unused. Single
moves are evaluated exactly; moves that share no value are additive, so a greedy choice among them, followed by the best
pairs, is exact too.
"""

from collections.abc import Callable

import numpy as np

from taglio.plan.costs import Costs, Priced

_MOST_PAIRED = 160


class Descent:
    """Local search over the labels `offered`, a mask (nodes, labels)."""

    def __init__(self, costs: Costs) -> None:
        self.costs, values = costs, costs.problem.values
        self.near: list[set[int]] = [set() for _ in range(costs.nodes)]
        start, readers = values.start.tolist(), values.readers.tolist()
        for value, producer in enumerate(values.producer.tolist()):
            ends = {node for node in (producer, *readers[start[value] : start[value + 1]]) if node >= 0}
            for node in ends:
                self.near[node] |= ends

    def improve(
        self,
        priced: Priced,
        multipliers: np.ndarray,
        labels: np.ndarray,
        offered: np.ndarray,
        *,
        good_enough: float,
        rounds: int = 12,
    ) -> tuple[float, np.ndarray]:
        """Objective (infinite if a limit stays broken) and labels reached from `labels`."""
        costs = self.costs
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
            result: np.ndarray = sums[..., 0] + over @ penalty + step * (over > 1e-9).any(axis=-1)
            return result

        for _ in range(rounds):
            stale: set[int] = set()
            open_ = np.ones(len(nodes), dtype=bool)

            def take(move: int, stale: set[int] = stale, open_: np.ndarray = open_) -> None:
                nonlocal total
                total = total + change[move]
                node = int(nodes[move])
                labels[node] = to[move]
                for other in self.near[node]:
                    open_[first[other] : first[other + 1]] = False
                stale |= self.near[node]

            while len(nodes):
                now = float(merit(total))
                after = np.where(open_, merit(total + change), np.inf)
                best = int(after.argmin())
                if after[best] >= now - 1e-9 * abs(now):
                    break
                take(best)
            feasible = bool((total[1:] <= uppers + 1e-9).all())
            if feasible and total[0] <= good_enough:
                break
            if not stale:
                for one, other in self._pairs(merit, total, change, multipliers, nodes, open_):
                    if not (open_[one] and open_[other]):
                        continue
                    if float(merit(total + change[one] + change[other])) < float(merit(total)) - 1e-9 * abs(total[0]):
                        take(one)
                        take(other)
                if not stale:
                    break
            total, use = costs.by_move(priced, labels)
            again = np.concatenate([np.arange(first[node], first[node + 1]) for node in sorted(stale)])
            change[again] = costs.changes(priced, labels, use, nodes[again], to[again])
        total, _ = costs.by_move(priced, labels)
        feasible = bool((total[1:] <= uppers + 1e-9).all()) and total[0] < 1e8
        return (float(total[0]) if feasible else np.inf), labels

    def _pairs(
        self,
        merit: Callable[[np.ndarray], np.ndarray],
        total: np.ndarray,
        change: np.ndarray,
        multipliers: np.ndarray,
        nodes: np.ndarray,
        open_: np.ndarray,
    ) -> list[tuple[int, int]]:
        """Pairs of moves that improve together, best first."""
        priced = change[:, 0] + change[:, 1:] @ multipliers
        moving = np.abs(change).sum(axis=1) > 0.0
        order = np.flatnonzero(open_ & moving & (change[:, 0] < 1e8))
        order = order[np.argsort(priced[order])][:_MOST_PAIRED]
        if len(order) < 2:
            return []
        both = total + change[order][:, None] + change[order][None]
        after = merit(both)
        moves: dict[int, list[int]] = {}
        for row, node in enumerate(nodes[order].tolist()):
            moves.setdefault(node, []).append(row)
        met = set(moves)
        for node, mine in moves.items():
            theirs = [row for other in self.near[node] & met for row in moves[other]]
            after[np.ix_(mine, theirs)] = np.inf
        rows, columns = np.triu_indices(len(order), 1)
        gains = after[rows, columns]
        now = float(merit(total))
        good = np.flatnonzero(gains < now - 1e-9 * abs(now))
        good = good[np.argsort(gains[good])][:2000]
        return [(int(order[rows[index]]), int(order[columns[index]])) for index in good]
