"""What the probe makes of times that were made up."""

import pytest

from taglio.cluster.devices import Cluster, Handling, Link
from taglio.cluster.engine.parcel import ComponentStep, Hop
from taglio.cluster.engine.pipeline import AnsweredRequest
from taglio.cluster.engine.probe import Probes, Seen, costs, fitted
from taglio.cluster.file import parse, written
from tests.cluster.engine.devices import CLUSTER


def answers(links: Cluster, a: str, b: str, there: list[int], back: int) -> list[AnsweredRequest]:
    """Answers to requests with messages of these bytes, by two clocks that differ by 7 s."""
    ways = [links.link(a, b), links.link(b, a)]
    assert ways[0] is not None and ways[1] is not None
    read_s = [7.0 + ways[0].seconds(count) + index * ways[0].gap_s for index, count in enumerate(there)]
    end_s = read_s[-1] - 7.0 + ways[1].seconds(back)
    hops = (*(Hop(1 + index, a, b, 0.0, each_s) for index, each_s in enumerate(read_s)), Hop(9, b, a, 8.0, end_s))
    step = ComponentStep("last", a, end_s, end_s)
    return [AnsweredRequest(request, [], 0.0, end_s, (step,), hops) for request in range(9)]


def test_links_come_back_from_trips_that_were_made_with_them() -> None:
    there, back = Link("camera", "server", 12.5e6, 5e-3, gap_s=1e-3), Link("server", "camera", 2.5e6, 5e-3)
    cluster, ends = parse(CLUSTER).with_link(there).with_link(back), ("camera", "server")
    few, far, near, more = (
        Seen(answers(cluster, *ends, sizes, size), {})
        for sizes, size in (([0], 0), ([1_000_000], 0), ([0], 1_000_000), ([0] * 3, 0))
    )
    for link, many in ((there, far), (back, near)):
        found = fitted(link, few.trips_s(*ends), many.trips_s(*ends), 1_000_000, more.gap_s(*ends))
        assert (found.latency_s, found.gap_s) == pytest.approx((5e-3, 1e-3))
        assert found.bandwidth_bytes_per_s == pytest.approx(link.bandwidth_bytes_per_s)


def test_costs_come_back_from_busy_seconds_that_were_made_with_them() -> None:
    busy_s = [
        {"camera": 0.004, "server": 0.003},  # few bytes
        {"camera": 0.006, "server": 0.005},  # two more messages
        {"camera": 0.005, "server": 0.006},  # many bytes there
        {"camera": 0.007, "server": 0.004},  # many bytes back
    ]
    mine, other = costs(busy_s, ("camera", "server"), (10**6, 10**6))
    assert mine == pytest.approx((0.001, 0.003, 0.001 / 1e6, 0.003 / 1e6))
    of = (other.send_s, other.receive_s, other.send_byte_s, other.receive_byte_s)
    assert of == pytest.approx((0.002, 0.001, 0.001 / 1e6, 0.003 / 1e6))


def test_trips_that_were_held_up_or_seem_to_take_no_time_give_a_link() -> None:
    link = fitted(Link("a", "b", 1.0), [0.01] * 20 + [2.0] * 5, [0.09] * 20 + [2.0] * 5, 1_000_000, 0.0)
    assert (link.latency_s, link.bandwidth_bytes_per_s) == pytest.approx((0.005, 12.5e6))
    assert fitted(Link("a", "b", 1.0), [2e-4] * 5, [1e-4] * 5, 1_000_000, 0.0).bandwidth_bytes_per_s > 1e9


def test_what_was_measured_is_a_cluster_file() -> None:
    cluster = parse(CLUSTER)
    links = tuple(fitted(link, [0.01] * 5, [0.21] * 5, 1_000_000, 1e-3) for link in cluster.links)
    probes = Probes(links, {"server": Handling(2e-3, 3e-3, 2.0**-28, 2.0**-26)})
    again = parse(written(probes.measured(cluster)))
    assert [device.name for device in again.devices] == [device.name for device in cluster.devices]
    assert again.start == cluster.start
    assert again.device("camera") == cluster.device("camera")
    assert (again.device("server").send_s, again.device("server").receive_s) == (2e-3, 3e-3)
    assert again.device("server").sending_s(1e6) == pytest.approx(2e-3 + 1e6 * 2.0**-28, rel=1e-5)
    assert again.device("server").receiving_s(1e6) == pytest.approx(3e-3 + 1e6 * 2.0**-26, rel=1e-5)
    for probed in links:
        assert again.link(probed.source, probed.target) == probed
