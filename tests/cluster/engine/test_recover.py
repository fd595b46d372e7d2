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
from taglio.plan.result import Limits
from tests.plan.test_check import THREE

TWO = parse('start = "near"\n[device.near]\n[device.far]\n[[link]]\nfrom = "near"\nto = "far"\nbandwidth_mbit_s = 8\n')


def planned(cluster: Cluster, seconds: float) -> Planned:
    return Planned(Path(), cast(Any, SimpleNamespace(predicted_latency_s=SimpleNamespace(value=seconds))), cluster)


def took_over(recovery: Recovery, other: Planned) -> None:
    recovery._prepared = other, cast(Any, None), cast(Any, None), "a link drifted"
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
    plan = SimpleNamespace(limits=limits, placements=[SimpleNamespace(device="near"), SimpleNamespace(device="far")])
    connection = SimpleNamespace(alive=lambda: {"near": True, "far": False})
    running = Planned(Path(), cast(Any, plan), TWO)
    with pytest.raises(BadDevice) as raised:
        Recovery(cast(Any, connection), Path(), running, lambda _: 1).recover("it does not answer")
    assert all(word in str(raised.value) for word in words), str(raised.value)
