"""Plans on a cluster are the best of all placements, by every objective; limits that contradict are named."""

import time
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

from taglio.cluster.devices import Cluster
from taglio.cluster.file import parse
from taglio.cluster.planning.assemble import Assembled, assemble
from taglio.cluster.planning.describe import latencies, period_s
from taglio.cluster.planning.place import conflict, place
from taglio.cluster.planning.problem import Totals
from taglio.cluster.planning.solve import SolvedProblem
from taglio.cluster.planning.workload import Objective, Workload, parse_objective
from taglio.errors import BadOption, Infeasible
from taglio.plan.one_machine import noise_limits
from taglio.plan.result import Limits
from taglio.profile.attribution import Attribution
from taglio.profile.result import WholeRun
from taglio.profile.wall_time import WallTime
from taglio.search.by_hand import pinned_devices
from tests.cluster.planning.reference import every
from tests.cluster.planning.test_assemble import PAIR, chain
from tests.plan import made_up
from tests.plan.made_up import Problem

CLUSTER = parse(PAIR)
FAST = replace(CLUSTER, links=tuple(replace(each, bandwidth_bytes_per_s=1e9) for each in CLUSTER.links))
LATENCY, ENERGY, STREAM, SUM = map(parse_objective, ("latency", "energy", "throughput", "sum"))


def workload(problem: Problem, cluster: Cluster = CLUSTER) -> Workload:
    """Each device with times of its own: the profile, ever quicker, and the mean further from the median."""
    bound = problem.limits.max_error
    bounds = None if bound is None else noise_limits(problem.error, bound, 1.0)
    profiles = {}
    for index, device in enumerate(cluster.devices):
        blocks = tuple(replace(each, seconds=each.seconds / (1 + index)) for each in problem.profile.blocks)
        wall = WallTime(1.0, 0.0, 1.0, in_mean(index), 1, 1.0)
        run = WholeRun("float", {}, wall, Attribution({}, {}, 0.0), mixed=False, predicted_s=1.0)
        profiles[device.name] = replace(problem.profile, blocks=blocks, runs=(run,))
    return Workload("m", problem.graph, profiles, problem.error, problem.limits, noise_limits=bounds)


def in_mean(device: int) -> float:
    """Of a run whose median is 1, by the device's place in the cluster."""
    return 1.0 + 0.5 * device


def seconds(assembled: Assembled, totals: Totals) -> float:
    return latencies(assembled, totals)[0]


def shortest(assembled: Assembled) -> float:
    """The shortest request of all placements, copies and levels."""
    levels = list(product(range(2), repeat=len(assembled.problem.nodes)))
    placements = every(assembled.problem)
    return min((seconds(assembled, replace(t, levels=s)) for t in placements for s in levels), default=inf)


def test_of_the_plans_for_a_stream_the_one_is_taken_that_is_fastest_with_what_components_take() -> None:
    """By its blocks and messages alone the stream is fastest on the other device."""
    graph, profiles = chain()
    slow = {**profiles, "far": replace(profiles["far"], overhead_s=1.0)}
    for known, device in ((profiles, "far"), (slow, "near")):
        plan = place([Workload("m", graph, known, None, Limits(None))], FAST, STREAM).plans[0]
        assert {each.device for each in plan.placements} == {device}


def test_a_stream_is_fastest_with_the_components_that_only_change_types() -> None:
    """Sending the input as int8 takes the start device a component that quantises it."""
    sketch = made_up.Sketch()
    sketch.move(sketch.input("in0"))
    sketch.conv(sketch.input("in1"))
    graph = sketch.graph("move0.0", "conv1.0")
    times = {("move0", name): 0.0 for name in ("float32", "int8")}
    times |= {("conv1", "float32"): 41.0, ("conv1", "int8"): 4.0}
    glue = {"in0": (12.0, 4.0, 6.0, 12.0), "in1": (0.0, 7.0, 5.0, 4.0), "conv1.0": (0.0, 4.0, 7.0, 12.0)}
    profile = made_up.profile_of(graph, times, glue, 3.0)
    problem = Problem(graph, profile, made_up.error_of(graph, ()), Limits(None))
    best = fastest(assemble([workload(problem)], CLUSTER, Objective()))
    answer = place([workload(problem)], CLUSTER, STREAM, gap=1e-3)
    assert answer.value == pytest.approx(best)
    assert answer.bound <= best * (1 + 1e-9)


