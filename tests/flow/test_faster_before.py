"""The plan that a new limit takes over from the runs before."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from taglio.flow.another_limit import _faster_before
from taglio.plan.result import Limits
from taglio.plan.tables import Tables
from taglio.profile.wall_time import WallTime
from taglio.runtimes.openvino import NAME as OPENVINO
from taglio.search.front import Point
from tests.search.made_up import chain


def wall(seconds: float) -> WallTime:
    return WallTime(seconds, seconds, seconds, seconds, 30, seconds)


def test_a_plan_of_another_place_keeps_forms_that_have_no_kernels_in_this_one() -> None:
    """The profile of ONNX Runtime has no bfloat16, a plan that was timed in OpenVINO may have."""
    graph, profile, error = chain()
    profile = replace(profile, scheme=replace(profile.scheme, uncalibrated=("bfloat16",)))
    forms = {graph.blocks[0].name: "bfloat16", graph.blocks[1].name: "int8"}
    points = (
        Point("plan 1", OPENVINO, forms, None, wall(1e-3), 0.02, True, False),
        Point("plan 2", OPENVINO, {graph.blocks[0].name: "bfloat16"}, None, wall(2e-3), 0.01, True, True),
        Point("plan 3", OPENVINO, forms, None, wall(5e-4), 0.04, True, False),
    )
    before: Any = SimpleNamespace(points=points)
    decision: Any = SimpleNamespace(
        plan=SimpleNamespace(limits=Limits(0.03)),
        ledger=SimpleNamespace(raced=()),
        winner=SimpleNamespace(measured_s=3e-3),
    )
    (entry,) = _faster_before(Tables(graph, profile, error), before, decision)
    assert (entry.name, entry.runtime, dict(entry.forms)) == ("earlier plan 1", OPENVINO, forms)
    assert entry.plan.predicted_latency_s.value == entry.measured_s == 1e-3
    assert entry.plan.measured_error == 0.02
