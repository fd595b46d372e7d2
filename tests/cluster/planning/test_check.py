"""The check of a plan on several devices passes every honest one, and refuses what no device may or can run."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio.cluster.devices import Cluster, Link
from taglio.cluster.file import parse
from taglio.cluster.planning.assemble import Assembled, assemble, labels_of
from taglio.cluster.planning.check import check
from taglio.cluster.planning.costs import evaluate
from taglio.cluster.planning.describe import describe, predicted_error
from taglio.cluster.planning.workload import Objective, Workload
from taglio.plan.check import PlanIsWrong
from taglio.plan.result import Limits, Plan
from taglio.profile.attribution import Attribution
from taglio.profile.result import WholeRun
from taglio.profile.wall_time import WallTime
from taglio.report.placement import decisions
from tests.cluster.planning.test_assemble import PAIR, chain
from tests.cluster.planning.test_schedule import drawn, some_levels
from tests.examples import examples
from tests.plan import made_up
from tests.plan.made_up import INT8, Problem

THREE = parse(
    PAIR.replace(
        "[device.far]", "[device.far]\nmemory_mb = 10\nsend_ms = 0.01\nreceive_ms = 0.03\nreceive_ms_per_mb = 40"
    )
    + """
[device.cloud]
active_watts = 1.5
[[link]]
from = "far"
to = "cloud"
both = true
bandwidth_mbit_s = 80
[[link]]
from = "near"
to = "cloud"
both = true
bandwidth_mbit_s = 2
latency_ms = 0.1
gap_ms = 0.04
"""
)


def on_three(problem: Problem) -> Assembled:
    profiles = {device.name: problem.profile for device in THREE.devices}
    work = Workload("m", problem.graph, profiles, problem.error, Limits(None))
    return assemble([work], THREE, Objective())


@examples(80)
@given(made_up.problems(), st.integers(0, 2**32))
def test_every_labelling_is_described_as_a_plan_that_the_check_passes(problem: Problem, seed: int) -> None:
    assembled = on_three(problem)
    totals = evaluate(assembled.problem, drawn(assembled, seed))
    if seed % 2:
        totals = replace(totals, levels=some_levels(assembled, seed))
    (plan,) = describe(assembled, totals)
    check(problem.graph, problem.error, THREE, plan)
    noises = {
        output.output: made_up.noise(problem.graph, output, plan.assignment()) for output in problem.error.outputs
    }
    if not plan.wire_only(problem.graph):
        check(problem.graph, problem.error, THREE, plan, max_noise=noises)
        assert predicted_error(problem.error, problem.graph, plan) == pytest.approx(
            problem.error.predict(problem.graph, plan.assignment())
        )


def honest(cluster: Cluster, mean: float = 1.0) -> tuple[Assembled, Plan]:
    """conv0 near and conv1 far in int8, conv2 near in float; the mean of runs far is `mean` times their median."""
    graph, profiles = chain()
    attribution = Attribution({}, {}, 0.0)
    run = WholeRun("float", {}, WallTime(1.0, 0.0, 1.0, mean, 1, 1.0), attribution, mixed=False, predicted_s=1.0)
    profiles["far"] = replace(profiles["far"], runs=(run,))
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], cluster, Objective())
    names = [block.name for block in graph.blocks]
    labels = labels_of(assembled, 0, dict(zip(names, ("near", "far", "near"))), dict.fromkeys(names[:2], INT8))
    return assembled, describe(assembled, evaluate(assembled.problem, labels))[0]


def first(plan: Plan, **changes: object) -> Plan:
    return replace(plan, placements=(replace(plan.placements[0], **changes), *plan.placements[1:]))  # type: ignore[arg-type]


LIES: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "a block left out": (lambda p: replace(p, placements=p.placements[1:]), "places 2 blocks of 3"),
    "an unknown device": (lambda p: first(p, device="cloud"), "which is not in the cluster"),
    "another device": (lambda p: first(p, device="far"), "x never reaches far"),
    "no such form": (lambda p: first(p, precision="int8-anchor"), "no activation behind its anchor"),
    "a crossing left out": (lambda p: replace(p, crossings=p.crossings[1:]), "never reaches far"),
    "a crossing too many": (
        lambda p: replace(p, crossings=(*p.crossings, replace(p.crossings[0], tensor="conv2.0"))),
        "nothing reads",
    ),
    "int8 sent as float": (
        lambda p: replace(p, crossings=(replace(p.crossings[0], precision="float32"), *p.crossings[1:])),
        "is written as int8",
    ),
    "a component left out": (lambda p: replace(p, pieces=p.pieces[1:]), "takes .* J by the tables"),
    "less energy": (lambda p: replace(p, predicted_joules=None), "takes .* J by the tables"),
    "over its latency limit": (lambda p: replace(p, limits=Limits(None, max_latency_s=1e-6)), "over its limit"),
    "over its energy limit": (lambda p: replace(p, limits=Limits(None, max_energy_joules=1e-9)), "over its limit"),
    "below its rate": (lambda p: replace(p, limits=Limits(None, min_rate_per_s=1e9)), "over its limit"),
    "against a pin": (lambda p: replace(p, limits=Limits(None, device_pins=(("conv0", "far"),))), "against a pin"),
    "against an exclusion": (
        lambda p: replace(p, limits=Limits(None, device_exclusions=(("conv1", "far"),))),
        "against a pin",
    ),
    "held in float": (lambda p: replace(p, limits=Limits(None, float_blocks=("conv0",))), "is pinned to float"),
    "held in int8": (lambda p: replace(p, limits=Limits(None, int8_blocks=("conv2",))), "is pinned to int8"),
}


def test_messages_take_of_the_rate_what_they_take_of_the_devices() -> None:
    """conv1 alone is far: one message there, one back."""
    _, before = honest(parse(PAIR))
    _, after = honest(parse(PAIR.replace("[device.far]", "[device.far]\nsend_ms = 0.5\nreceive_ms = 0.25")))
    assert before.predicted_rate_per_s is not None and after.predicted_rate_per_s is not None
    assert after.predicted_latency_s == before.predicted_latency_s
    far = next(each.predicted_s for each in after.pieces if each.device == "far")
    assert 1.0 / after.predicted_rate_per_s.value == pytest.approx(far + 0.75e-3)
    assert after.predicted_rate_per_s.value < before.predicted_rate_per_s.value
    _, bursty = honest(parse(PAIR.replace("[device.far]", "[device.far]\nsend_ms = 0.5\nreceive_ms = 0.25")), mean=1.5)
    assert bursty.predicted_rate_per_s is not None
    assert 1.0 / bursty.predicted_rate_per_s.value == pytest.approx(1.5 * (far + 0.75e-3))
    busy_s = {each.device: each.predicted_busy_s for each in after.usage}["far"]
    assert after.busiest == "far" and busy_s == pytest.approx(1.0 / after.predicted_rate_per_s.value)


def test_components_say_how_long_their_devices_take_to_wake() -> None:
    """A device that was idle is slower at first; the start device was not idle."""
    waking_s = 6e-4
    graph, profiles = chain()
    far = replace(profiles["far"], conditions=replace(profiles["far"].conditions, waking_s=waking_s))
    far = replace(far, overhead_s=far.overhead_s + waking_s)
    work = Workload("m", graph, {**profiles, "far": far}, None, Limits(None))
    assembled = assemble([work], parse(PAIR), Objective())
    places = dict(zip((block.name for block in graph.blocks), ("near", "far", "near"), strict=True))
    (plan,) = describe(assembled, evaluate(assembled.problem, labels_of(assembled, 0, places, {})))
    assert {piece.waking_s for piece in plan.pieces if piece.device == "far"} == {waking_s}
    assert {piece.waking_s for piece in plan.pieces if piece.device == "near"} == {0.0}
    assert "waking" in str(decisions(plan)) and "0.6" in str(decisions(plan))


@pytest.mark.parametrize(("change", "words"), LIES.values(), ids=LIES)
def test_a_lie_is_caught(change: Callable[[Plan], Plan], words: str) -> None:
    cluster = parse(PAIR)
    assembled, plan = honest(cluster)
    graph = assembled.workloads[0].graph
    check(graph, None, cluster, plan)
    with pytest.raises(PlanIsWrong, match=words):
        check(graph, None, cluster, change(plan))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("[device.far]", "[device.far]\nmemory_mb = 0.000001", "MB for weights and live activations"),
        ("[device.far]", '[device.far]\nnever = ["conv*"]', "may not run it"),
        ("[device.far]", "[device.far]\nint8 = false", "may not run int8"),
        ("[device.far]", "[device.far]\nenergy_cap_joules = 0.0000001", "energy on far"),
    ],
)
def test_another_cluster_is_noticed(before: str, after: str, words: str) -> None:
    assembled, plan = honest(parse(PAIR))
    graph = assembled.workloads[0].graph
    with pytest.raises(PlanIsWrong, match=words):
        check(graph, None, parse(PAIR.replace(before, after)), plan)
    broken = replace(parse(PAIR), links=(Link("near", "far", 1e6, 1e-5, 3e-6),))
    with pytest.raises(PlanIsWrong, match="not connected"):
        check(graph, None, broken, plan)
