"""The layered layout: order, room and lanes."""

import random
from itertools import pairwise

from taglio.report.layers import Box, layout


def test_layers_follow_the_longest_path_and_sources_stand_above_their_first_reader() -> None:
    boxes = [Box(name, 5, 5) for name in ("a", "b", "c", "late", "d")]
    drawn = layout(boxes, [("a", "b"), ("b", "c"), ("c", "d"), ("late", "d"), ("a", "d")])
    assert drawn.layers == {"a": 0, "b": 1, "c": 2, "late": 2, "d": 3}
    assert drawn.depth == 4


def test_an_edge_that_skips_layers_is_one_lane_for_all_its_readers() -> None:
    boxes = [Box(name, 5, 5) for name in "abcd"]
    drawn = layout(boxes, [("a", "b"), ("b", "c"), ("c", "d"), ("a", "c"), ("a", "d")])
    steps = sorted((arc.layer, arc.reader) for arc in drawn.arcs if arc.source == "a")
    assert steps == [(0, ""), (0, "b"), (1, ""), (1, "c"), (2, "d")]


def test_neighbours_in_a_layer_never_overlap() -> None:
    rng = random.Random(0)
    boxes = [Box(str(index), rng.uniform(3, 20), rng.uniform(3, 60)) for index in range(80)]
    edges = [(str(rng.randrange(max(0, index - 6), index)), str(index)) for index in range(1, 80) for _ in range(2)]
    drawn = layout(boxes, edges)
    for layer in range(drawn.depth):
        row = sorted((box for box in boxes if drawn.layers[box.name] == layer), key=lambda box: drawn.x[box.name])
        for one, other in pairwise(row):
            assert drawn.x[one.name] + one.right <= drawn.x[other.name] - other.left + 1e-6


def test_crossings_that_can_be_avoided_are() -> None:
    boxes = [Box(name, 5, 5) for name in ("a", "b", "c", "d", "e", "f")]
    drawn = layout(boxes, [("a", "e"), ("b", "d"), ("c", "f"), ("a", "f"), ("c", "d")])
    arcs = [(drawn.x[arc.source], drawn.x[arc.reader]) for arc in drawn.arcs]
    assert sum((one[0] - two[0]) * (one[1] - two[1]) < 0 for one in arcs for two in arcs) == 0


def test_an_empty_graph_has_no_layers() -> None:
    assert layout([], []).depth == 0
