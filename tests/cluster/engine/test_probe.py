"""What the probe measures with, and what it makes of times that were made up."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from taglio.cluster.devices import Cluster, Handling, Link
from taglio.cluster.engine import probe
from taglio.cluster.engine.parcel import ComponentStep, Hop
from taglio.cluster.engine.pipeline import AnsweredRequest
from taglio.cluster.engine.probe import Probes, fitted
from taglio.cluster.file import parse, written
from taglio.components.cut import Component
from tests.cluster.engine.devices import CLUSTER

NOTHING: Any = None


def answers(links: Cluster, a: str, b: str, there: list[int], back: int) -> list[AnsweredRequest]:
    """Answers to requests with messages of these bytes, by two clocks that differ by 7 s."""
    ways = [links.link(a, b), links.link(b, a)]
    assert ways[0] is not None and ways[1] is not None
    read_s = [7.0 + ways[0].seconds(count) + index * ways[0].gap_s for index, count in enumerate(there)]
    end_s = read_s[-1] - 7.0 + ways[1].seconds(back)
    hops = (*(Hop(1 + index, a, b, 0.0, each_s) for index, each_s in enumerate(read_s)), Hop(9, b, a, 8.0, end_s))
    step = ComponentStep("last", a, end_s, end_s)
    return [AnsweredRequest(request, [], 0.0, end_s, (step,), hops) for request in range(9)]


def test_links_and_costs_come_back_from_times_that_were_made_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    file = CLUSTER.replace("both = true", "both = true\ngap_ms = 0.25")
    cluster = parse(file + '[device.third]\n[[link]]\nfrom = "third"\nto = "server"\nbandwidth_mbit_s = 8\n')
    real = cluster.with_link(Link("camera", "server", 12.5e6, 5e-3, gap_s=1e-3))
    real = real.with_link(Link("server", "camera", 2.5e6, 5e-3)).with_link(Link("server", "third", 1e6, 2e-3))
    real = real.with_link(Link("third", "server", 1e6, 2e-3))
    busy_s = {
        "camera-server-few": {"camera": 0.004, "server": 0.003},
        "camera-server-more": {"camera": 0.006, "server": 0.005},
        "camera-server-there": {"camera": 0.005, "server": 0.006},
        "camera-server-back": {"camera": 0.007, "server": 0.004},
    }

    def seen(parts: list[Component], *, there: int = 0, back: int = 0) -> probe._Seen:
        a, b, more = parts[0].device, parts[1].device, len(parts) > 3
        way = "more" if more else "there" if there else "back" if back else "few"
        return probe._Seen(answers(real, a, b, [there] * (3 if more else 1), back), busy_s.get(f"{a}-{b}-{way}", {}))

    monkeypatch.setattr(probe, "_opened", lambda _, __, ___, parts, ____: nullcontext(parts))
    monkeypatch.setattr(probe, "_request_s", lambda _: 0.001)
    monkeypatch.setattr(probe, "_seen", seen)
    monkeypatch.setattr(probe, "_many", lambda _: 1_000_000)
    connection: Any = SimpleNamespace(need=lambda _: None)
    probes = probe.probe(connection, cluster)
    ends = [(link.source, link.target) for link in probes.links]
    assert ends == [("camera", "server"), ("server", "camera"), ("third", "server")]
    for link in probes.links:
        wanted = real.link(link.source, link.target)
        assert wanted is not None
        assert link.latency_s == pytest.approx(wanted.latency_s)
        assert link.bandwidth_bytes_per_s == pytest.approx(wanted.bandwidth_bytes_per_s)
    assert probes.links[0].gap_s == pytest.approx(1e-3)
    expected = {
        "server": (0.002, 0.001, 0.001 / 1e6, 0.003 / 1e6),
        "camera": (0.001, 0.002, 0.001 / 1e6, 0.003 / 1e6),
    }
    assert probes.handling.keys() == expected.keys()
    for name, seconds in expected.items():
        cost = probes.handling[name]
        of = (cost.send_s, cost.receive_s, cost.send_byte_s, cost.receive_byte_s)
        assert of == pytest.approx(seconds)
    assert (probes.handling["camera"].request_s, probes.handling["server"].request_s) == (0.001, 0.0)


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
