"""The checker passes every honest plan on several devices, and knows every kind of lie."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio.cluster.devices import Cluster, Link
from taglio.cluster.file import parse
from taglio.cluster.planning.assemble import Assembled, assemble, labels_of
from taglio.cluster.planning.costs import evaluate
from taglio.cluster.planning.describe import describe, predicted_error
from taglio.cluster.planning.workload import Objective, Workload
from taglio.plan.check import PlanIsWrong
from taglio.plan.result import Limits, Plan
from taglio.profile.result import predict
from tests.cluster.planning.checker import check
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
loopback = { bandwidth_mbit_s = 80, latency_ms = 0.002 }
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
def test_every_labelling_is_described_as_the_checker_finds_it(problem: Problem, seed: int) -> None:
    assembled = on_three(problem)
    totals = evaluate(assembled.problem, drawn(assembled, seed))
    if seed % 2:
        totals = replace(totals, levels=some_levels(assembled, seed))
    (plan,) = describe(assembled, totals)
    check(problem.graph, assembled.workloads[0].profiles, problem.error, THREE, plan)
    noises = {
        output.output: made_up.noise(problem.graph, output, plan.assignment()) for output in problem.error.outputs
    }
    if not plan.wire_only(problem.graph):
        check(problem.graph, assembled.workloads[0].profiles, problem.error, THREE, plan, max_noise=noises)
        assert predicted_error(problem.error, problem.graph, plan) == pytest.approx(
            problem.error.predict(problem.graph, plan.assignment())
        )


def honest(cluster: Cluster) -> tuple[Assembled, Plan]:
    """conv0 near in int8, conv1 far in int8, conv2 near in float."""
    graph, profiles = chain()
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], cluster, Objective())
    names = [block.name for block in graph.blocks]
    labels = labels_of(assembled, 0, dict(zip(names, ("near", "far", "near"))), dict.fromkeys(names[:2], INT8))
    return assembled, describe(assembled, evaluate(assembled.problem, labels))[0]


def first(plan: Plan, **changes: object) -> Plan:
    return replace(plan, placements=(replace(plan.placements[0], **changes), *plan.placements[1:]))  # type: ignore[arg-type]


LIES: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "a block left out": (lambda p: replace(p, placements=p.placements[1:]), "places 2 blocks of 3"),
    "an unknown device": (lambda p: first(p, device="cloud"), "which is not in the cluster"),
    "another device": (lambda p: first(p, device="far"), "."),
    "another precision": (lambda p: first(p, precision="float32"), "."),
    "no such form": (lambda p: first(p, precision="int8-anchor"), "no activation behind its anchor"),
    "a crossing left out": (lambda p: replace(p, crossings=p.crossings[1:]), "never reaches far"),
    "a crossing too many": (
        lambda p: replace(p, crossings=(*p.crossings, replace(p.crossings[0], tensor="conv2.0"))),
        "nothing reads",
    ),
    "a quicker link": (
        lambda p: replace(p, crossings=(replace(p.crossings[0], predicted_s=1e-9), *p.crossings[1:])),
        "the plan claims",
    ),
    "int8 sent as float": (
        lambda p: replace(p, crossings=(replace(p.crossings[0], precision="float32"), *p.crossings[1:])),
        "is written as int8",
    ),
    "a quicker component": (
        lambda p: replace(p, pieces=(replace(p.pieces[0], predicted_s=1e-9), *p.pieces[1:])),
        "the plan claims",
    ),
    "a component left out": (lambda p: replace(p, pieces=p.pieces[1:]), "takes .* J by the tables"),
    "an earlier end": (
        lambda p: replace(p, predicted_latency_s=replace(p.predicted_latency_s, value=1e-6)),
        "the plan claims",
    ),
    "a start before its input": (
        lambda p: replace(p, timeline=tuple(replace(s, start_s=0.0, end_s=s.end_s - s.start_s) for s in p.timeline)),
        "before",
    ),
    "less energy": (lambda p: replace(p, predicted_joules=None), "takes .* J by the tables"),
    "a higher rate": (
        lambda p: replace(p, predicted_rate_per_s=replace(p.predicted_latency_s, value=1e9)),
        "requests per second",
    ),
    "a device busy for less": (
        lambda p: replace(p, usage=(replace(p.usage[0], predicted_busy_s=1e-9), *p.usage[1:])),
        "busy for .* by the tables",
    ),
    "another is the busiest": (lambda p: replace(p, busiest="far -> near"), "is not the busiest"),
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


def test_levels_that_the_plan_was_not_described_with_are_caught() -> None:
    graph, profiles = chain()
    cluster = parse(PAIR)
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], cluster, Objective())
    labels = labels_of(assembled, 0, dict.fromkeys((block.name for block in graph.blocks), "far"), {})
    (plan,) = describe(assembled, evaluate(assembled.problem, labels))
    check(graph, profiles, None, cluster, plan)
    late = replace(plan, placements=(*plan.placements[:-1], replace(plan.placements[-1], level=1)))
    assert late.fingerprint() != plan.fingerprint()
    with pytest.raises(PlanIsWrong, match="its placements make"):
        check(graph, profiles, None, cluster, late)


def test_messages_take_of_the_rate_what_they_take_of_the_devices() -> None:
    """conv1 alone is far: one message there, one back."""
    _, before = honest(parse(PAIR))
    _, after = honest(parse(PAIR.replace("[device.far]", "[device.far]\nsend_ms = 0.5\nreceive_ms = 0.25")))
    _, starting = honest(parse(PAIR.replace("[device.near]", "[device.near]\nrequest_ms = 2")))
    near = sum(each.predicted_s for each in starting.pieces if each.device == "near")
    assert starting.predicted_rate_per_s is not None
    assert 1.0 / starting.predicted_rate_per_s.value == pytest.approx(near + 2e-3)
    assert starting.predicted_latency_s.value == pytest.approx(before.predicted_latency_s.value + 2e-3)
    assert before.predicted_rate_per_s is not None and after.predicted_rate_per_s is not None
    assert after.predicted_latency_s == before.predicted_latency_s
    far = next(each.predicted_s for each in after.pieces if each.device == "far")
    assert 1.0 / after.predicted_rate_per_s.value == pytest.approx(far + 0.75e-3)
    assert after.predicted_rate_per_s.value < before.predicted_rate_per_s.value
    for plan, device in ((starting, "near"), (after, "far")):
        assert plan.busiest == device and plan.predicted_rate_per_s is not None
        busy_s = {each.device: each.predicted_busy_s for each in plan.usage}[device]
        assert busy_s == pytest.approx(1.0 / plan.predicted_rate_per_s.value)


def test_a_plan_all_in_float_says_what_int8_would_take() -> None:
    graph, profiles = chain()
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], parse(PAIR), Objective())
    places = dict.fromkeys((block.name for block in graph.blocks), "near")
    (plan,) = describe(assembled, evaluate(assembled.problem, labels_of(assembled, 0, places, {})))
    int8 = {block.name: INT8 for block in graph.candidates()}
    taken = [predict(profiles["near"], graph, each).total_s * 1e3 for each in (int8, {})]
    assert any(f"take {taken[0]:.4g} ms on near instead of {taken[1]:.4g}" in note for note in plan.notes)
    (mixed,) = describe(assembled, evaluate(assembled.problem, labels_of(assembled, 0, places, int8)))
    assert not any("no block is in int8" in note for note in mixed.notes)


@pytest.mark.parametrize(("change", "words"), LIES.values(), ids=LIES)
def test_a_lie_is_caught(change: Callable[[Plan], Plan], words: str) -> None:
    cluster = parse(PAIR)
    assembled, plan = honest(cluster)
    work = assembled.workloads[0]
    check(work.graph, work.profiles, None, cluster, plan)
    with pytest.raises(PlanIsWrong, match=words):
        check(work.graph, work.profiles, None, cluster, change(plan))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("[device.far]", "[device.far]\nmemory_mb = 0.000001", "MB for weights and live activations"),
        ("[device.far]", '[device.far]\nnever = ["conv*"]', "may not run it"),
        ("[device.far]", "[device.far]\nint8 = false", "may not run int8"),
        ("[device.far]", "[device.far]\nenergy_cap_joules = 0.0000001", "over its cap"),
        ("latency_ms = 0.01", "latency_ms = 0.02", "the plan claims"),
        ("[device.far]", "[device.far]\nreceive_ms = 1", "a request keeps far busy"),
        ("[device.near]", "[device.near]\nrequest_ms = 1", "a request takes 1.0000"),
        ("[device.near]", "[device.near]\nsend_ms_per_mb = 1e4", "near is busy with two things at once"),
        ("[device.near]", "[device.near]\nsend_ms = 1", "near is busy with two things at once"),
    ],
)
def test_another_cluster_is_noticed(before: str, after: str, words: str) -> None:
    assembled, plan = honest(parse(PAIR))
    work = assembled.workloads[0]
    with pytest.raises(PlanIsWrong, match=words):
        check(work.graph, work.profiles, None, parse(PAIR.replace(before, after)), plan)
    broken = replace(parse(PAIR), links=(Link("near", "far", 1e6, 1e-5, 3e-6),))
    with pytest.raises(PlanIsWrong, match="not connected"):
        check(work.graph, work.profiles, None, broken, plan)
