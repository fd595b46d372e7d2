"""Windows of a graph: pairs of blocks between which others must run, one after the other where they share a device.

What follows block a and leads to block b runs after a has ended and before b starts. A longest path may therefore leap
from a to b over everything in between, and take as long as any one device is busy with that, or any one link. Where a
graph forks and joins, a path sees one branch; a window sees what all of them keep one device busy with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from taglio.plan.problem import CALLER, SOURCE, Problem

START = -1
END = -2


@dataclass(frozen=True, slots=True)
class Window:
    """After the node `first` (or START) and before `last` (or END): the nodes strictly between, and the edges that
    begin and end in the window."""

    first: int
    last: int
    nodes: tuple[int, ...]
    edges: tuple[int, ...]


def flow_ends(problem: Problem, model: int) -> tuple[tuple[int, int, int], ...]:
    """The edges of one model: index, producer (or START), reader (or END)."""
    values, of = problem.values, problem.values.edge_value()
    return tuple(
        (
            edge,
            START if values.producer[value] == SOURCE else int(values.producer[value]),
            END if values.readers[edge] == CALLER else int(values.readers[edge]),
        )
        for edge, value in enumerate(of.tolist())
        if values.model[value] == model
    )


def windows(nodes: range, ends: Sequence[tuple[int, int, int]]) -> tuple[Window, ...]:
    """Windows from each fork to where its branches have met, to each join from where they came apart, and the whole.

    `nodes` are one model's, in execution order; `ends` its edges: index, producer (or START), reader (or END).
    """
    stop, edges, before, after = _graph(nodes, ends)
    parted, joined = _dominators(before), _joins(after)
    pairs = {(parted[index], index) for index in range(1, stop + 1) if len(before[index]) > 1}
    pairs |= {(index, joined[index]) for index in range(stop) if len(after[index]) > 1}
    pairs.add((0, stop))
    earlier = _ancestors(before)
    names = [START, *nodes, END]
    found = []
    for first, last in sorted(pairs):
        between = [n for n in range(first + 1, last) if earlier[last] >> n & 1 and earlier[n] >> first & 1]
        if len(between) > 1:
            inside = {first, last, *between}
            kept = tuple(edge for edge, source, reader in edges if source in inside and reader in inside)
            found.append(Window(names[first], names[last], tuple(names[n] for n in between), kept))
    return tuple(found)


def branches(nodes: range, ends: Sequence[tuple[int, int, int]]) -> set[int]:
    """What all comes of one node alone, or leads to one alone, itself included, for every node; nodes as bits."""
    stop, _, before, after = _graph(nodes, ends)
    comes, leads = ([1 << index - 1 if 0 < index < stop else 0 for index in range(stop + 1)] for _ in range(2))
    parted, joined = _dominators(before), _joins(after)
    for index in range(stop - 1, 0, -1):
        comes[parted[index]] |= comes[index]
    for index in range(1, stop):
        leads[joined[index]] |= leads[index]
    return {*comes[1:stop], *leads[1:stop]}


def _graph(
    nodes: range, ends: Sequence[tuple[int, int, int]]
) -> tuple[int, list[tuple[int, int, int]], list[set[int]], list[set[int]]]:
    """The end's number, the edges, and what stands before and after each: the start is 0, the nodes are in between."""
    stop = len(nodes) + 1
    own = {START: 0, END: stop} | {node: index for index, node in enumerate(nodes, 1)}
    edges = [(edge, own[source], own[reader]) for edge, source, reader in ends]
    before: list[set[int]] = [set() for _ in range(stop + 1)]
    after: list[set[int]] = [set() for _ in range(stop + 1)]
    for _, source, reader in edges:
        before[reader].add(source)
        after[source].add(reader)
    for index in range(1, stop):  # what reads nothing may run at once; what nobody reads is done at the end
        if not before[index]:
            before[index].add(0)
            after[0].add(index)
        if not after[index]:
            after[index].add(stop)
            before[stop].add(index)
    return stop, edges, before, after


def _joins(after: Sequence[set[int]]) -> list[int]:
    """The nearest node that every path from a node to the end passes, by node."""
    stop = len(after) - 1
    mirrored = _dominators([{stop - each for each in after[stop - index]} for index in range(stop + 1)])
    return [stop - mirrored[stop - index] for index in range(stop + 1)]


def _dominators(before: Sequence[set[int]]) -> list[int]:
    """The nearest node that every path from node 0 to a node passes (Cooper, Harvey and Kennedy, 2001), by node."""
    found = [0] * len(before)
    for node in range(1, len(before)):
        nearest = -1
        for each in before[node]:
            one, other = nearest if nearest >= 0 else each, each
            while one != other:
                one, other = (found[one], other) if one > other else (one, found[other])
            nearest = one
        found[node] = nearest
    return found


def _ancestors(before: Sequence[set[int]]) -> list[int]:
    """Every node that a path leads from to a node, as bits, by node."""
    found = [0] * len(before)
    for node, direct in enumerate(before):
        for each in direct:
            found[node] |= found[each] | 1 << each
    return found
