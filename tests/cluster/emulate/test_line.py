"""Routes of packets between devices, without any namespace."""

from taglio.cluster.emulate.line import EmulatedLink, routes


def test_a_pair_takes_its_own_link_even_where_a_way_round_is_quicker() -> None:
    ways = [
        EmulatedLink(0, 1, 1e6, 0.001),
        EmulatedLink(1, 2, 1e6, 0.001),
        EmulatedLink(0, 2, 1e6, 0.5),
        EmulatedLink(2, 0, 1e6, 0.0),
    ]
    paths = routes(ways, 3)
    assert paths[0, 2] == ((0, 2),)
    assert paths[1, 0] == ((1, 2), (2, 0))
    assert paths[2, 1] == ((2, 0), (0, 1))


def test_what_cannot_be_reached_has_no_route() -> None:
    assert set(routes([EmulatedLink(0, 1, 1e6, 0.0)], 3)) == {(0, 1)}