def test_a_stream_of_blocks_that_take_no_time_has_a_plan() -> None:
    sketch = made_up.Sketch()
    sketch.move(sketch.input("in0"))
    graph = sketch.graph("move0.0")
    times = {("move0", name): 0.0 for name in ("float32", "int8")}
    profile = made_up.profile_of(graph, times, {"in0": (0.0, 0.0, 0.0, 0.0)})
    problem = Problem(graph, profile, made_up.error_of(graph, ()), Limits(None))
    answer = place([workload(problem)], CLUSTER, STREAM)
    assert answer.value == answer.bound == 0.0


def fastest(assembled: Assembled) -> float:
    """The least period of all plans, with what components take, in whatever levels."""
    levels = list(product(range(2), repeat=len(assembled.problem.nodes)))
    plans = (replace(totals, levels=some) for totals in every(assembled.problem) for some in levels)
    return min(period_s(assembled, plan) for plan in plans)


@pytest.mark.parametrize("objective", ["latency", "energy", "latency=1,energy=2"])
def test_a_cap_that_no_device_reaches_changes_no_value(objective: str) -> None:
    """What a device may spend is a resource of its own: its joules are not counted a second time."""
    graph, profiles = chain()
    work = Workload("m", graph, profiles, None, Limits(None))
    capped = replace(CLUSTER, devices=tuple(replace(each, energy_cap_joules=1e3) for each in CLUSTER.devices))
    free, held = (place([work], where, parse_objective(objective), gap=1e-3) for where in (CLUSTER, capped))
    assert held.value == pytest.approx(free.value, rel=2e-3)


@pytest.mark.parametrize(
    ("limits", "change", "words"),
    [
        (Limits(None, max_latency_s=1e-9), "", ["the latency limit"]),
        (Limits(None, max_energy_joules=1e-9), "", ["the energy limit"]),
        (Limits(None, min_rate_per_s=1e9), "", ["the least request rate (1e+09 requests/s)"]),
        (
            Limits(None, device_pins=(("conv1", "far"),), float_blocks=("conv1",)),
            "[device.far]\nmemory_mb = 0.000003",
            ["the memory of far (3e-06 MB)", "the blocks pinned to a device (1)"],
        ),
    ],
)
def test_the_smallest_conflict_is_named(limits: Limits, change: str, words: list[str]) -> None:
    graph, profiles = chain()
    cluster = parse(PAIR.replace("[device.far]", change or "[device.far]"))
    with pytest.raises(Infeasible) as refusal:
        place([Workload("m", graph, profiles, None, limits)], cluster, SUM)
    found = conflict([Workload("m", graph, profiles, None, limits)], cluster)
    assert len(found) == (2 if limits.device_pins else 1)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


