"""A link's latency and bandwidth come back from times that were made with them."""

from types import SimpleNamespace

import numpy as np
import pytest

from taglio.cluster.devices import Handling, Link
from taglio.cluster.engine import probe
from taglio.cluster.engine.probe import SIZES, fitted, measured
from taglio.cluster.file import parse, written
from tests.cluster.engine.devices import CLUSTER


def test_the_fit_gives_back_what_the_times_were_made_with() -> None:
    draw = np.random.default_rng(1)
    link = Link("a", "b", 1e6, 0.02)
    samples = {size: [2 * 0.02 + size / 1e6 + abs(draw.normal(0, 2e-4)) for _ in range(9)] for size in SIZES}
    found = fitted("a", "b", samples, link)
    assert found.link().latency_s == pytest.approx(0.02, rel=0.02)
    assert found.link().bandwidth_bytes_per_s == pytest.approx(1e6, rel=0.02)
    assert found.latency_s.low <= found.latency_s.value <= found.latency_s.high
    assert found.bandwidth_bytes_per_s.high / found.bandwidth_bytes_per_s.low < 1.05


def test_a_size_that_was_held_up_does_not_move_the_line() -> None:
    samples = {size: [0.01 + size / 12.5e6] * 9 for size in SIZES}
    samples[SIZES[-1]] = [2.0] * 9
    found = fitted("a", "b", samples, None).link()
    assert found.bandwidth_bytes_per_s == pytest.approx(12.5e6)
    assert found.latency_s == pytest.approx(0.005)


def test_a_link_that_no_size_slows_has_a_bandwidth_all_the_same() -> None:
    found = fitted("a", "a", {size: [1e-4] * 5 for size in SIZES}, None)
    assert found.link().bandwidth_bytes_per_s > 1e9 and found.link().latency_s == pytest.approx(1e-4)


@pytest.mark.parametrize("bandwidth_bytes_per_s", [0.6e6, 2.5e6, 12.5e6, 1e9])
def test_sizes_share_the_time_so_that_a_slow_link_is_measured_beyond_small_ones(
    bandwidth_bytes_per_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.6 MB/s and 50 ms: a hundred tensors of 1 kB would take ten seconds, and say nothing."""
    took: list[float] = []

    def seconds(_target: object, size: int, runs: int) -> list[float]:
        found = [2 * 0.05 + size / bandwidth_bytes_per_s] * runs
        took.extend(found)
        return found

    monkeypatch.setattr(probe, "_got", lambda answer: answer)
    samples = probe._measure(SimpleNamespace(seconds=SimpleNamespace(remote=seconds)), None)
    assert all(len(each) >= 4 for each in samples.values())
    assert max(samples) >= 100_000 and sum(took) < 6.0
    assert fitted("a", "b", samples, None).link().bandwidth_bytes_per_s == pytest.approx(bandwidth_bytes_per_s)


def test_what_was_measured_is_a_cluster_file() -> None:
    cluster = parse(CLUSTER)
    samples = {size: [0.01 + size / 5e6] * 5 for size in SIZES}
    ends = [("camera", "server"), ("server", "camera"), ("camera", "camera")]
    probes = [fitted(a, b, samples, cluster.link(a, b), 1e-3 if a != b else 0.0) for a, b in ends]
    cluster = cluster.with_handling({"server": Handling(2e-3, 3e-3, 2.0**-28, 2.0**-26)})
    again = parse(written(measured(cluster, probes)))
    assert [each.name for each in again.devices] == [each.name for each in cluster.devices]
    assert again.start == cluster.start
    assert again.device("camera") == cluster.device("camera")
    assert (again.device("server").send_s, again.device("server").receive_s) == (2e-3, 3e-3)
    assert again.device("server").sending_s(1e6) == pytest.approx(2e-3 + 1e6 * 2.0**-28, rel=1e-5)
    assert again.device("server").receiving_s(1e6) == pytest.approx(3e-3 + 1e6 * 2.0**-26, rel=1e-5)
    for each in probes:
        link = again.link(each.source, each.target)
        assert link is not None
        assert link.latency_s == pytest.approx(each.latency_s.value, rel=1e-4)
        assert link.gap_s == pytest.approx(each.gap_s)
        assert link.joules_per_byte == (each.planned.joules_per_byte if each.planned else 0.0)
