"""Components and transfers of a labelling: hand-computed cases, and sums that must agree with the plain evaluation."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio.cluster.devices import Link
from taglio.cluster.file import parse
from taglio.cluster.planning.assemble import Assembled, assemble, labels_of
from taglio.cluster.planning.costs import evaluate
from taglio.cluster.planning.problem import Copies, Resource, Totals
from taglio.cluster.planning.schedule import Scheduler, components
from taglio.cluster.planning.simulate import Pipeline, link_name, simulate
from taglio.cluster.planning.workload import Objective, Workload
from taglio.model.graph import Graph
from taglio.plan.result import Limits
from taglio.profile.result import Profile
from tests.cluster.planning import reference
from tests.cluster.planning.reference import broken_edges
from tests.cluster.planning.test_assemble import PAIR, chain, without_wire_only
from tests.examples import examples
from tests.plan import made_up
from tests.plan.made_up import INT8, MICROSECOND, Problem

US = MICROSECOND


def on_two(problem: Problem) -> Assembled:
    """near as profiled, far the same; of a link's latency the larger part is between two messages, and as much is taken
    of the device that sends one."""
    profiles = {"near": problem.profile, "far": problem.profile}
    work = Workload("m", problem.graph, profiles, problem.error, Limits(None))
    pair = PAIR.replace("latency_ms = 0.01", "latency_ms = 0.01\ngap_ms = 0.006")
    return assemble([work], parse(pair.replace("active_", "send_ms = 0.006\nactive_")), Objective())


def drawn(assembled: Assembled, seed: int) -> list[int]:
    """Labels at random that break no edge: devices at random, then each block's form as its inputs allow."""
    problem, rng = assembled.problem, Random(seed)
    labels: list[int] = []
    for node in range(len(problem.nodes)):
        options = np.flatnonzero(problem.allowed[node].reshape(-1)).tolist()
        rng.shuffle(options)
        for option in options:
            trial = [*labels, option] + [0] * (len(problem.nodes) - node - 1)
            read = [v for v in range(len(problem.values)) for e in range(*problem.values.start[v : v + 2])
                    if problem.values.readers[e] == node]  # fmt: skip
            clash = [
                line
                for v in set(read)
                for line in broken_edges(problem, trial, v)
                if line.startswith(problem.nodes[node] + " ")
            ]
            if not clash:
                labels.append(option)
                break
    return labels


def made(assembled: Assembled, labels: list[int], least: Sequence[int] = ()) -> Pipeline:
    return Scheduler(assembled, 0).schedule(labels, evaluate(assembled.problem, labels).copies, least)


def some_levels(assembled: Assembled, seed: int) -> tuple[int, ...]:
    """Stages at random."""
    rng = Random(seed)
    return tuple(rng.randrange(3) for _ in assembled.problem.nodes)


def test_a_chain_across_the_link_and_back() -> None:
    graph, profiles = chain()
    works = [Workload("m", graph, profiles, None, Limits(None))]
    assembled = without_wire_only(assemble(works, parse(PAIR), Objective()))
    names = [block.name for block in graph.blocks]
    labels = labels_of(assembled, 0, dict(zip(names, ("near", "far", "far"))), dict.fromkeys(names, INT8))
    schedule = made(assembled, labels)
    assert [piece.name for piece in schedule.tasks] == ["0-near", "1-far", "output-near"]
    # overhead 7 + quantise 4 + (12 + 2 + 1); 9 + 2 × (1 + 1); 7 + dequantise 3.
    assert [piece.seconds for piece in schedule.tasks] == pytest.approx([26 * US, 13 * US, 10 * US])
    assert [(each.int8, each.bytes) for each in schedule.transfers] == [(True, 8.0), (True, 8.0)]
    assert [each.busy_s + each.delay_s for each in schedule.transfers] == pytest.approx([18 * US, 18 * US])
    assert simulate(schedule).end_s == pytest.approx((26 + 18 + 13 + 18 + 10) * US)


