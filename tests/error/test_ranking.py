"""Outputs whose rows TopK chooses, and outputs that only use what it chose."""

import numpy as np

from taglio.error.ranking import ranked_outputs
from tests.models import Sketch


def test_rows_that_are_gathered_by_rank_are_found_behind_movement() -> None:
    g = Sketch()
    boxes, scores = g.input("boxes", 1, 20, 4), g.input("scores", 1, 20)
    values = g.op("TopK", scores, g.constant(np.array([5])), outputs=2)
    places = g.op("Unsqueeze", f"{values}1", g.constant(np.array([2])))
    index = g.op("Tile", places, g.constant(np.array([1, 1, 4])))
    rows = g.op("GatherElements", boxes, index, axis=1)
    chosen = g.op("Concat", g.op("Sigmoid", rows), g.op("Unsqueeze", values, g.constant(np.array([2]))), axis=2)
    total = g.op("ReduceSum", rows)
    assert ranked_outputs(g.model(chosen, total, values).graph) == [chosen]


def test_places_that_no_score_decides_are_no_ranks() -> None:
    g = Sketch()
    rows = g.op("Gather", g.input("x", 1, 20, 4), g.constant(np.array([3, 1])), axis=1)
    assert ranked_outputs(g.model(rows).graph) == []
