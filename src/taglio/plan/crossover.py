"""From several labellings that are each good but break a limit to one that keeps them all. Proves nothing.

Where two labellings differ, they differ in regions that share no value. Taking one region, or the first or last part
of one, from another labelling is a move whose effect on every sum is known exactly; moves that touch no value in
common add up. So large pieces of the network move as wholes, and their borders slide, where single moves would climb.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from taglio.plan.ledger import Ledger
from taglio.plan.prices import Market, Priced

# Places at which a region is split, pairs of moves that are looked at, and moves worked out at once.
_BORDERS, _PAIRED, _MOST = 10, 120, 1200


@dataclass(frozen=True, slots=True, eq=False)
class _Moves:
    """Move move[i] gives nodes[i] the label to[i]; `count` of them."""

    move: np.ndarray
    nodes: np.ndarray
    to: np.ndarray
    count: int


def cross(
    market: Market,
    ledger: Ledger,
    near: Sequence[set[int]],
    priced: Priced,
    multipliers: np.ndarray,
    labels: np.ndarray,
    answers: Sequence[np.ndarray],
    *,
    rounds: int = 8,
) -> np.ndarray:
    """The labels reached from `labels` by taking regions of `answers`; `near` lists who shares a value with a node."""
    labels = labels.copy()
    uppers = market.uppers
    for _ in range(rounds):
        total, use = ledger.totals(priced, labels)
        penalty, step = 4.0 * multipliers + 0.2 * abs(total[0]), 0.02 * abs(total[0])

        def merit(sums: np.ndarray, kept: bool, penalty: np.ndarray = penalty, step: float = step) -> np.ndarray:
            over = np.maximum(0.0, sums[..., 1:] - uppers)
            broken = (over > 1e-9).any(axis=-1)
            # What keeps all limits goes on keeping them.
            result: np.ndarray = sums[..., 0] + over @ penalty + np.where(broken, np.inf if kept else step, 0.0)
            return result

        moves = _moves(near, labels, answers)
        if not moves.count:
            break
        change, which, value = ledger.regions(priced, labels, use, moves.move, moves.nodes, moves.to)
        touches = np.zeros((moves.count, len(use)), dtype=bool)
        touches[which, value] = True
        taken = _choose(merit, uppers, total, change, touches, change[:, 0] + change[:, 1:] @ multipliers)
        if not taken:
            break
        mine = np.isin(moves.move, taken)
        labels[moves.nodes[mine]] = moves.to[mine]
    return labels


def _choose(
    merit: Callable[[np.ndarray, bool], np.ndarray],
    uppers: np.ndarray,
    total: np.ndarray,
    change: np.ndarray,
    touches: np.ndarray,
    priced: np.ndarray,
) -> list[int]:
    """Moves that touch nothing in common and together improve: the best alone or in twos, again and again."""
    taken: list[int] = []
    open_ = change[:, 0] < 1e8
    few = np.flatnonzero(open_)
    few = few[np.argsort(priced[few])][:_PAIRED]
    shared = touches[few].astype(np.float32)
    apart = np.triu(shared @ shared.T == 0)
    both = change[few][:, None] + change[few][None]
    while open_.any():
        kept = bool((total[1:] <= uppers + 1e-9).all())
        now = float(merit(total, kept))
        after = np.where(open_, merit(total + change, kept), np.inf)
        best = [int(after.argmin())]
        gain = now - after[best[0]]
        one, other = np.nonzero(apart & open_[few][:, None] & open_[few][None])
        if len(one):
            merits = merit(total + both[one, other], kept)
            least = int(merits.argmin())
            if now - merits[least] > 1.05 * gain:
                best, gain = [int(few[one[least]]), int(few[other[least]])], now - merits[least]
        if gain <= 1e-7 * abs(now):
            break
        for move in best:
            total = total + change[move]
            taken.append(move)
            open_ &= ~(touches & touches[move]).any(axis=1)
    return taken


def _moves(near: Sequence[set[int]], labels: np.ndarray, answers: Sequence[np.ndarray]) -> _Moves:
    """Regions where an answer differs, and their first and last parts."""
    seen: set[bytes] = set()
    nodes: list[np.ndarray] = []
    to: list[np.ndarray] = []
    for answer in answers:
        for region in _regions(near, np.flatnonzero(answer != labels)):
            size = len(region)
            borders = np.unique(np.linspace(0, size, min(size, _BORDERS) + 1).astype(int)).tolist()[1:-1]
            for part in [region, *(region[:at] for at in borders), *(region[at:] for at in borders)]:
                key = part.tobytes() + answer[part].tobytes()
                if key not in seen and len(nodes) < _MOST:
                    seen.add(key)
                    nodes.append(part)
                    to.append(answer[part])
    sizes = [len(part) for part in nodes]
    none = np.zeros(0, dtype=np.intp)
    return _Moves(
        np.repeat(np.arange(len(nodes)), sizes), np.concatenate([none, *nodes]), np.concatenate([none, *to]), len(nodes)
    )


def _regions(near: Sequence[set[int]], nodes: np.ndarray) -> list[np.ndarray]:
    """Nodes in groups that share no value."""
    left = set(nodes.tolist())
    found = []
    while left:
        stack = [left.pop()]
        region = []
        while stack:
            node = stack.pop()
            region.append(node)
            beside = near[node] & left
            left -= beside
            stack.extend(beside)
        found.append(np.sort(np.array(region, dtype=np.intp)))
    return found
