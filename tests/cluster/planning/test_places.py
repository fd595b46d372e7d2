"""Several runtimes on one device: they take turns on its processor, share its memory, exchange tensors by a copy."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given

from taglio.cluster.devices import Cluster, Device, Link
from taglio.cluster.planning.assemble import assemble, busy_times
from taglio.cluster.planning.costs import evaluate
from taglio.cluster.planning.describe import describe
from taglio.cluster.planning.place import place
from taglio.cluster.planning.simulate import Pipeline, Task, simulate
from taglio.cluster.planning.workload import Objective, parse_objective
from taglio.errors import Infeasible
from taglio.plan.result import Limits
from tests.cluster.planning.checker import check
from tests.cluster.planning.reference import every
from tests.cluster.planning.test_place import placed, seconds, workload
from tests.cluster.planning.test_schedule import drawn
from tests.examples import examples
from tests.plan import made_up
from tests.plan.made_up import Problem

COPY = (Link("ort", "vino", 1e9, 1e-6), Link("vino", "ort", 1e9, 1e-6))
TWO = Cluster("ort", (Device("ort", memory_bytes=1e6), Device("vino", "openvino", processor="ort")), COPY)
APART = replace(TWO, devices=(TWO.devices[0], replace(TWO.devices[1], processor="")))


def test_places_of_one_device_take_turns() -> None:
    tasks = (Task("0-ort", "ort", 2.0), Task("0-vino", "vino", 3.0))
    assert simulate(Pipeline(tasks, ())).end_s == 3.0
    timeline = simulate(Pipeline(tasks, (), (("vino", "ort"),)))
    assert timeline.end_s == 5.0
    assert timeline.busy_s == {"ort": 2.0, "vino": 3.0}


@examples(40)
@given(made_up.problems(largest=5))
def test_any_placement_is_described_as_the_checker_finds_it_and_is_no_faster_than_apart(problem: Problem) -> None:
    work = workload(problem, TWO)
    shared, apart = (assemble([work], cluster, Objective()) for cluster in (TWO, APART))
    totals = evaluate(shared.problem, drawn(shared, 1))
    (plan,) = describe(shared, totals)
    check(problem.graph, work.profiles, problem.error, TWO, replace(plan, limits=replace(plan.limits, max_error=None)))
    assert seconds(shared, totals) >= seconds(apart, totals) * (1 - 1e-9)


@examples(5)
@given(made_up.problems(largest=3, sparing=False))
def test_the_shortest_request_over_two_runtimes_is_found(problem: Problem) -> None:
    assembled = assemble([workload(problem, TWO)], TWO, Objective())
    best = min((seconds(assembled, each) for each in every(assembled.problem)), default=inf)
    answer = placed(problem, parse_objective("latency"), TWO)
    assert (answer is None) == (best == inf)
    if answer is None:
        return
    assert answer.value <= best * 1.05  # predictions are good to a few per cent
    assert answer.bound <= best * (1 + 1e-9)


def test_memory_and_busy_time_are_those_of_the_device() -> None:
    sketch = made_up.Sketch()
    graph = sketch.graph(sketch.conv(sketch.conv(sketch.input("x"))))
    graph = replace(graph, blocks=tuple(replace(each, weight_elements=150) for each in graph.blocks))
    times = {(block.name, name): 10.0 for block in graph.blocks for name in made_up.forms(block)}
    profile = made_up.profile_of(graph, times, {tensor.name: (0.0, 0.0, 0.0, 0.0) for tensor in graph.tensors})
    error = made_up.error_of(graph, ())
    work = workload(Problem(graph, profile, error, Limits(None)), TWO)
    problem = assemble([work], TWO, Objective()).problem
    totals = evaluate(problem, [problem.label(0, 0), problem.label(1, 0)])
    assert totals.weight_bytes.tolist() == [1200.0, 0.0]
    (device, *_) = busy_times([work], TWO, problem.resources[0].models, 1.0)
    assert device.name == "time of ort" and device.device.tolist() == [1.0, 1.0]
    small = replace(TWO, devices=(replace(TWO.devices[0], memory_bytes=700.0), TWO.devices[1]))
    crowded = evaluate(assemble([work], small, Objective()).problem, [problem.label(0, 0), problem.label(1, 0)])
    assert crowded.broken == ("memory of ort",)
    held = replace(work, limits=Limits(None, float_blocks=("conv0", "conv1")))
    with pytest.raises(Infeasible, match=r"weights of all blocks need at least 0.0012 MB, and ort has 0.0007 MB"):
        place([held], small, parse_objective("sum"))
