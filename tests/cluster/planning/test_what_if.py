"""What-if changes do what they say, and what is no change is refused."""

from dataclasses import replace

import msgspec
import pytest

from taglio.cluster.changes import changed
from taglio.cluster.devices import Cluster
from taglio.cluster.file import parse
from taglio.cluster.planning.explain import again, amount, limits_cost, runner_up, what_if
from taglio.cluster.planning.place import place
from taglio.cluster.planning.workload import Workload, parse_objective
from taglio.errors import BadOption
from taglio.flow.pareto import front
from taglio.plan.result import Limits
from taglio.profile.result import scaled
from tests.cluster.planning.test_assemble import PAIR, chain

CLUSTER = parse(PAIR.replace("bandwidth_mbit_s = 8\n", "bandwidth_mbit_s = 80\n"))
SUM = parse_objective("sum")


def test_changes_do_what_they_say() -> None:
    link, back = CLUSTER.link("near", "far"), CLUSTER.link("far", "near")
    assert link is not None
    quick = changed(CLUSTER, "link near->far bandwidth x2; link near -> far latency x0.5")
    found = quick.link("near", "far")
    assert found is not None and quick.link("far", "near") == back
    assert (found.bandwidth_bytes_per_s, found.latency_s) == (2 * link.bandwidth_bytes_per_s, 0.5 * link.latency_s)
    assert changed(CLUSTER, "link near->far cut").link("near", "far") is None
    assert [each.name for each in changed(CLUSTER, "without far").devices] == ["near"]
    assert [each.int8 for each in changed(CLUSTER, "no int8").devices] == [False, False]
    assert [each.int8 for each in changed(CLUSTER, "no int8 on far").devices] == [True, False]
    slow = changed(CLUSTER, "device far x3").device("far")
    assert (slow.scale_of, slow.scale_factor, slow.assumed) == ("profiles/far.json", 3.0, True)
    assert changed(CLUSTER, "device far memory x2").device("far").memory_bytes == float("inf")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("faster", "write "),
        ("link near->fra bandwidth x2", 'did you mean "far"'),
        ("link near->far bandwidth x0", "must be a factor from"),
        ("without near", "start device"),
        ("device cloud x2", "there are near, far"),
        ("link near->near cut; link near->near bandwidth x2; without far; link near->far cut", "far"),
    ],
)
def test_what_is_no_change_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        changed(CLUSTER, text)


def test_answers_come_from_planning_again() -> None:
    graph, profiles = chain()
    work = Workload("m", graph, profiles, None, Limits(None))
    plan_again = again(SUM, 2.0)
    base = place([work], CLUSTER, SUM)
    assert set(base.plans[0].devices().values()) == {"far"}
    second = runner_up([work], CLUSTER, SUM, plan_again, base.plans)
    assert second is not None and second.value is not None and second.value > base.value
    assert set(second.plans[0].devices().values()) == {"near"}
    told = what_if("link near->far bandwidth x0.01", lambda _: [work], CLUSTER, SUM, plan_again, base)
    assert told.value == pytest.approx(second.value) and "another placement" in told.words
    pinned = work.with_limits(device_pins=(("conv1", "far"),))
    told = what_if("without far", lambda c: _as_in(c, [pinned]), CLUSTER, SUM, plan_again, base)
    assert told.value is None and "without far: block conv1" in told.words
    joules = base.plans[0].predicted_joules
    assert joules is not None
    tight = Workload("m", graph, profiles, None, Limits(None, max_energy_joules=0.8 * joules.value))
    held = place([tight], CLUSTER, SUM)
    (cost,) = limits_cost([tight], CLUSTER, SUM, plan_again, held)
    assert cost.name == "the energy limit" and cost.value == pytest.approx(base.value, rel=2e-3)
    assert held.value > base.value and f"{(held.value - base.value) * 1e3:.4g} ms" in cost.words


def test_a_placement_is_the_same_only_if_every_model_stays() -> None:
    """The first is held where it is; a slow device brings the second away from it."""
    graph, profiles = chain()
    free = Workload("two", graph, profiles, None, Limits(None, device_pins=(("conv1", "far"),)))
    held = Workload(
        "one", graph, profiles, None, Limits(None, device_pins=tuple((b.name, "near") for b in graph.blocks))
    )
    quick = again(SUM, 5.0)
    base = quick([held, free], CLUSTER)
    words = [
        what_if(text, lambda c: _as_in(c, [held, free]), CLUSTER, SUM, quick, base).words
        for text in ("device far x1000", "device far x1.0001")
    ]
    assert "another placement" in words[0] and "the same placement" in words[1]


def _as_in(cluster: Cluster, works: list[Workload]) -> list[Workload]:
    """The workloads with the times that the cluster's devices have in it."""
    return [
        replace(
            work,
            profiles={
                each.name: scaled(work.profiles[each.name], each.scale_factor)
                if each.assumed
                else work.profiles[each.name]
                for each in cluster.devices
            },
        )
        for work in works
    ]


@pytest.mark.parametrize("axis", ["energy", "throughput"])
@pytest.mark.parametrize("models", [1, 2])
def test_a_front_has_only_plans_that_no_other_beats(axis: str, models: int) -> None:
    graph, profiles = chain()
    profiles = {"near": profiles["near"], "far": scaled(profiles["far"], 2.0)}
    works = [Workload(f"m{each}", graph, profiles, None, Limits(None)) for each in range(models)]
    found = front(
        works,
        axis,  # type: ignore[arg-type]
        lambda w, objective: place(w, CLUSTER, objective, time_limit_s=1.0),
        points=4,
    )
    assert all(len(each.others) == models - 1 for each in found.points)
    assert found.points and found.tried >= len(found.points)
    assert msgspec.json.encode(found)  # is written to a file
    sign = -1.0 if axis == "throughput" else 1.0
    for one in found.points:
        for other in found.points:
            if one is not other:
                assert one.latency_s < other.latency_s or sign * one.other < sign * other.other


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("latency", "250 ms"),
        ("throughput", "4 requests/s"),
        ("latency=1,energy=2", "0.25 weighed"),
        ("throughput,energy", "0.25 J"),
    ],
)
def test_an_amount_has_the_unit_of_the_last_objective(objective: str, words: str) -> None:
    assert amount(parse_objective(objective), 0.25) == words


def test_the_memory_that_a_plan_lacks_has_its_cost() -> None:
    """Half as much again is what the best plan needs far."""
    graph, profiles = chain()
    work = Workload("m", graph, profiles, None, Limits(None))
    far = next(each for each in CLUSTER.devices if each.name == "far")
    held = replace(CLUSTER, devices=(CLUSTER.devices[0], replace(far, memory_bytes=16.0)))
    free = place([work], CLUSTER, SUM)
    base = place([work], held, SUM)
    assert free.value < base.value
    (cost,) = limits_cost([work], held, SUM, again(SUM, 5.0), base)
    assert cost.name == "the memory of far" and cost.value == pytest.approx(free.value)
