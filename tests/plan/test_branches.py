"""Branches: what may move as a whole."""

from taglio.plan.local_search import END, START, branches


def test_branches_are_what_comes_of_one_node_alone_or_leads_to_one_alone() -> None:
    # 0 → 1 → 2 → 5 and 0 → 3 → 4 → 5: what node 1 alone leads to, what alone leads to 4, and all that is behind 0.
    edges = [(0, START, 0), (1, 0, 1), (2, 1, 2), (3, 0, 3), (4, 3, 4), (5, 2, 5), (6, 4, 5), (7, 5, END)]
    found = {frozenset(node for node in range(6) if bits >> node & 1) for bits in branches(range(6), edges)}
    whole = frozenset(range(6))
    assert found == {*map(frozenset, ({1}, {2}, {3}, {4}, {5}, {0}, {1, 2}, {3, 4})), whole}
