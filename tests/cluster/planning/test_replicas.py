"""Devices that take turns: when the planner lets them, how many, and that a simulated stream keeps the rate."""

from dataclasses import replace

import pytest
from hypothesis import given

from taglio.cluster.devices import Cluster
from taglio.cluster.file import parse
from taglio.cluster.planning.place import Answer, Planner, place
from taglio.cluster.planning.replicas import alike
from taglio.cluster.planning.schedule import pipelines
from taglio.cluster.planning.simulate import Pipeline
from taglio.cluster.planning.workload import Workload, parse_objective
from taglio.errors import Infeasible
from taglio.plan.result import Limits, Plan
from tests.cluster.planning.streams import stream
from tests.cluster.planning.test_assemble import PAIR, chain
from tests.examples import examples
from tests.plan import made_up
from tests.plan.made_up import Problem

STREAM, LATENCY = parse_objective("throughput"), parse_objective("latency")
# The start device is slow and its link is not, so that all is done elsewhere.
FAST = PAIR.replace("bandwidth_mbit_s = 8", "bandwidth_mbit_s = 800").replace("latency_ms = 0.01", "latency_ms = 0.001")
NAMES = ("far", "further", "furthest", "fourth")


def several(count: int, text: str = FAST) -> Cluster:
    """The start device and `count` others, all alike."""
    return parse(text + "".join(f'[device.{name}]\nlike = "far"\n' for name in NAMES[1:count]))


def work(cluster: Cluster, limits: Limits | None = None) -> Workload:
    graph, profiles = chain()
    known = {each.name: profiles["near" if each.name == "near" else "far"] for each in cluster.devices}
    return Workload("m", graph, known, None, limits or Limits(None))


def far(answer: Answer) -> tuple[str, ...]:
    return next(each.machines for each in answer.plans[0].usage if each.device == "far")


def rate(plan: Plan) -> float:
    assert plan.predicted_rate_per_s is not None
    return plan.predicted_rate_per_s.value


def simulated(answer: Answer) -> float:
    """Requests per second of 200 in the steady state, where the machines of a device take turns."""
    (one,), machines = pipelines(answer.assembled, answer.totals), answer.plans[0].machines()

    def at_turn(turn: int) -> Pipeline:
        def at(device: str) -> str:
            names = machines.get(device, (device,))
            return names[turn % len(names)]

        tasks = tuple(replace(each, device=at(each.device)) for each in one.tasks)
        sent = tuple(replace(each, link=(at(each.link[0]), at(each.link[1]))) for each in one.transfers)
        return replace(one, tasks=tasks, transfers=sent)

    ends_s = sorted(stream([at_turn(turn) for turn in range(200)]))
    return 100 / (ends_s[-1] - ends_s[-101])


def test_a_stream_over_devices_that_are_alike_is_many_times_as_fast() -> None:
    alone, together = (place([work(c)], c, STREAM) for c in (several(1), several(3)))
    assert far(together) == NAMES[:3]
    # What the start device and links do limits the rest.
    assert rate(together.plans[0]) >= 1.9 * rate(alone.plans[0])
    assert simulated(together) == pytest.approx(rate(together.plans[0]), rel=0.02)


def test_no_more_devices_take_turns_than_the_period_needs() -> None:
    cluster = several(4, FAST.replace("[device.near]", "[device.near]\nsend_ms = 0.01"))
    held = place([work(cluster)], cluster, STREAM)  # sending inputs keeps the start device busy
    assert far(held) == NAMES[:3]
    assert rate(held.plans[0]) == pytest.approx(1.0 / held.value)


@pytest.mark.whole
@examples(4)
@given(made_up.problems(largest=4, sparing=False))
def test_taking_turns_is_never_slower_than_a_device_for_each_component(problem: Problem) -> None:
    cluster = several(2)
    profiles = {each.name: problem.profile for each in cluster.devices}
    bare = Workload("m", problem.graph, profiles, problem.error, Limits(None))
    apart = Planner([bare], cluster, STREAM, (), 1e-3, 2.0).answer(why=True)
    turns = place([bare], cluster, STREAM, gap=1e-3, time_limit_s=2.0)
    assert turns.value <= apart.value * (1.0 + 2e-3) + 1e-9
    assert simulated(turns) >= 0.9 * rate(turns.plans[0])


@pytest.mark.whole
def test_devices_without_memory_for_all_of_it_have_a_part_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's weights are what one of them can hold."""
    monkeypatch.setattr(
        "taglio.cluster.planning.place.conflict", lambda *_: pytest.fail("why no replica fits is nobody's question")
    )
    graph = work(several(1)).graph
    blocks = tuple(replace(each, weight_elements=1_000_000) for each in graph.blocks)
    small = several(2, FAST.replace(".far]", ".far]\nmemory_mb = 1.1"))
    answer = place([replace(work(small), graph=replace(graph, blocks=blocks))], small, STREAM)
    assert {each.device: each.machines for each in answer.plans[0].usage} == {
        "near": ("near",), "far": ("far",), "further": ("further",),
    }  # fmt: skip


@pytest.mark.whole
def test_a_rate_that_is_asked_for_is_reached_by_taking_turns_only_where_it_must() -> None:
    cluster = several(3)
    most = rate(place([work(several(1))], several(1), STREAM).plans[0])

    def asked(times: float) -> Answer:
        return place([work(cluster, Limits(None, min_rate_per_s=times * most))], cluster, LATENCY, time_limit_s=1.0)

    few, more = asked(0.5), asked(1.6)
    assert all(len(each.machines) == 1 for each in few.plans[0].usage)
    assert rate(more.plans[0]) >= 1.6 * most * (1.0 - 1e-6)
    with pytest.raises(Infeasible, match="the least request rate"):
        asked(50.0)


def test_only_devices_that_can_stand_for_each_other_take_turns() -> None:
    cluster = several(3)
    assert alike([work(cluster)], cluster) == (NAMES[:3],)
    block = work(cluster).graph.blocks[0].name
    pinned = Limits(None, device_pins=((block, "further"),))
    assert alike([work(cluster, pinned)], cluster) == (("far", "furthest"),)
    kept_off = Limits(None, device_exclusions=((block, "furthest"),))
    assert alike([work(cluster, kept_off)], cluster) == (("far", "further"),)
    link = cluster.link("near", "far")
    assert link is not None
    remote = cluster.with_link(replace(link, target="furthest", latency_s=1.0))
    assert alike([work(remote)], remote) == (("far", "further"),)
    same = work(cluster)
    slow = replace(same, profiles={**same.profiles, "further": same.profiles["near"]})
    assert alike([slow], cluster) == (("far", "furthest"),)


def test_a_model_with_states_has_no_replicas() -> None:
    cluster = several(2)
    graph = work(cluster).graph
    stateful = replace(graph, blocks=(replace(graph.blocks[0], state_bytes=8), *graph.blocks[1:]))
    plan, *_ = place([replace(work(cluster), graph=stateful)], cluster, STREAM).plans
    assert all(each.machines == (each.device,) for each in plan.usage)