@pytest.mark.parametrize("objective", [LATENCY, SUM, STREAM])
def test_a_search_whose_time_is_up_does_not_say_that_limits_contradict(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, profiles = chain()
    nothing = SolvedProblem("time limit", inf, 0.0, (), np.zeros((0, 2), dtype=np.intp))
    for module in ("place", "throughput"):
        monkeypatch.setattr(f"taglio.cluster.planning.{module}.solve", lambda *_, **__: nothing)
    work = Workload("m", graph, profiles, None, Limits(None, max_energy_joules=1.0))
    with pytest.raises(Infeasible, match=r"energy limit .* 2 s of search, .* raise `time_limit_s`") as refusal:
        place([work], CLUSTER, objective, time_limit_s=2.0)
    assert refusal.value.limits == ()


def test_devices_have_room_for_all_requests_with_what_components_take_beyond_their_blocks() -> None:
    graph, profiles = chain()
    alone = CLUSTER.without("far")
    near = replace(profiles["near"], overhead_s=0.5 * profiles["near"].blocks[0].seconds)
    works = [Workload(name, graph, {"near": near}, None, Limits(None)) for name in ("one", "two")]
    rates = [each.predicted_rate_per_s for each in place(works, alone, SUM).plans]
    assert rates[0] is not None and rates[1] is not None

    def shared(one: float, two: float) -> list[Workload]:
        parts = ((one, rates[0]), (two, rates[1]))
        return [
            replace(work, rate_per_s=share * rate.value)
            for work, (share, rate) in zip(works, parts, strict=True)
            if rate is not None
        ]

    loads = place(shared(0.3, 0.6), alone, SUM).loads()
    assert loads == pytest.approx({"near": 0.9})
    with pytest.raises(Infeasible, match="limits on energy and rate once the overhead of components is counted"):
        place(shared(0.4, 0.61), alone, SUM)


@pytest.mark.parametrize("share", [0.9, 0.999])
def test_an_energy_limit_holds_with_what_components_take_beyond_their_blocks(share: float) -> None:
    """The blocks of the quickest plan are far within the limit; only with its components' overheads it is not."""
    graph, profiles = chain()
    profiles = {name: replace(each, overhead_s=5 * each.blocks[0].seconds) for name, each in profiles.items()}
    slow = tuple(replace(each, seconds=10 * each.seconds) for each in profiles["near"].blocks)
    work = Workload("m", graph, {**profiles, "near": replace(profiles["near"], blocks=slow)}, None, Limits(None))
    watts = {"near": 0.01, "far": 1.0}
    cluster = replace(CLUSTER, devices=tuple(replace(d, active_watts=watts[d.name]) for d in CLUSTER.devices))
    quick, least = (place([work], cluster, each).plans[0].predicted_joules for each in (SUM, ENERGY))
    assert quick is not None and least is not None
    limits = Limits(None, max_energy_joules=share * quick.value)
    found = place([replace(work, limits=limits)], cluster, SUM).plans[0].predicted_joules
    assert found is not None and least.value <= found.value <= share * quick.value
    limits = Limits(None, max_energy_joules=share * least.value)
    with pytest.raises(Infeasible, match=r"the energy limit|once the overhead of components is counted"):
        place([replace(work, limits=limits)], cluster, SUM)


@pytest.mark.parametrize(("text", "send_s", "told"), [("throughput", 0.0, 1), ("throughput", 1e-9, 0), ("sum", 0.0, 0)])
def test_a_rate_that_takes_messages_for_free_is_told(text: str, send_s: float, told: int) -> None:
    """A stream whose messages nobody had measured had a third of the rate that was predicted."""
    graph, profiles = chain()
    cluster = replace(FAST, devices=tuple(replace(each, send_s=send_s) for each in FAST.devices))
    work = Workload("m", graph, profiles, None, Limits(None))
    plan = place([work], cluster, parse_objective(text), time_limit_s=5.0).plans[0]
    assert text == "sum" or any(each.source != each.target for each in plan.crossings)
    assert len([each for each in plan.notes if "ignores the CPU cost of messages" in each]) == told


def test_precisions_of_a_plan_stay_and_devices_are_chosen_anew() -> None:
    graph, profiles = chain()
    work = Workload("m", graph, profiles, None, Limits(None))
    (first,) = place([work], FAST, SUM).plans
    there = tuple(replace(each, device="near", precision="float32") for each in first.placements)
    (again,) = place([work], FAST, SUM, precisions_of=[replace(first, placements=there)]).plans
    assert first.assignment() and not again.assignment()
    assert set(again.devices().values()) == {"far"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("latncy", 'did you mean "latency"'),
        ("", "is not known"),
        ("latency=1,energy=x", "must be a number"),
        ("speed=1", "weights are for latency and energy"),
        ("latency,energy", "is not known"),
    ],
)
def test_an_objective_that_is_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        parse_objective(text)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("latency", "250 ms"),
        ("throughput", "4 requests/s"),
        ("latency=1,energy=2", "0.25 weighed"),
        ("energy", "0.25 J"),
    ],
)
def test_an_amount_has_the_unit_of_the_objective(objective: str, words: str) -> None:
    assert parse_objective(objective).amount(0.25) == words


@pytest.mark.parametrize("objective", [LATENCY, ENERGY, STREAM])
def test_a_memory_that_is_too_small_is_named_at_once(objective: Objective) -> None:
    """Inputs are on the start device."""
    graph, profiles = chain()
    text = PAIR.replace("[device.near]", "[device.near]\nmemory_mb = 1e-5")
    cluster = parse(text.replace("[device.far]", "[device.far]\nmemory_mb = 1e-5"))
    begun = time.perf_counter()
    with pytest.raises(Infeasible, match=r"no plan keeps the memory of near \(1e-05 MB\): loosen it") as refusal:
        place([Workload("m", graph, profiles, None, Limits(None))], cluster, objective, time_limit_s=60.0)
    assert refusal.value.limits == ("memory_bytes",) and time.perf_counter() - begun < 20.0


def test_a_block_is_pinned_to_one_device_that_it_is_not_kept_off() -> None:
    graph, _ = chain()
    assert pinned_devices(graph, ["near=conv0", "near=conv*"], ["far=conv0"])["conv0"] == "near"
    with pytest.raises(BadOption, match="block conv1 is pinned to near and to far: drop one of the pins"):
        pinned_devices(graph, ["near=conv1", "far=conv1"])
    with pytest.raises(BadOption, match="block conv1 is pinned to far and kept off far"):
        pinned_devices(graph, ["far=conv1"], ["far=conv*"])
