"""When a device or a link counts as slower than at first, by made-up answers."""

from typing import Any

import pytest

from taglio.cluster.engine.drift import Windows, drifted
from taglio.cluster.engine.parcel import Hop, Step
from taglio.cluster.engine.pipeline import Answer
from taglio.cluster.engine.wiring import Message
from taglio.cluster.file import parse
from taglio.components.build import Port
from taglio.plan.result import DeviceUse, Interval, Limits, Plan, PlannedPiece

CLUSTER = parse(
    'start = "near"\n[device.near]\n[device.far]\n[[link]]\nfrom = "near"\nto = "far"\nbandwidth_mbit_s = 8\n'
)
NOTHING: Any = None
UNKNOWN = Interval(0.0, 0.004, 1.0, 0.9)
PLAN = Plan(
    "", NOTHING, (), Limits(None), (), "optimal", 0.0, UNKNOWN, UNKNOWN,
    pieces=(PlannedPiece("work", "far", 1, 0.004),),
    usage=(DeviceUse("far", 0.004, 0.0, 0.0, 0.0, None, False),),
)  # fmt: skip
SENT = Message("", "", "far", (Port("x", "float32", (25_000,), 100_000),))


def told(periods: list[tuple[float, float, float]], *, quota: bool = False) -> tuple[Windows, str, dict[str, float]]:
    """What is said after periods of (seconds, seconds of the component, seconds of its message). With a `quota` of half
    a processor, two components of three run at twice the speed, and the third pauses for as long."""
    windows, now, request = Windows(), 0.0, 0
    for lasts_s, work_s, hop_s in periods:
        end = now + lasts_s
        while now < end:
            took = work_s * (0.5 if request % 3 else 2.0) if quota else work_s
            start, hop = now + hop_s, Hop(0, "near", "far", now, now + hop_s)
            step = Step("work", "far", start, start, start + took)
            windows.add(Answer(request, [], now, start + took, (step,), (hop,)))
            now, request = start + took, request + 1
    assert windows.full()
    _, factors, said = drifted(windows, PLAN, CLUSTER, [SENT])
    return windows, said, factors


def test_a_device_that_was_slow_only_while_its_plan_was_deployed_has_not_drifted() -> None:
    windows, said, _ = told([(0.5, 0.012, 0.001), (4.0, 0.004, 0.001)])
    assert said == ""
    assert windows.first[-1].answered_s - windows.first[0].sent_s >= 1.0


def test_pauses_of_a_quota_are_no_drift_and_a_smaller_quota_is() -> None:
    assert told([(6.0, 0.004, 0.001)], quota=True)[1] == ""
    _, said, factors = told([(3.0, 0.004, 0.001), (3.0, 0.012, 0.001)], quota=True)
    assert said.startswith("far takes 3.0")
    assert factors["far"] == pytest.approx(3.0, rel=0.1)  # of what was planned


def test_a_link_that_takes_longer_is_fitted() -> None:
    windows, said, factors = told([(3.0, 0.004, 0.010), (3.0, 0.004, 0.100)])
    assert said == "near to far takes 10.00 times as long as at first" and not factors
    link = drifted(windows, PLAN, CLUSTER, [SENT])[0].link("near", "far")
    assert link is not None and link.bandwidth_bytes_per_s == pytest.approx(1e6)


def test_outputs_are_not_kept() -> None:
    windows = Windows()
    for index in range(200):
        windows.add(Answer(index, [NOTHING], index * 0.1, index * 0.1 + 0.1, (), ()))
    assert not any(each.outputs for each in (*windows.first, *windows.last))
    assert len(windows.last) == len(windows.first) == 15
