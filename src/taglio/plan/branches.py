"""Branches of a graph: what comes of one block alone, or leads to one alone. They may move as wholes."""

from collections.abc import Sequence

from taglio.plan.problem import CALLER, SOURCE, Problem

START = -1
END = -2


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
