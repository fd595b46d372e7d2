"""Every way to solve a placement problem against brute force, against each other, and against a minimum cut."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from taglio.cluster.file import parse
from taglio.cluster.planning.assemble import assemble
from taglio.cluster.planning.costs import evaluate
from taglio.cluster.planning.problem import CALLER, SOURCE, Form, Kind, Memory, Problem, Resource, Values
from taglio.cluster.planning.solve import solve
from taglio.cluster.planning.workload import Objective, Workload
from taglio.plan.highs import Quiet
from taglio.plan.result import Limits
from tests.cluster.planning.reference import brute_force
from tests.cluster.planning.small_problems import made, problems
from tests.cluster.planning.test_assemble import PAIR, chain
from tests.examples import examples
from tests.plan.made_up import Sketch, profile_of

CLOSE = 1e-5
slowly = examples(10, steady=False)


@slowly
@given(problems(peak=False))
def test_without_time_what_is_on_one_device_in_float_is_a_plan(problem: Problem) -> None:
    forms = len(problem.forms)
    simple = [evaluate(problem, [device * forms] * len(problem.nodes)) for device in range(len(problem.devices))]
    held = [each for each in simple if not each.broken]
    placed = solve(problem, time_limit_s=0.0)
    if held:
        assert placed.labels
        assert evaluate(problem, placed.labels, placed.copies).broken == ()
        assert placed.bound <= placed.objective


@slowly
@given(problems(peak=False))
def test_solve_equals_brute_force(problem: Problem) -> None:
    best = brute_force(problem)
    placed = solve(problem, gap=1e-6)
    if best is None:
        assert placed.status == "infeasible"
        assert placed.labels == ()
        return
    assert placed.status == "optimal"
    totals = evaluate(problem, placed.labels, placed.copies)
    assert totals.broken == ()
    assert totals.objective == pytest.approx(placed.objective, rel=CLOSE)
    assert placed.objective == pytest.approx(best.objective, rel=CLOSE)
    assert placed.bound <= best.objective + CLOSE * abs(best.objective)


def test_labels_that_break_a_strict_edge_are_no_plan() -> None:
    """A block in int8 alone, and movement behind it in float alone."""
    sketch = Sketch()
    sketch.move(sketch.conv(sketch.input("x")))
    graph = sketch.graph()
    profile = profile_of(graph, {}, {tensor.name: (0.0,) * 4 for tensor in graph.tensors})
    work = Workload("m", graph, {"near": profile, "far": profile}, None, Limits(None))
    problem = assemble([work], parse(PAIR), Objective()).problem
    names = np.array([form.name for form in problem.forms])
    allowed = problem.allowed & (names == np.array([["int8"], ["float32"]]))[:, None]
    problem = replace(problem, allowed=allowed)
    assert allowed.any(axis=(1, 2)).all() and brute_force(problem) is None
    assert solve(problem, gap=1e-6).status == "infeasible"


@slowly
@given(problems(peak=True))
def test_a_peak_of_activations_is_kept_and_the_bound_holds(problem: Problem) -> None:
    best = brute_force(problem)
    placed = solve(problem, gap=1e-6, time_limit_s=1.0)
    if placed.labels:
        assert best is not None
        assert evaluate(problem, placed.labels, placed.copies).broken == ()
        assert placed.objective >= best.objective * (1.0 - CLOSE)
    if best is not None:
        assert placed.status != "infeasible"
        assert placed.bound <= best.objective + CLOSE * abs(best.objective)


@pytest.mark.parametrize("seed", range(4))
def test_a_block_that_fits_nowhere_is_proof_enough(seed: int) -> None:
    """Of its labels that are not allowed the first one may be cheap."""
    problem = made(np.random.default_rng(seed), limits=True)
    allowed = problem.allowed.copy()
    allowed[0, :, 0] = False
    seconds = problem.seconds.copy()
    seconds[0][allowed[0]] = 1e3
    late = replace(problem.resources[0], upper=900.0)
    tight = replace(problem, allowed=allowed, seconds=seconds, resources=(late, *problem.resources[1:]))
    assert brute_force(tight) is None
    placed = solve(tight)
    assert (placed.status, placed.labels) == ("infeasible", ())


def test_a_device_without_end_to_its_memory_holds_what_a_small_one_does_not() -> None:
    """The input takes 32 bytes."""
    graph, profiles = chain()
    problem = assemble([Workload("m", graph, profiles, None, Limits(None))], parse(PAIR), Objective()).problem
    memory = replace(problem.memory, capacity=np.array([33.0, np.inf]), peak=True)
    placed = solve(replace(problem, memory=memory))
    assert placed.status == "optimal"
    assert evaluate(replace(problem, memory=memory), placed.labels, placed.copies).broken == ()
    assert {problem.split(label)[0] for label in placed.labels} == {1}


@pytest.mark.parametrize("seed", [1, 2, 7])
def test_the_plan_that_hardly_fits_is_found(seed: int) -> None:
    """Copies and labels that are cheapest by prices keep too many activations alive."""
    problem = made(np.random.default_rng(seed), limits=True, peak=True)
    endless = replace(problem.memory, capacity=np.full(len(problem.devices), 1e9))
    free = brute_force(replace(problem, memory=endless))
    assert free is not None
    peak = free.peak_bytes
    for tight in (0.9, 0.7):
        tighter = replace(problem.memory, capacity=tight * np.maximum(peak, 0.5 * peak.max()))
        least, placed = brute_force(replace(problem, memory=tighter)), solve(replace(problem, memory=tighter))
        assert bool(placed.labels) == (least is not None)
        if least is not None:
            assert placed.objective <= least.objective * (1.0 + 5e-3)


def two_devices(rng: np.random.Generator, nodes: int, reach: int = 4) -> Problem:
    """Float only, each node reads one or two of the `reach` before it, every value has readers."""
    read: dict[int, list[int]] = {SOURCE: [0]}
    for node in range(1, nodes):
        for producer in {int(rng.integers(max(0, node - reach), node)) for _ in range(2)}:
            read.setdefault(producer, []).append(node)
    for node in range(nodes):
        read.setdefault(node, [CALLER])
    producers = sorted(read)
    count = len(producers)
    readers = np.array([reader for producer in producers for reader in read[producer]])
    none = np.zeros((2, 2))
    speed = np.array([[0.0, 1.0], [1.0, 0.0]])
    values = Values(
        tuple(f"value {index}" for index in range(count)),
        np.array(producers),
        np.zeros(count, dtype=np.intp),
        np.zeros(count, dtype=np.intp),
        np.concatenate([[0], np.cumsum([len(read[producer]) for producer in producers])]),
        readers,
        np.zeros(len(readers), dtype=bool),
        np.zeros((count, 2)),
        np.zeros((count, 2)),
        rng.integers(1, 40, count).astype(float),
        np.ones(count),
    )
    seconds = rng.integers(1, 30, (nodes, 2, 1)).astype(float)
    return Problem(
        ("one", "two"),
        (Form("float32", Kind.FLOAT, Kind.FLOAT),),
        tuple(f"block {node}" for node in range(nodes)),
        np.zeros(nodes, dtype=np.intp),
        seconds,
        np.ones((nodes, 2, 1), dtype=bool),
        values,
        (Resource("latency", np.ones(2), none, speed, np.ones(1), 1.0),),
        (),
        Memory(np.full(2, np.inf), np.zeros((nodes, 1))),
    )


def minimum_cut(problem: Problem) -> float:
    """The least sum by the largest flow, a linear program: a value is sent once, through a node of its own each way."""
    nodes, values, arcs = len(problem.nodes), problem.values, list[tuple[int, int, float]]()
    source, sink = nodes + 2 * len(values), nodes + 2 * len(values) + 1
    for node in range(nodes):
        arcs += [(source, node, problem.seconds[node, 1, 0]), (node, sink, problem.seconds[node, 0, 0])]
    for value, producer in enumerate(values.producer):
        writer = source if producer == SOURCE else int(producer)
        size, forth, back = values.float_bytes[value], nodes + 2 * value, nodes + 2 * value + 1
        # Source side is device one. Forth: the producer there, a reader on two. Back: the other way round.
        arcs += [(writer, forth, size), (back, writer, size)]
        for end in values.readers[values.start[value] : values.start[value + 1]]:
            reader = source if end == CALLER else int(end)
            arcs += [(forth, reader, np.inf), (reader, back, np.inf)]
    tail, head, capacity = (np.array(column) for column in zip(*arcs, strict=True))
    highs, columns = Quiet(), np.arange(len(arcs), dtype=np.int32)
    highs.addVars(len(arcs), np.zeros(len(arcs)), capacity)
    highs.changeColsCost(len(arcs), columns, (head == sink) * -1.0)
    for node in range(source):
        ends = np.flatnonzero((tail == node) | (head == node)).astype(np.int32)
        highs.addRow(0.0, 0.0, len(ends), ends, (head == node)[ends] * 1.0 - (tail == node)[ends])
    highs.run()
    return -float(highs.getInfo().objective_function_value)


@pytest.mark.parametrize("seed", range(6))
def test_two_devices_in_float_are_a_minimum_cut(seed: int) -> None:
    problem = two_devices(np.random.default_rng(seed), 40)
    placed = solve(problem, gap=1e-9)
    assert placed.status == "optimal"
    assert placed.objective == pytest.approx(minimum_cut(problem), rel=1e-9)


def test_a_dense_graph_is_bounded_and_placed() -> None:
    problem = two_devices(np.random.default_rng(0), 160, reach=160)
    best, placed = minimum_cut(problem), solve(problem, time_limit_s=10.0)
    assert placed.bound <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= placed.objective <= 1.1 * best
    assert evaluate(problem, placed.labels, placed.copies).broken == ()


def test_a_search_without_a_plan_goes_on_for_longer() -> None:
    """Three blocks of 4 bytes in float, two devices with 9 bytes."""
    graph, profiles = chain()
    problem = assemble([Workload("m", graph, profiles, None, Limits(None))], parse(PAIR), Objective()).problem
    allowed = problem.allowed & (np.arange(len(problem.forms)) == 0)
    problem = replace(problem, allowed=allowed, memory=replace(problem.memory, capacity=np.full(2, 9.0), peak=False))
    assert solve(problem, time_limit_s=0.0).labels == ()
    found = solve(problem, time_limit_s=0.0, patience_s=10.0)
    assert len(found.labels) == 3 and found.status == "time limit" and not evaluate(problem, found.labels).broken
