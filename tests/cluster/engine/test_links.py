"""A device that cannot be connected to: silent, or with nothing there; without a cluster."""

import socket
from collections.abc import Iterator

import pytest

from taglio.cluster.engine import links
from taglio.cluster.engine.links import Pair, pairs, untouched, without
from tests.cluster.planning.test_check import THREE


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address whose connections are not accepted: its queue is full, so that the kernel drops what comes."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()


def test_silence_is_told_from_a_refusal(silent: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        others = {"whole": listener.getsockname(), "ended": closed.getsockname(), "cut": silent}
        assert untouched(others) == {"ended": False, "cut": True}
    assert untouched({}) == {}


def test_a_cluster_without_a_device_and_a_link() -> None:
    assert pairs(THREE) == {Pair(("near", "far")), Pair(("far", "cloud")), Pair(("near", "cloud"))}
    left = without(THREE, (), [Pair(("far", "cloud"))])
    assert pairs(left) == {Pair(("near", "far")), Pair(("near", "cloud"))}
    assert left.link("cloud", "cloud") == THREE.link("cloud", "cloud")
    assert pairs(without(THREE, ["far"], [Pair(("near", "cloud"))])) == set()
