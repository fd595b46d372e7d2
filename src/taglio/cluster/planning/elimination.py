"""Exact min-plus variable elimination, many blocks at once. Handles tables and labels, not devices or limits.

The order consists of rounds, each an independent set of blocks with few neighbours: in a chain every other block is
eliminated at once, so that a chain of n takes about log₂ n rounds. Eliminations of one round and shape are one NumPy
call. Table axes are in elimination order: the block to be eliminated is always the first axis.

The backward pass gives the best labelling, and the least total under every single label (the min-marginals).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np


class TooWide(Exception):
    """The graph needs tables that are too large: use another method."""


def order(neighbours: list[set[int]], sizes: Sequence[int], limit: float) -> list[list[int]]:
    """Rounds of nodes in elimination order; modifies `neighbours`. Raises TooWide for a table above `limit` entries."""
    rounds: list[list[int]] = []
    remaining = set(range(len(neighbours)))
    spent = 0.0
    while remaining:
        free = [node for node in remaining if len(neighbours[node]) <= 2]
        if free:
            free.sort(key=lambda node: (len(neighbours[node]), node))
        else:
            free = _smallest(neighbours, remaining, sizes)
        blocked: set[int] = set()
        independent: list[int] = []
        for node in free:
            if node not in blocked:
                independent.append(node)
                blocked |= neighbours[node]
        for node in independent:
            around = neighbours[node]
            size = sizes[node] * prod(sizes[other] for other in around)
            spent += size
            if size > limit or spent > min(10 * limit, 6e7):  # of all tables: half a gigabyte
                raise TooWide(f"{size:.2g} entries for a block with {len(around)} neighbours")
            for neighbour in around:
                neighbours[neighbour] |= around
                neighbours[neighbour] -= {node, neighbour}
        remaining.difference_update(independent)
        rounds.append(independent)
    return rounds


def _smallest(neighbours: list[set[int]], remaining: set[int], sizes: Sequence[int]) -> list[int]:
    """The nodes whose elimination builds the smallest tables."""
    cost = {node: sizes[node] * prod(sizes[neighbour] for neighbour in neighbours[node]) for node in remaining}
    least = min(cost.values())
    return [node for node, size in cost.items() if size <= least * 1.001]


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """Tables summed in a step: their cells in the flat array, how they are laid out for broadcasting, and the axes of
    (node, *around) that they have. A message comes from a step before."""

    cells: slice | np.ndarray
    layout: tuple[int, ...]
    axes: tuple[int, ...]
    message: bool


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Eliminations of one shape: the `nodes`, their neighbours `around` (batch, neighbours), the sum of their tables
    (batch, node, *around), and the cells of the resulting messages (batch, *around): None without neighbours."""

    nodes: np.ndarray
    around: np.ndarray
    whole: np.ndarray
    inputs: tuple[Input, ...]
    out: slice | None

    def messages(self, flat: np.ndarray) -> np.ndarray:
        """The step's messages in a flat array."""
        return flat[self.out].reshape(self.whole.shape[0], *self.whole.shape[2:])


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
    steps: list[Step]

    def run(self) -> tuple[float, np.ndarray]:
        """The least sum of all factors, and the label of each node there."""
        total, flat = 0.0, self.factors
        for step in self.steps:
            first, *rest = (flat[source.cells].reshape(source.layout) for source in step.inputs)
            if rest:
                np.add(first, rest[0], out=step.whole)
                for table in rest[1:]:
                    np.add(step.whole, table, out=step.whole)
            else:
                np.copyto(step.whole, first)
            if step.out is None:
                total += float(np.minimum.reduce(step.whole, axis=1).sum())
            else:
                np.minimum.reduce(step.whole, axis=1, out=step.messages(flat))
        labels = np.zeros(len(self.sizes), dtype=np.intp)
        for step in reversed(self.steps):
            rows = np.arange(len(step.nodes))
            labels[step.nodes] = step.whole[(rows, slice(None), *labels[step.around].T)].argmin(axis=1)
        return total, labels

    def marginals(self, total: float) -> np.ndarray:
        """After `run`: the least sum under each label (nodes, most labels); infinite for labels that a node lacks."""
        least = np.full((len(self.sizes), max(self.sizes, default=1)), np.inf)
        outside = np.zeros_like(self.factors)
        for step in reversed(self.steps):
            if step.out is None:
                whole = step.whole + (total - step.whole.min(axis=1))[:, None]
            else:
                whole = step.whole + step.messages(outside)[:, None]
            least[step.nodes, : whole.shape[1]] = whole.reshape(*whole.shape[:2], -1).min(axis=2)
            for source in step.inputs:
                if source.message:
                    minimised = tuple(axis for axis in range(1, whole.ndim) if axis - 1 not in source.axes)
                    before = self.factors[source.cells]
                    outside[source.cells] = whole.min(axis=minimised).reshape(before.shape) - before
        return least


