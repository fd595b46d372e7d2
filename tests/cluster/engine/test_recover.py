"""Which plan a cluster goes back to, without a cluster."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taglio.cluster.devices import Cluster
from taglio.cluster.engine import recover
from taglio.cluster.engine.links import Pair
from taglio.cluster.engine.recover import Recovery
from taglio.cluster.engine.replan import Planned
from taglio.cluster.file import parse
from taglio.cluster.planning.place import place
from taglio.errors import BadDevice, BadOption, Infeasible, TaglioError
from taglio.plan.result import Limits
from tests.cluster.planning.test_replicas import STREAM, several, work

TWO = parse('start = "near"\n[device.near]\n[device.far]\n[[link]]\nfrom = "near"\nto = "far"\nbandwidth_mbit_s = 8\n')


class Tried:
    """Devices and links that are there as a test says."""

    def __init__(self, *names: str) -> None:
        self.up, self.cut, self.looks = dict.fromkeys(names, True), set[Pair](), 0
        self.here = SimpleNamespace(name="near")

    def alive(self) -> dict[str, bool]:
        return self.up

    def look(self, _: Cluster, names: list[str], __: object) -> set[str]:
        self.looks += 1
        return {name for name in names if not self.up[name]}

    def lost(self) -> frozenset[Pair]:
        return frozenset(self.cut)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Tried:
    there = Tried("near", "far", "further", "furthest", "cloud")
    monkeypatch.setattr(recover, "Links", lambda _: there)
    monkeypatch.setattr(
        recover, "RequestPipeline", lambda deployment, *_: SimpleNamespace(deployment=deployment, close=lambda: None)
    )
    monkeypatch.setattr(recover, "deploy", lambda *_: SimpleNamespace(actors={}))
    return there


def planned(cluster: Cluster, seconds: float) -> Planned:
    return Planned(Path(), cast(Any, SimpleNamespace(predicted_latency_s=SimpleNamespace(value=seconds))), cluster)


@pytest.mark.parametrize("error", [BadOption("block conv3 cannot run on any device"), Infeasible("memory of near")])
def test_a_lost_device_is_named_where_pins_or_limits_forbid_the_others(
    error: TaglioError, tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(recover, "replan", refuse)
    machines = {"near": ("near",), "far": ("far",)}
    plan = SimpleNamespace(limits=Limits(None), machines=lambda: machines, without=lambda _: None, crossings=())
    tried.up["far"] = False
    recovery = Recovery(cast(Any, tried), Path(), Planned(Path(), cast(Any, plan), TWO), lambda _: 1)
    recovery.begin()
    for _ in range(2):
        with pytest.raises(BadDevice, match=f'device "far" is lost, and .* on near .*{error}.*: restore it'):
            recovery.recover("it does not answer")
    assert tried.looks == 1  # nothing has changed since
    tried.up["far"] = True
    monkeypatch.setattr(recover, "replan", lambda _, __, cluster, ___: planned(cluster, 1.0))
    recovery.recover("it does not answer")
    assert tried.looks == 2


def test_of_devices_that_take_turns_one_behind_a_lost_link_is_left_out(tried: Tried) -> None:
    cluster = several(3)
    (plan,) = place([work(cluster)], cluster, STREAM).plans
    recovery = Recovery(cast(Any, tried), Path(), Planned(Path(), plan, cluster), lambda _: 1)
    recovery.begin()
    tried.cut = {Pair(("near", "further"))}
    recovery.recover("no answer")
    assert recovery.running.plan.machines()["far"] == ("far", "furthest")