def test_an_input_that_travels_as_int8_is_quantised_where_it_is() -> None:
    graph, profiles = chain()
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], parse(PAIR), Objective())
    names = [block.name for block in graph.blocks]
    labels = labels_of(assembled, 0, dict.fromkeys(names, "far"), {})
    schedule = made(assembled, labels)
    assert [piece.name for piece in schedule.tasks] == ["input-near", "0-far", "output-near"]
    assert schedule.tasks[0].seconds == pytest.approx((7 + 4) * US)
    assert schedule.tasks[2].seconds == pytest.approx((7 + 3) * US)
    last = len(assembled.problem.values) - 1
    copies = np.array([[0, Copies.FLOAT], [0, 0], [0, 0], [Copies.FLOAT, 0]])
    assert last == 3
    plain = Scheduler(assembled, 0).schedule(labels, copies)
    assert [piece.name for piece in plain.tasks] == ["0-far"]
    assert plain.transfers[0].source is None and not plain.transfers[1].targets
    assert simulate(plain).end_s == pytest.approx((9 + (5 + 2 + 2) + 7 + 7 + 2 * 42) * US)


def joined_chain() -> tuple[Graph, dict[str, Profile]]:
    """`chain`, whose last block also reads what the first one writes."""
    graph, profiles = chain()
    first, second, last = graph.blocks
    last = replace(last, inputs=(*last.inputs, first.outputs[0]))
    readers = {first.outputs[0]: (second.name, last.name)}
    tensors = tuple(replace(tensor, consumers=readers.get(tensor.name, tensor.consumers)) for tensor in graph.tensors)
    return replace(graph, blocks=(first, second, last), tensors=tensors), profiles


def test_two_components_on_one_device_pay_the_loopback() -> None:
    graph, profiles = joined_chain()
    cluster = parse(PAIR).with_link(Link("near", "near", 1e6, 5 * US))
    works = [Workload("m", graph, profiles, None, Limits(None))]
    assembled = without_wire_only(assemble(works, cluster, Objective()))
    names = [block.name for block in graph.blocks]
    schedule = made(assembled, labels_of(assembled, 0, dict(zip(names, ("near", "far", "near"))), {}))
    assert [piece.name for piece in schedule.tasks] == ["0-near", "1-far", "2-near"]
    sent = {each.link: each.busy_s + each.delay_s for each in schedule.transfers}
    assert len(sent) == len(schedule.transfers) == 3
    assert [sent["near", "near"], sent["near", "far"], sent["far", "near"]] == pytest.approx(
        [37 * US, 42 * US, 42 * US]
    )


def test_the_second_of_two_messages_waits_for_the_gap_behind_the_first() -> None:
    graph, profiles = joined_chain()
    cluster = parse(PAIR)
    link = cluster.link("near", "far")
    assert link is not None
    ends = []
    for gap_s in (0.0, 6 * US):
        used = cluster.with_link(replace(link, gap_s=gap_s))
        assembled = without_wire_only(assemble([Workload("m", graph, profiles, None, Limits(None))], used, Objective()))
        labels = labels_of(assembled, 0, dict(zip((b.name for b in graph.blocks), ("near", "near", "far"))), {})
        pipeline = made(assembled, labels)
        timeline = simulate(pipeline)
        ends.append(timeline.end_s)
        ways = [each for each in timeline.spans if each.on == "near -> far"]
        assert len(ways) == 2 and pipeline.busy_s()["near -> far"] == pytest.approx(2 * (gap_s + 32 * US))
        assert ways[1].start_s - ways[0].start_s == pytest.approx(gap_s + 32 * US)
    assert ends[1] - ends[0] == pytest.approx(6 * US)  # the latency of the last one stays what it was