# A table: its scope or axes, whether it is a message, and the factor's number or the message's first cell.
_Table = tuple[tuple[int, ...], bool, int]
# Eliminations form one step if these are equal: the label counts of (node, *around), and by table its axes and whether
# it is a message.
_Kind = tuple[tuple[int, ...], tuple[tuple[tuple[int, ...], bool], ...]]


@dataclass(slots=True, eq=False)
class _Eliminated:
    """A node to eliminate, its neighbours, and its tables by axes of (node, *around)."""

    node: int
    around: tuple[int, ...]
    entries: list[_Table]


def schedule(sizes: Sequence[int], scopes: Sequence[tuple[int, ...]], limit: float) -> Elimination:
    """An elimination of factors with these scopes. Every node needs a unary factor. Raises TooWide."""
    neighbours: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for node in scope:
            neighbours[node].update(scope)
    for node, around in enumerate(neighbours):
        around.discard(node)
    rounds = order(neighbours, sizes, limit)
    rank = {node: index for index, node in enumerate(node for nodes in rounds for node in nodes)}
    ordered = [tuple(sorted(scope, key=rank.__getitem__)) for scope in scopes]
    waiting: list[list[_Table]] = [[] for _ in sizes]  # by the first node of their scope
    for number, scope in enumerate(ordered):
        waiting[scope[0]].append((scope, False, number))
    starts, end, planned = np.zeros(len(scopes), dtype=np.intp), 0, []
    for nodes in rounds:
        for (shape, kinds), members in _alike(nodes, sizes, waiting, rank).items():
            count, inputs = len(members), []
            for place, (axes, message) in enumerate(kinds):
                cells = prod(shape[axis] for axis in axes)
                entries = [member.entries[place][2] for member in members]
                if not message:
                    starts[entries] = end + cells * np.arange(count)
                    entries, end = starts[entries].tolist(), end + cells * count
                layout = (count, *(size if axis in axes else 1 for axis, size in enumerate(shape)))
                inputs.append(Input(_run_of(np.array(entries), cells), layout, axes, message))
            out, cells = None, prod(shape[1:])
            if len(shape) > 1:
                out = slice(end, end + count * cells)
                for row, sender in enumerate(members):
                    waiting[sender.around[0]].append((sender.around, True, end + row * cells))
                end = out.stop
            planned.append((shape, members, tuple(inputs), out))
    tables, steps, begin = np.empty(sum(len(m) * prod(shape) for shape, m, _, _ in planned)), [], 0
    for shape, members, made_of, out in planned:
        whole = tables[begin : begin + len(members) * prod(shape)].reshape(len(members), *shape)
        begin += whole.size
        batch_around = np.array([member.around for member in members], dtype=np.intp).reshape(len(members), -1)
        steps.append(Step(np.array([member.node for member in members]), batch_around, whole, made_of, out))
    return Elimination(tuple(sizes), ordered, np.zeros(end), starts, tables, steps)


def _alike(
    nodes: Sequence[int], sizes: Sequence[int], waiting: Sequence[Sequence[_Table]], rank: Mapping[int, int]
) -> dict[_Kind, list[_Eliminated]]:
    """The nodes of a round by kind: those that form one step."""
    groups: dict[_Kind, list[_Eliminated]] = {}
    for node in nodes:
        scope_nodes = {neighbour for scope, _, _ in waiting[node] for neighbour in scope} - {node}
        around = tuple(sorted(scope_nodes, key=rank.__getitem__))
        position = {axis_node: index for index, axis_node in enumerate((node, *around))}
        entries = [
            (tuple(position[scope_node] for scope_node in scope), message, at) for scope, message, at in waiting[node]
        ]
        # The widest table first: the others are added to it.
        entries.sort(key=lambda entry: (-len(entry[0]), entry))
        key = tuple(sizes[axis_node] for axis_node in position), tuple((axes, message) for axes, message, _ in entries)
        groups.setdefault(key, []).append(_Eliminated(node, around, entries))
    for members in groups.values():
        members.sort(key=lambda member: [at for _, message, at in member.entries if message])
    return groups


def _run_of(starts: np.ndarray, cells: int) -> slice | np.ndarray:
    """The cells of tables of one size: a slice if they follow one another."""
    if (np.diff(starts) == cells).all():
        return slice(int(starts[0]), int(starts[-1]) + cells)
    return np.asarray(starts[:, None] + np.arange(cells))
