"""Without negative costs a profile predicts the same where a flow has one free end, and never less elsewhere."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from taglio.plan.nonnegative import nonnegative
from taglio.plan.result import Limits
from tests.plan import made_up
from tests.plan.made_up import FLOAT, INT8, Sketch, assignments, profile_of, seconds


@settings(max_examples=100, deadline=None)
@given(made_up.problems(largest=5))
def test_nothing_is_negative_and_nothing_is_predicted_faster(problem: made_up.Problem) -> None:
    steady = nonnegative(problem.profile, problem.graph)
    assert all(entry.seconds >= 0.0 for entry in steady.blocks)
    assert all(min(each.quantize_s, each.dequantize_s, each.anchor_quantize_s or 0.0) >= 0.0 for each in steady.glue)
    for chosen in assignments(problem.graph, Limits(None)):
        before, after = (seconds(problem.graph, each, chosen) for each in (problem.profile, steady))
        assert after >= before - 1e-12
    if all(
        min(each.quantize_s, each.dequantize_s, each.anchor_quantize_s or 0.0) >= 0.0 for each in problem.profile.glue
    ):
        assert steady == problem.profile


def test_what_a_float_writer_spares_for_its_only_reader_is_kept() -> None:
    """A Softmax of 50 µs takes 10 when its reader is int8."""
    sketch = Sketch()
    (middle,) = sketch.refused(sketch.input("x"))
    graph = sketch.graph(sketch.conv(middle))
    softmax, conv = (block.name for block in graph.blocks)
    times = {(softmax, "float32"): 50.0, (conv, "float32"): 20.0, (conv, "int8"): 5.0}
    glue = {tensor.name: (1.0, 1.0, 2.0, 3.0) for tensor in graph.tensors} | {middle: (1.0, 1.0, -40.0, 3.0)}
    profile = profile_of(graph, times, glue)
    steady = nonnegative(profile, graph)
    for form in (FLOAT, INT8):
        chosen = {} if form is FLOAT else {conv: form}
        assert seconds(graph, steady, chosen) == pytest.approx(seconds(graph, profile, chosen))
    assert steady.block_times()[softmax, "float32"] == pytest.approx(10e-6)


def test_what_an_int8_writer_spares_for_readers_in_float_is_kept() -> None:
    sketch = Sketch()
    middle = sketch.conv(sketch.input("x"))
    graph = sketch.graph(*sketch.refused(middle))
    conv, softmax = (block.name for block in graph.blocks)
    times = {(softmax, "float32"): 50.0, (conv, "float32"): 20.0, (conv, "int8"): 15.0}
    glue = {tensor.name: (1.0, 1.0, 2.0, 3.0) for tensor in graph.tensors} | {middle: (1.0, 1.0, 2.0, -8.0)}
    profile = profile_of(graph, times, glue)
    steady = nonnegative(profile, graph)
    assert seconds(graph, steady, {conv: INT8}) == pytest.approx(seconds(graph, profile, {conv: INT8}))
    assert steady.block_times()[conv, "int8"] == pytest.approx(7e-6)


def test_a_session_never_costs_less_than_nothing() -> None:
    """Where the kernels explain more than a run, the float model is predicted as before, and no component below 0."""
    sketch = Sketch()
    graph = sketch.graph(sketch.conv(sketch.conv(sketch.input("x"))))
    first, second = (block.name for block in graph.blocks)
    times = {(first, "float32"): 50.0, (second, "float32"): 30.0, (first, "int8"): 20.0, (second, "int8"): 10.0}
    profile = profile_of(graph, times, {tensor.name: (0.0, 0.0, 2.0, 3.0) for tensor in graph.tensors})
    profile = replace(profile, overhead_s=-8e-6)
    steady = nonnegative(profile, graph)
    assert steady.overhead_s == 0.0
    assert seconds(graph, steady, {}) == pytest.approx(seconds(graph, profile, {}))
    assert steady.block_times()[first, "int8"] == pytest.approx(18e-6)
    for chosen in assignments(graph, Limits(None)):
        assert seconds(graph, steady, chosen) >= seconds(graph, profile, chosen) - 1e-12
