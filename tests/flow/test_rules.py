"""Rules exclude as few blocks as the limit requires."""

from dataclasses import replace

import pytest

from taglio.error.model import Alone, ErrorModel
from taglio.flow.rules import damage_first, exclude
from taglio.model.graph import Graph
from taglio.plan.result import Limits
from tests.flow.made_up import Hidden, chain
from tests.plan.made_up import INT8, choosers


def lone(error: ErrorModel, graph: Graph) -> ErrorModel:
    """With every block's error measured alone."""
    alone = tuple(Alone(b.name, "int8", error.predict(graph, {b.name: INT8})) for b in choosers(graph))
    return replace(error, alone=alone)


@pytest.mark.parametrize("bound", [0.0, 0.005, 0.02, 0.03, 1.0])
@pytest.mark.parametrize("pinned", [(), ("conv0", "conv5")])
def test_excluding_the_worst_leaves_out_as_few_blocks_as_the_bound_needs(bound: float, pinned: tuple[str, ...]) -> None:
    graph, _, error = chain(upper_log=0.0)
    error = lone(error, graph)
    measure = Hidden(graph, error, 1.0)
    everything = {block.name: INT8 for block in choosers(graph)}
    order = damage_first(error, everything)
    found = exclude(order, Limits(bound, int8_blocks=pinned), everything, measure)

    # One after another, the worst first:
    worst = sorted(error.alone, key=lambda each: -each.error)
    assert order == [each.block for each in worst]
    chosen = dict(everything)
    for name in (each.block for each in worst if each.block not in pinned):
        if measure.truth(chosen) <= bound:
            break
        del chosen[name]
    assert found == chosen
    assert set(pinned) <= set(found)
    assert len(measure.asked) <= (len(everything) - len(pinned)).bit_length()
