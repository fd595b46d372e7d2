"""Exact min-plus variable elimination, many blocks at once. Knows tables and labels; nothing of devices or limits.

An order is found in rounds: each takes an independent set of blocks of few neighbours, so that in a chain every other
block goes at once and a chain of n is done in about log₂ n rounds. Eliminations of one round and shape are one NumPy
call. Tables have their axes in elimination order: the block to be eliminated is always the first axis.

Going back gives the best labelling, and the least total under every single label (the min-marginals).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

import numpy as np

# An elimination that builds more table entries than this is not tried.
LARGEST_TABLE = 4e7
_CHUNK = 4_000_000


class TooWide(Exception):
    """The graph needs tables that are too large: another method has to do it."""


@dataclass(slots=True)
class Step:
    """Eliminations of one shape: `nodes` (batch), their kept neighbours `around` (batch, k), and where tables lie.

    `inputs` are (shape, rows, positions of the axes in (node, *around), whether the table is a message).
    """

    nodes: np.ndarray
    around: np.ndarray
    sizes: tuple[int, ...]
    inputs: list[tuple[tuple[int, ...], np.ndarray | slice, tuple[int, ...], bool]]
    output: slice


def order(neighbours: list[set[int]], sizes: Sequence[int], limit: float = LARGEST_TABLE) -> list[list[int]]:
    """Nodes in rounds of an elimination order; `neighbours` is used up. Raises TooWide beyond `limit` entries."""
    rounds: list[list[int]] = []
    left = set(range(len(neighbours)))
    spent = 0.0
    while left:
        free = [node for node in left if len(neighbours[node]) <= 2]
        if free:
            free.sort(key=lambda node: (len(neighbours[node]), node))
        else:
            free = _least_fill(neighbours, left, sizes)
        blocked: set[int] = set()
        taken: list[int] = []
        for node in free:
            if node not in blocked:
                taken.append(node)
                blocked |= neighbours[node]
        for node in taken:
            around = neighbours[node]
            size = sizes[node] * prod(sizes[each] for each in around)
            spent += size
            if size > limit or spent > 10 * limit:
                raise TooWide(f"{size:.2g} entries for a block with {len(around)} neighbours")
            for each in around:
                neighbours[each] |= around
                neighbours[each] -= {node, each}
        left.difference_update(taken)
        rounds.append(taken)
    return rounds


def _least_fill(neighbours: list[set[int]], left: set[int], sizes: Sequence[int]) -> list[int]:
    """The nodes whose elimination builds the smallest tables, of those of least size and then of least fill."""
    cost = {node: sizes[node] * prod(sizes[each] for each in neighbours[node]) for node in left}
    least = min(cost.values())
    best = [node for node, each in cost.items() if each <= least * 1.001]
    if len(best) > 200:
        return best

    def fill(node: int) -> int:
        around = neighbours[node]
        return sum(len(around - neighbours[each]) - 1 for each in around)

    return sorted(best, key=fill)


@dataclass(slots=True)
class Elimination:
    """A schedule for factors with these scopes, and the tables while it runs.

    `sizes` are labels by node. `scopes` are the factors' in elimination order; before each run the caller writes their
    tables, so laid out, to `pools[shape][row]` as `places` says.
    """

    sizes: tuple[int, ...]
    scopes: list[tuple[int, ...]]
    places: list[tuple[tuple[int, ...], int]]
    pools: dict[tuple[int, ...], np.ndarray]
    steps: list[Step] = field(default_factory=list)

    def run(self) -> tuple[float, np.ndarray]:
        """The least sum of all factors and the label of each node."""
        total = 0.0
        for step in self.steps:
            message = self._eliminate(step)
            if step.around.shape[1]:
                self.pools[message.shape[1:]][step.output] = message
            else:
                total += float(message.sum())
        labels = np.zeros(len(self.sizes), dtype=np.intp)
        for step in reversed(self.steps):
            chosen = labels[step.around]
            line = np.zeros((len(step.nodes), step.sizes[0]))
            for shape, rows, axes, _ in step.inputs:
                table = self.pools[shape]
                index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
                line += table[(index, slice(None), *(chosen[:, axis - 1] for axis in axes[1:]))]
            labels[step.nodes] = line.argmin(axis=1)
        return total, labels

    def marginals(self, total: float) -> list[np.ndarray]:
        """After `run`: by node, the least sum under each label."""
        result: list[np.ndarray] = [np.zeros(0)] * len(self.sizes)
        outside = {shape: np.zeros_like(pool) for shape, pool in self.pools.items()}
        for step in reversed(self.steps):
            count = len(step.around.T)
            for begin, end in _chunks(len(step.nodes), prod(step.sizes)):
                whole = self._sum(step, begin, end)
                if count:
                    beyond = outside[step.sizes[1:]][step.output.start + begin : step.output.start + end]
                    whole += beyond[:, None]
                else:
                    whole += (total - whole.min(axis=1))[:, None]
                own = whole.reshape(end - begin, step.sizes[0], -1).min(axis=2)
                for node, line in zip(step.nodes[begin:end], own, strict=True):
                    result[node] = line
                for shape, rows, axes, message in step.inputs:
                    if message:
                        gone = tuple(axis + 1 for axis in range(count + 1) if axis not in axes)
                        at = _part(rows, begin, end)
                        outside[shape][at] = (whole.min(axis=gone) if gone else whole) - self.pools[shape][at]
        return result

    def _sum(self, step: Step, begin: int, end: int) -> np.ndarray:
        whole = np.empty((end - begin, *step.sizes))
        first = True
        for shape, rows, axes, _ in sorted(step.inputs, key=lambda each: -len(each[2])):
            table = self.pools[shape][_part(rows, begin, end)]
            layout = [step.sizes[axis] if axis in axes else 1 for axis in range(len(step.sizes))]
            if first:
                whole[...] = table.reshape(end - begin, *layout)
                first = False
            else:
                whole += table.reshape(end - begin, *layout)
        return whole

    def _eliminate(self, step: Step) -> np.ndarray:
        pieces = [self._sum(step, begin, end).min(axis=1) for begin, end in _chunks(len(step.nodes), prod(step.sizes))]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def schedule(sizes: Sequence[int], scopes: Sequence[tuple[int, ...]], limit: float = LARGEST_TABLE) -> Elimination:
    """An elimination of factors with these scopes. Every node needs a factor of its own (its unary table).

    Raises TooWide.
    """
    neighbours: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for node in scope:
            neighbours[node].update(scope)
    for node, around in enumerate(neighbours):
        around.discard(node)
    rounds = order(neighbours, sizes, limit)
    rank = np.empty(len(sizes), dtype=np.intp)
    rank[[node for nodes in rounds for node in nodes]] = np.arange(len(sizes))
    by_rank: list[int] = rank.tolist()
    return _assemble(sizes, [tuple(sorted(scope, key=by_rank.__getitem__)) for scope in scopes], rounds, by_rank)


# A node, its kept neighbours, and its tables: positions of their axes, whether they are messages, and rows.
_Member = tuple[int, tuple[int, ...], list[tuple[tuple[int, ...], bool, int]]]


def _assemble(
    sizes: Sequence[int], scopes: Sequence[tuple[int, ...]], rounds: list[list[int]], rank: list[int]
) -> Elimination:
    used: dict[tuple[int, ...], int] = {}
    bucket: list[list[tuple[tuple[int, ...], tuple[int, ...], int, bool]]] = [[] for _ in sizes]
    places = []
    for scope in scopes:
        shape = tuple(sizes[node] for node in scope)
        row = used.get(shape, 0)
        used[shape] = row + 1
        places.append((shape, row))
        bucket[scope[0]].append((scope, shape, row, False))
    steps: list[Step] = []
    for nodes in rounds:
        groups: dict[tuple[object, ...], list[_Member]] = {}
        for node in nodes:
            kept = {each for scope, _, _, _ in bucket[node] for each in scope} - {node}
            around = tuple(sorted(kept, key=rank.__getitem__))
            position = {each: index for index, each in enumerate((node, *around))}
            entries = sorted(
                (tuple(position[each] for each in scope), message, row) for scope, _, row, message in bucket[node]
            )
            key = (
                sizes[node],
                *(sizes[each] for each in around),
                tuple((axes, message) for axes, message, _ in entries),
            )
            groups.setdefault(key, []).append((node, around, entries))
        steps += [_step(sizes, members, used, bucket) for members in groups.values()]
    pools = {shape: np.zeros((count, *shape)) for shape, count in used.items()}
    return Elimination(tuple(sizes), list(scopes), places, pools, steps)


def _step(
    sizes: Sequence[int],
    members: list[_Member],
    used: dict[tuple[int, ...], int],
    bucket: list[list[tuple[tuple[int, ...], tuple[int, ...], int, bool]]],
) -> Step:
    node, around, entries = members[0]
    own = tuple(sizes[each] for each in (node, *around))
    shape = own[1:]
    begin = used.get(shape, 0)
    if around:
        used[shape] = begin + len(members)
        for index, (_, others, _) in enumerate(members):
            bucket[others[0]].append((others, shape, begin + index, True))
    inputs: list[tuple[tuple[int, ...], np.ndarray | slice, tuple[int, ...], bool]] = []
    for index, (axes, message, _) in enumerate(entries):
        rows = [each[2][index][2] for each in members]
        array: np.ndarray | slice = np.array(rows)
        if rows[-1] - rows[0] == len(rows) - 1 and all(b - a == 1 for a, b in pairwise(rows)):
            array = slice(rows[0], rows[-1] + 1)
        inputs.append((tuple(own[axis] for axis in axes), array, axes, message))
    nodes = np.array([each[0] for each in members])
    kept = np.array([each[1] for each in members], dtype=np.intp).reshape(len(members), len(around))
    return Step(nodes, kept, own, inputs, slice(begin, begin + len(members)))


def _chunks(count: int, size: int) -> list[tuple[int, int]]:
    """Ranges of a batch of tables of `size` entries that stay within memory."""
    each = max(1, int(_CHUNK // max(1, size)))
    return [(begin, min(count, begin + each)) for begin in range(0, count, each)]


def _part(rows: np.ndarray | slice, begin: int, end: int) -> np.ndarray | slice:
    return slice(rows.start + begin, rows.start + end) if isinstance(rows, slice) else rows[begin:end]
