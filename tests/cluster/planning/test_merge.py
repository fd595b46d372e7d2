"""Merged components against all ways to part a small graph, and the period of a placement that needs them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio.cluster.planning.describe import loads
from taglio.cluster.planning.merge import fewest_components
from taglio.cluster.planning.place import place
from taglio.cluster.planning.schedule import levels
from taglio.cluster.planning.workload import Workload, parse_objective
from taglio.plan.result import Limits
from tests.cluster.planning.test_place import FAST
from tests.examples import examples
from tests.plan import made_up


def graph(seed: int, nodes: int = 6) -> tuple[list[list[int]], list[str]]:
    """Random sources and devices of nodes."""
    rng = Random(seed)
    sources = [[each for each in range(node) if rng.random() < 0.35] for node in range(nodes)]
    return sources, [rng.choice("ab") for _ in range(nodes)]


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All partitions of a set."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for index, part in enumerate(rest):
            yield [*rest[:index], [items[0], *part], *rest[index + 1 :]]


def can_run(sources: Sequence[Sequence[int]], component: Sequence[int]) -> bool:
    """Whether no components wait for each other."""
    sorter = TopologicalSorter[int]()
    for node, read in enumerate(sources):
        sorter.add(component[node], *({component[each] for each in read} - {component[node]}))
    try:
        sorter.prepare()
    except CycleError:
        return False
    return True


def least(sources: Sequence[Sequence[int]], places: Sequence[str], device: str) -> int:
    """The fewest components of a device whatever the others have, by trying all."""
    mine = [node for node, place in enumerate(places) if place == device]
    counts = []
    for parts in partitions(mine):
        component = list(range(len(places)))
        for part in parts:
            for node in part:
                component[node] = part[0]
        if can_run(sources, component):
            counts.append(len(parts))
    return min(counts)


@examples(150)
@given(st.integers(0, 2**32))
def test_the_first_device_has_as_few_components_as_can_be(seed: int) -> None:
    sources, places = graph(seed)
    for order in (["a", "b"], ["b", "a"]):
        made = fewest_components(sources, places, order)
        assert levels(sources, places, made) == made, "components in running order are levels"
        pieces = sorted(set(zip(made, places, strict=True)))
        assert can_run(sources, [pieces.index(each) for each in zip(made, places, strict=True)])
        assert len({level for level, _ in pieces}) == len(pieces), "no two components share a level"
        found = sum(place == order[0] for _, place in pieces)
        assert found == (least(sources, places, order[0]) if order[0] in places else 0)


def test_a_stream_has_fewer_components_where_one_waits_for_two_inputs() -> None:
    """near: conv1 behind conv0 (far), conv3 of an input; far: conv2 and conv4 behind them. Without levels conv4 runs
    before conv2 does, in a component of its own."""
    sketch = made_up.Sketch()
    sketch.conv(sketch.conv(sketch.conv(sketch.input("in0"))))
    sketch.conv(sketch.conv(sketch.input("in1")))
    graph = sketch.graph()
    times = {(block.name, form): 1.0 for block in graph.blocks for form in made_up.forms(block)}
    profile = made_up.profile_of(graph, times, dict.fromkeys((t.name for t in graph.tensors), (0.0,) * 4), 100.0)
    pins = tuple(zip((block.name for block in graph.blocks), ("far", "near", "far", "near", "far")))
    limits = Limits(None, device_pins=pins, float_blocks=tuple(block.name for block in graph.blocks))
    work = Workload("m", graph, {"near": profile, "far": profile}, None, limits)
    answer = place([work], FAST, parse_objective("throughput"))
    apart = loads(answer.assembled, replace(answer.totals, levels=()))
    assert apart["far"] == pytest.approx(303e-6) and answer.value == pytest.approx(203e-6)
    assert 60e-6 < answer.bound <= answer.value
    (plan,) = answer.plans
    assert sorted(each.blocks for each in plan.pieces if each.device == "far") == [1, 2]
    # Two models share no component: each has as many as alone.
    both = place([work, replace(work, name="n")], FAST, parse_objective("throughput"))
    assert both.value == pytest.approx(answer.value)
    for each in both.plans:
        assert sorted(piece.blocks for piece in each.pieces if piece.device == "far") == [1, 2]