def by_plain_loops(assembled: Assembled, totals: Totals) -> dict[str, float]:
    """Seconds that blocks and conversions take of each device, and messages of each link."""
    problem, cluster = assembled.problem, assembled.cluster
    eye, none = np.eye(len(problem.devices)), np.zeros((len(problem.devices),) * 2)
    resources = [Resource(name, eye[index], none, none, np.ones(1), 0.0) for index, name in enumerate(problem.devices)]
    for (a, source), (b, target) in product(enumerate(problem.devices), repeat=2):
        link = cluster.link(source, target)
        if link is not None and source != target:
            one = np.outer(eye[a], eye[b])
            times = link.gap_s * one, one / link.bandwidth_bytes_per_s
            resources.append(Resource(link_name((source, target)), np.zeros(len(eye)), *times, np.ones(1), 0.0))
    plain = reference.evaluate(replace(problem, resources=tuple(resources)), totals.labels, totals.copies)
    return dict(zip((resource.name for resource in resources), plain.resources.tolist(), strict=True))


@examples(80)
@given(made_up.problems(sparing=False), st.integers(0, 2**32))
def test_devices_and_links_are_busy_for_what_plain_loops_say(problem: Problem, seed: int) -> None:
    assembled = on_two(problem)
    labels = drawn(assembled, seed)
    totals = evaluate(assembled.problem, labels)
    assert not [line for line in totals.broken if "between its neighbours" not in line]
    schedule, busy_s = made(assembled, labels), by_plain_loops(assembled, totals)
    overhead_s = dict(zip(assembled.problem.devices, assembled.overhead_s[0], strict=True))
    occupied_s = schedule.busy_s()
    for name in busy_s.keys() - overhead_s.keys():
        assert occupied_s.get(name, 0.0) == pytest.approx(busy_s[name], rel=1e-9, abs=1e-12)
    for device, overhead in overhead_s.items():
        tasks = [task for task in schedule.tasks if task.device == device]
        taken_s = sum(task.seconds - overhead for task in tasks)
        # What arrives in float at several components, or is an input, is quantised by each: that only adds.
        assert taken_s >= busy_s[device] * (1 - 1e-9) - 1e-12
        if sum(bool(task.nodes) for task in tasks) <= 1 and not schedule.tasks[0].name.startswith("input"):
            assert taken_s == pytest.approx(busy_s[device], rel=1e-9, abs=1e-12)


def test_each_component_of_a_device_pays_for_its_own_conversions() -> None:
    """conv0 near and conv1 far in float; conv2, near again, reads both in int8."""
    graph, profiles = joined_chain()
    assembled = without_wire_only(
        assemble([Workload("m", graph, profiles, None, Limits(None))], parse(PAIR), Objective())
    )
    names = [block.name for block in graph.blocks]
    places = dict(zip(names, ("near", "far", "near"), strict=True))
    schedule = made(assembled, labels_of(assembled, 0, places, {names[2]: INT8}))
    assert [task.name for task in schedule.tasks] == ["0-near", "1-far", "2-near"]
    # Overhead 7, conv0 30, the input's flow 2 and its own 2, quantise 4; 9 + 5 + 2 + 4; 7 + 12 + 1, dequantise 3.
    assert [task.seconds for task in schedule.tasks] == pytest.approx([45 * US, 20 * US, 23 * US])
    assert {(sent.link, sent.int8) for sent in schedule.transfers} == {
        (("near", "near"), True), (("near", "far"), False), (("far", "near"), True),
    }  # fmt: skip


@examples(40)
@given(made_up.problems(sparing=False), st.integers(0, 2**32))
def test_components_are_those_that_are_cut(problem: Problem, seed: int) -> None:
    assembled = on_two(problem)
    labels = drawn(assembled, seed)
    blocks = problem.graph.blocks
    least = some_levels(assembled, seed)
    places = {b.name: assembled.problem.devices[assembled.problem.split(label)[0]] for b, label in zip(blocks, labels)}
    wanted: dict[str, list[str]] = {}
    in_levels = {block.name: level for block, level in zip(blocks, least) if level}
    for block, name in components(problem.graph, places, in_levels).items():
        wanted.setdefault(name, []).append(block)
    found = {
        piece.name: [blocks[node].name for node in piece.nodes]
        for piece in made(assembled, labels, least).tasks
        if piece.nodes
    }
    assert {name: sorted(each) for name, each in found.items()} == {name: sorted(each) for name, each in wanted.items()}
