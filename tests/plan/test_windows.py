"""Windows: what lies between a fork and its join runs between them, whatever the order."""

import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from taglio.plan.windows import END, START, Window, branches, windows


def test_a_fork_and_its_join_enclose_both_branches() -> None:
    # 0 → 1 → 3, 0 → 2 → 3 → 4
    ends = [(0, START, 0), (1, 0, 1), (2, 0, 2), (3, 1, 3), (4, 2, 3), (5, 3, 4), (6, 4, END)]
    found = windows(range(5), ends)
    assert Window(0, 3, (1, 2), (1, 2, 3, 4)) in found
    assert Window(START, END, (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 6)) in found
    assert len(found) == 2


def test_an_edge_that_passes_a_module_by_leaves_its_window() -> None:
    # 0 is read by 1 and, past everything, by 6; between 1 and 4 lie the branches 2 and 3.
    ends = [(i, a, b) for i, (a, b) in enumerate(((START, 0), (0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (5, 6)))]
    ends += [(8, 0, 6), (9, 6, END)]
    found = {(each.first, each.last): each.nodes for each in windows(range(7), ends)}
    assert found[1, 4] == (2, 3)
    assert found[0, 6] == (1, 2, 3, 4, 5)


def test_nodes_are_numbered_as_given_and_one_without_input_starts_at_once() -> None:
    ends = [(7, START, 10), (8, 10, 12), (9, 11, 12), (10, 12, END)]
    assert windows(range(10, 13), ends) == (
        Window(START, 12, (10, 11), (7, 8, 9)),
        Window(START, END, (10, 11, 12), (7, 8, 9, 10)),
    )


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    count = draw(st.integers(2, 9))
    ends: list[tuple[int, int]] = []
    for node in range(count):
        reads = draw(st.lists(st.integers(-1, node - 1), max_size=3, unique=True))
        ends += [(START if each < 0 else each, node) for each in reads]
    read = {source for source, _ in ends}
    ends += [(node, END) for node in range(count) if node not in read or draw(st.booleans())]
    return count, [(index, source, reader) for index, (source, reader) in enumerate(ends)]


@settings(deadline=None)
@given(graphs(), st.data())
def test_no_schedule_is_shorter_than_a_window(
    graph: tuple[int, list[tuple[int, int, int]]], data: st.DataObject
) -> None:
    count, ends = graph
    seconds = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    device = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    begin, end = _scheduled(count, ends, seconds, device, data)
    for window in windows(range(count), ends):
        opened = 0 if window.first == START else end[window.first]
        closed = max(end) if window.last == END else begin[window.last]
        for one in range(3):
            assert sum(seconds[n] for n in window.nodes if device[n] == one) <= closed - opened


def _scheduled(
    count: int, ends: list[tuple[int, int, int]], seconds: list[int], device: list[int], data: st.DataObject
) -> tuple[list[int], list[int]]:
    """Starts and ends where devices take what is ready in any order."""
    waits = {n: {source for _, source, reader in ends if reader == n and source != START} for n in range(count)}
    begin, end, free = [0] * count, [0] * count, [0, 0, 0]
    left = {n: len(sources) for n, sources in waits.items()}
    ready = [(data.draw(st.integers(0, 9)), n) for n in range(count) if not left[n]]
    heapq.heapify(ready)
    while ready:
        _, node = heapq.heappop(ready)
        begin[node] = max([free[device[node]], *(end[each] for each in waits[node])])
        end[node] = free[device[node]] = begin[node] + seconds[node]
        for other in range(count):
            if node in waits[other]:
                left[other] -= 1
                if not left[other]:
                    heapq.heappush(ready, (data.draw(st.integers(0, 9)), other))
    return begin, end


def test_branches_are_what_comes_of_one_node_alone_or_leads_to_one_alone() -> None:
    # 0 → 1 → 2 → 5 and 0 → 3 → 4 → 5: what node 1 alone leads to, what alone leads to 4, and all that is behind 0.
    edges = [(0, START, 0), (1, 0, 1), (2, 1, 2), (3, 0, 3), (4, 3, 4), (5, 2, 5), (6, 4, 5), (7, 5, END)]
    found = {frozenset(node for node in range(6) if bits >> node & 1) for bits in branches(range(6), edges)}
    whole = frozenset(range(6))
    assert found == {*map(frozenset, ({1}, {2}, {3}, {4}, {5}, {0}, {1, 2}, {3, 4})), whole}
