"""Exact min-plus variable elimination, many blocks at once. Handles tables and labels, not devices or limits.

The order consists of rounds, each an independent set of blocks with few neighbours: in a chain every other block is
eliminated at once, so that a chain of n takes about log₂ n rounds. Eliminations of one round and shape are one NumPy
call. Table axes are in elimination order: the block to be eliminated is always the first axis.

The backward pass gives the best labelling, and the least total under every single label (the min-marginals).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

# Most entries of one table, and of all tables together (half a gigabyte).
LARGEST_TABLE = 4e7
_ALL_TABLES = 6e7


class TooWide(Exception):
    """The graph needs tables that are too large: use another method."""


def order(neighbours: list[set[int]], sizes: Sequence[int], limit: float = LARGEST_TABLE) -> list[list[int]]:
    """Rounds of nodes in elimination order; modifies `neighbours`. Raises TooWide for a table above `limit` entries."""
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
            if size > limit or spent > min(10 * limit, _ALL_TABLES):
                raise TooWide(f"{size:.2g} entries for a block with {len(around)} neighbours")
            for each in around:
                neighbours[each] |= around
                neighbours[each] -= {node, each}
        left.difference_update(taken)
        rounds.append(taken)
    return rounds


def _least_fill(neighbours: list[set[int]], left: set[int], sizes: Sequence[int]) -> list[int]:
    """The nodes whose elimination builds the smallest tables; ties are broken by least fill."""
    cost = {node: sizes[node] * prod(sizes[each] for each in neighbours[node]) for node in left}
    least = min(cost.values())
    best = [node for node, each in cost.items() if each <= least * 1.001]
    if len(best) > 200:
        return best

    def fill(node: int) -> int:
        around = neighbours[node]
        return sum(len(around - neighbours[each]) - 1 for each in around)

    return sorted(best, key=fill)


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """Tables summed in a step: a view laid out for broadcasting if they are contiguous, otherwise `rows` of `pool`.
    `axes` are their positions in (node, *around)."""

    pool: np.ndarray
    rows: np.ndarray | slice
    axes: tuple[int, ...]
    layout: tuple[int, ...]
    view: np.ndarray | None
    message: bool

    def tables(self) -> np.ndarray:
        """The tables, laid out for broadcasting."""
        return self.pool[self.rows].reshape(self.layout) if self.view is None else self.view


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Eliminations of one shape: their `nodes`, the sum of their tables (batch, node, *around), and where the resulting
    messages (batch, *around) go: rows of `pool`, None for nodes without remaining neighbours."""

    nodes: np.ndarray
    whole: np.ndarray
    inputs: tuple[Input, ...]
    pool: np.ndarray | None
    rows: slice

    def run(self) -> float:
        """Sum the tables and eliminate; returns what nodes without neighbours add to the total."""
        whole = self.whole
        first, *rest = self.inputs
        if rest:
            np.add(first.tables(), rest[0].tables(), out=whole)
            for each in rest[1:]:
                np.add(whole, each.tables(), out=whole)
        else:
            np.copyto(whole, first.tables())
        if self.pool is None:
            return float(np.minimum.reduce(whole, axis=1).sum())
        np.minimum.reduce(whole, axis=1, out=self.pool[self.rows])
        return 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """Nodes of one round in the backward pass: where to read their best label, given their neighbours' labels."""

    nodes: np.ndarray
    base: np.ndarray
    around: np.ndarray
    strides: np.ndarray
    line: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Elimination:
    """A schedule for factors with given scopes, and its tables.

    `sizes` are label counts by node. `scopes` are the factors' scopes in elimination order; before each run the caller
    writes factor f's table, with its axes in that order, to `factors` from `starts[f]` on.
    """

    sizes: tuple[int, ...]
    scopes: list[tuple[int, ...]]
    factors: np.ndarray
    starts: np.ndarray
    tables: np.ndarray
    pools: dict[tuple[int, ...], np.ndarray]
    steps: list[Step]
    ways: list[Way]

    def run(self) -> tuple[float, np.ndarray]:
        """The least sum of all factors, and the label of each node there."""
        total = sum(step.run() for step in self.steps)
        labels = np.zeros(len(self.sizes), dtype=np.intp)
        for way in self.ways:
            at = way.base + (labels[way.around] * way.strides).sum(axis=1)
            labels[way.nodes] = self.tables.take(at[:, None] + way.line).argmin(axis=1)
        return total, labels

    def marginals(self, total: float) -> np.ndarray:
        """After `run`: the least sum under each label (nodes, most labels); infinite for labels that a node lacks."""
        result = np.full((len(self.sizes), max(self.sizes, default=1)), np.inf)
        outside = {id(pool): np.zeros_like(pool) for pool in self.pools.values()}
        for step in reversed(self.steps):
            if step.pool is None:
                whole = step.whole + (total - step.whole.min(axis=1))[:, None]
            else:
                whole = step.whole + outside[id(step.pool)][step.rows][:, None]
            result[step.nodes, : whole.shape[1]] = whole.reshape(*whole.shape[:2], -1).min(axis=2)
            for each in step.inputs:
                if each.message:
                    gone = tuple(axis for axis in range(1, whole.ndim) if axis - 1 not in each.axes)
                    outside[id(each.pool)][each.rows] = whole.min(axis=gone) - each.pool[each.rows]
        return result


