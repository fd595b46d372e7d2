"""Routes of packets between devices, without any namespace."""

from taglio.cluster.devices import Link
from taglio.cluster.emulate.line import routes


def test_a_pair_takes_its_own_link_even_where_a_way_round_is_quicker() -> None:
    links = [
        Link("a", "b", 1e6, 0.001),
        Link("b", "c", 1e6, 0.001),
        Link("a", "c", 1e6, 0.5),
        Link("c", "a", 1e6, 0.0),
    ]
    paths = routes(links)
    assert paths["a", "c"] == (("a", "c"),)
    assert paths["b", "a"] == (("b", "c"), ("c", "a"))
    assert paths["c", "b"] == (("c", "a"), ("a", "b"))


def test_a_route_of_three_links_is_found_and_is_the_one_of_least_delay() -> None:
    ring = [Link(*ends, 1e9, 0.001) for ends in (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"))]
    slow = [Link("a", "e", 1e9, 0.1), Link("e", "d", 1e9, 0.1)]
    paths = routes([*slow, *ring])
    assert paths["a", "d"] == (("a", "b"), ("b", "c"), ("c", "d"))
    assert paths["d", "e"] == (("d", "a"), ("a", "e"))
    assert all(source != target for source, target in paths)


def test_what_cannot_be_reached_has_no_route() -> None:
    assert set(routes([Link("a", "b", 1e6)])) == {("a", "b")}
