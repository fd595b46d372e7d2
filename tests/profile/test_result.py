"""What a profile says about a model that is divided into components."""

from dataclasses import replace

import pytest

from taglio.model.graph import Graph
from taglio.profile.result import Glue, Profile, in_components
from tests.plan.made_up import MICROSECOND, Sketch, profile_of


def saving() -> tuple[Graph, Profile]:
    """x → conv0 (20 µs, 10 in int8) → conv1 (6, 3) and join2 with x (8, 5); type changes save 50 µs each."""
    sketch = Sketch()
    before = sketch.conv(sketch.input("x"))
    sketch.conv(before)
    sketch.join(before, "x")
    graph = sketch.graph()
    times = {("conv0", "float32"): 20.0, ("conv0", "int8"): 10.0, ("conv1", "float32"): 6.0, ("conv1", "int8"): 3.0}
    times |= {("join2", "float32"): 8.0, ("join2", "int8"): 5.0}
    times |= {(name, "int8-anchor"): 100.0 for name in ("conv0", "conv1")}
    return graph, profile_of(graph, times, {tensor.name: (0.0, 0.0, -50.0, -50.0) for tensor in graph.tensors})


def glue_of(profile: Profile, flow: str) -> Glue:
    return profile.glue_map()[flow]


def test_a_change_of_type_saves_no_more_than_the_blocks_beside_it_take() -> None:
    graph, profile = saving()
    bounded = in_components(profile, graph)
    # An input comes from no block, an output goes to none. conv1 has two tensors, join2 three, conv0 two.
    assert glue_of(bounded, "x").quantize_s == 0.0
    assert glue_of(bounded, "x").dequantize_s == pytest.approx(-5 / 3 * MICROSECOND)
    behind = glue_of(bounded, "conv0.0")
    assert behind.quantize_s == behind.dequantize_s == pytest.approx(-1.5 * MICROSECOND)
    assert glue_of(bounded, "conv1.0").dequantize_s == 0.0
    assert glue_of(bounded, "conv1.0").quantize_s == pytest.approx(-1.5 * MICROSECOND)
    assert bounded.blocks == profile.blocks


def test_what_costs_time_or_saves_less_stays() -> None:
    graph, profile = saving()
    small_glue = tuple(replace(flow_glue, quantize_s=2e-6, dequantize_s=-1e-9) for flow_glue in profile.glue)
    small = replace(profile, glue=small_glue)
    for flow in ("x", "conv0.0"):
        bounded = glue_of(in_components(small, graph), flow)
        assert (bounded.quantize_s, bounded.dequantize_s) == (2e-6, -1e-9)