def schedule(sizes: Sequence[int], scopes: Sequence[tuple[int, ...]], limit: float = LARGEST_TABLE) -> Elimination:
    """An elimination of factors with these scopes. Every node needs a unary factor.

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
    return _Assembly(sizes, [tuple(sorted(scope, key=by_rank.__getitem__)) for scope in scopes], by_rank).build(rounds)


@dataclass(slots=True, eq=False)
class _Member:
    """A node to eliminate, its neighbours, and its tables: axis positions, whether they are messages, and indices."""

    node: int
    around: tuple[int, ...]
    entries: list[tuple[tuple[int, ...], bool, int]]


class _Assembly:
    """Turns rounds into steps: nodes of a round with the same shape form one step."""

    def __init__(self, sizes: Sequence[int], scopes: list[tuple[int, ...]], rank: list[int]) -> None:
        self.sizes, self.scopes, self.rank = sizes, scopes, rank
        # Tables by the first node of their scope: (scope, index, whether a message).
        self.waiting: list[list[tuple[tuple[int, ...], int, bool]]] = [[] for _ in sizes]
        for number, scope in enumerate(scopes):
            self.waiting[scope[0]].append((scope, number, False))
        self.used: dict[tuple[int, ...], int] = {}

    def build(self, rounds: list[list[int]]) -> Elimination:
        """Lay out all tables, factors in order of use."""
        grouped = [self._groups(nodes) for nodes in rounds]
        starts = np.zeros(len(self.scopes), dtype=np.intp)
        end = entries = 0
        for group in (group for groups in grouped for group in groups):
            shape = self._shape(group[0])
            entries += len(group) * prod(shape)
            for place, (axes, message, _) in enumerate(group[0].entries):
                if not message:
                    cells = prod(shape[axis] for axis in axes)
                    starts[[each.entries[place][2] for each in group]] = end + cells * np.arange(len(group))
                    end += cells * len(group)
        self.factors, self.starts, self.tables = np.zeros(end), starts, np.empty(entries)
        self.pools = {shape: np.zeros((count, *shape)) for shape, count in self.used.items()}
        self.taken = dict.fromkeys(self.used, 0)
        self.base = 0
        steps, ways = [], []
        for groups in grouped:
            begins = []
            for group in groups:
                begins.append(self.base)
                steps.append(self._step(group))
            ways.append(self._way(groups, begins))
        return Elimination(
            tuple(self.sizes), self.scopes, self.factors, starts, self.tables, self.pools, steps, ways[::-1]
        )

    def _shape(self, member: _Member) -> tuple[int, ...]:
        return tuple(self.sizes[each] for each in (member.node, *member.around))

    def _groups(self, nodes: list[int]) -> list[list[_Member]]:
        groups: dict[object, list[_Member]] = {}
        for node in nodes:
            kept = {each for scope, _, _ in self.waiting[node] for each in scope} - {node}
            around = tuple(sorted(kept, key=self.rank.__getitem__))
            position = {each: index for index, each in enumerate((node, *around))}
            # The widest table first: the others are added to it.
            entries = sorted(
                ((tuple(position[each] for each in scope), message, row) for scope, row, message in self.waiting[node]),
                key=lambda each: (-len(each[0]), each),
            )
            member = _Member(node, around, entries)
            key = (self._shape(member), tuple((axes, message) for axes, message, _ in entries))
            groups.setdefault(key, []).append(member)
        for group in groups.values():
            group.sort(key=lambda each: [row for _, message, row in each.entries if message])
            for member in group:
                if member.around:
                    shape = self._shape(member)[1:]
                    row = self.used.get(shape, 0)
                    self.used[shape] = row + 1
                    self.waiting[member.around[0]].append((member.around, row, True))
        return list(groups.values())

    def _step(self, group: list[_Member]) -> Step:
        shape, count = self._shape(group[0]), len(group)
        whole = self.tables[self.base : self.base + count * prod(shape)].reshape(count, *shape)
        self.base += whole.size
        inputs = tuple(self._input(group, place, shape) for place in range(len(group[0].entries)))
        nodes = np.array([each.node for each in group])
        if len(shape) == 1:
            return Step(nodes, whole, inputs, None, slice(0))
        begin = self.taken[shape[1:]]
        self.taken[shape[1:]] += count
        return Step(nodes, whole, inputs, self.pools[shape[1:]], slice(begin, begin + count))

    def _input(self, group: list[_Member], place: int, shape: tuple[int, ...]) -> Input:
        axes, message, number = group[0].entries[place]
        own = tuple(shape[axis] for axis in axes)
        layout = (len(group), *(size if axis in axes else 1 for axis, size in enumerate(shape)))
        if not message:
            begin = self.starts[number]
            pool = self.factors[begin : begin + len(group) * prod(own)].reshape(len(group), *own)
            return Input(pool, slice(0, len(group)), axes, layout, pool.reshape(layout), message)
        rows = [each.entries[place][2] for each in group]
        pool = self.pools[own]
        if all(b - a == 1 for a, b in pairwise(rows)):
            slice_ = slice(rows[0], rows[0] + len(rows))
            return Input(pool, slice_, axes, layout, pool[slice_].reshape(layout), message)
        return Input(pool, np.array(rows), axes, layout, None, message)

    def _way(self, groups: list[list[_Member]], begins: list[int]) -> Way:
        """How the nodes of a round find their labels; missing neighbours and labels are padded by repetition."""
        count = sum(map(len, groups))
        degree = max(len(group[0].around) for group in groups)
        longest = max(self.sizes[group[0].node] for group in groups)
        nodes, base = np.zeros(count, dtype=np.intp), np.zeros(count, dtype=np.intp)
        around, strides = np.zeros((2, count, degree), dtype=np.intp)
        line = np.zeros((count, longest), dtype=np.intp)
        row = 0
        for group, begin in zip(groups, begins, strict=True):
            shape, rows = self._shape(group[0]), slice(row, row + len(group))
            row += len(group)
            nodes[rows] = [each.node for each in group]
            base[rows] = begin + prod(shape) * np.arange(len(group))
            step = np.cumprod((1, *shape[:0:-1]))[::-1]
            line[rows] = step[0] * np.minimum(np.arange(longest), shape[0] - 1)
            around[rows, : len(shape) - 1] = [each.around for each in group]
            strides[rows, : len(shape) - 1] = step[1:]
        return Way(nodes, base, around, strides, line)
