"""Which plan a cluster goes back to, without a cluster."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taglio.cluster.devices import Cluster
from taglio.cluster.engine import recover
from taglio.cluster.engine.recover import Recovery
from taglio.cluster.engine.replan import Planned
from taglio.cluster.file import parse
from taglio.errors import BadDevice, BadOption, Infeasible, TaglioError
from taglio.plan.place import place
from taglio.plan.result import Limits, Plan
from tests.plan.test_check import THREE
from tests.plan.test_replicas import STREAM, rate, several, work

TWO = parse('start = "near"\n[device.near]\n[device.far]\n[[link]]\nfrom = "near"\nto = "far"\nbandwidth_mbit_s = 8\n')


def planned(cluster: Cluster, seconds: float) -> Planned:
    return Planned(Path(), cast(Any, SimpleNamespace(predicted_latency_s=SimpleNamespace(value=seconds))), cluster)


def took_over(recovery: Recovery, other: Planned) -> None:
    recovery._prepared = other, cast(Any, None), "a link drifted"
    recovery.take_over(7)
    assert recovery.running is other


def test_a_plan_made_while_a_device_was_lost_is_not_what_it_comes_back_to() -> None:
    whole, rest, better = planned(THREE, 1.0), planned(TWO, 3.0), planned(THREE, 0.5)
    recovery = Recovery(cast(Any, None), cast(Any, None), whole, lambda _: 1)
    took_over(recovery, rest)
    assert recovery._wanted is whole
    took_over(recovery, better)  # for all devices, since a link is quicker now
    assert recovery._wanted is better
    assert [(each.request, each.before_s, each.after_s) for each in recovery.switches] == [(7, 1.0, 3.0), (7, 3.0, 0.5)]


@pytest.mark.parametrize(
    ("limits", "error", "words"),
    [
        (
            Limits(None, device_exclusions=(("conv3", "near"), ("conv4", "near")), device_pins=(("conv5", "far"),)),
            BadOption("block conv3 is pinned to no device"),
            ('"far" is lost', "pins forbid block conv3 and 1 more", "(near)", "`keep_off`"),
        ),
        (Limits(None), Infeasible("memory of near"), ('"far" is lost', "memory of near", "start it again")),
    ],
)
def test_a_lost_device_is_named_where_pins_or_limits_forbid_the_others(
    limits: Limits, error: TaglioError, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(recover, "replan", refuse)
    machines = {"near": ("near",), "far": ("far",)}
    plan = SimpleNamespace(limits=limits, machines=lambda: machines, without=lambda _: None)
    connection = SimpleNamespace(alive=lambda: {"near": True, "far": False})
    running = Planned(Path(), cast(Any, plan), TWO)
    with pytest.raises(BadDevice) as raised:
        Recovery(cast(Any, connection), Path(), running, lambda _: 1).recover("it does not answer")
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_of_devices_that_take_turns_the_rest_goes_on_with_the_same_components(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = several(3)
    (plan,) = place([work(cluster)], cluster, STREAM).plans
    alive = dict.fromkeys(("near", "far", "further", "furthest"), True)
    taken: list[Planned] = []

    def deployed(_: object, planned: Planned, _lanes: int) -> Any:
        if gone := [name for each in planned.plan.machines().values() for name in each if not alive[name]]:
            raise BadDevice(f"{gone[0]} is lost")
        taken.append(planned)
        return SimpleNamespace(actors={})

    def replanned(_: object, _before: Plan, rest: Cluster) -> Planned:
        assert [each.name for each in rest.devices] == ["near"]
        return planned(rest, 9.0)

    monkeypatch.setattr(recover, "deploy", deployed)
    monkeypatch.setattr(recover, "Pipeline", lambda deployment, *_: SimpleNamespace(deployment=deployment))
    monkeypatch.setattr(recover, "replan", replanned)
    connection = SimpleNamespace(alive=lambda: alive)
    recovery = Recovery(cast(Any, connection), Path(), Planned(Path(), plan, cluster), lambda _: 1)
    recovery.begin()
    alive["far"] = False
    recovery.recover("far is lost")
    assert recovery.running.plan.machines()["far"] == ("further", "furthest")
    assert recovery.running.plan.fingerprint() == plan.fingerprint()
    assert rate(recovery.running.plan) == pytest.approx(rate(plan) * 2 / 3)
    alive["far"] = True
    recovery._prepare(lambda: recovery._wanted, "its devices are back")
    assert recovery._preparing is not None
    recovery._preparing.join()
    assert recovery.ready()  # the same components, but on all three again
    recovery._prepared = None
    alive["far"] = False
    alive["further"] = False
    recovery.recover("further is lost")
    assert recovery.running.plan.machines()["far"] == ("furthest",)
    alive["furthest"] = False

    def without_asking(_: object, planned: Planned, _lanes: int) -> SimpleNamespace:
        taken.append(planned)
        return SimpleNamespace(actors={})

    monkeypatch.setattr(recover, "deploy", without_asking)
    recovery.recover("furthest is lost")
    assert recovery.running.cluster.start == "near" and len(taken) == 5
