"""Components run in order, are valid models, send int8 where they can, and together equal the whole model."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taglio.components.cut import Component, cut
from taglio.components.prove import prove
from taglio.errors import MeasurementFailed
from taglio.model.graph import Graph
from taglio.quantize.precision import Assignment
from taglio.runtimes.onnxruntime import open_session
from tests.components.cases import Case, tiny
from tests.models import Sketch

Pattern = Callable[[Graph], dict[str, str]]


def at(*places: float) -> Pattern:
    """Devices d0, d1, … in a chain, cut at shares of the blocks."""

    def pattern(graph: Graph) -> dict[str, str]:
        count = len(graph.blocks)
        return {block.name: f"d{sum(i >= count * place for place in places)}" for i, block in enumerate(graph.blocks)}

    return pattern


def in_turn(graph: Graph) -> dict[str, str]:
    """Every block on another device than the one before: as many changes as can be."""
    return {block.name: f"d{(i * i) % 3}" for i, block in enumerate(graph.blocks)}


def in_order(case: Case, parts: list[Component], devices: Mapping[str, str]) -> None:
    """Every block once and on its device, each component a valid model that reads what is there by then."""
    assert sorted(name for part in parts for name in part.blocks) == sorted(block.name for block in case.graph.blocks)
    there = {spec.name for spec in case.model.inputs}
    for part in parts:
        onnx.checker.check_model(part.proto)
        assert {devices[name] for name in part.blocks} == {part.device}
        assert [value.name for value in part.proto.graph.input] == list(part.inputs)
        assert [value.name for value in part.proto.graph.output] == list(part.outputs)
        assert set(part.inputs) <= there, f"{part.name} reads what no earlier component made"
        assert part.outputs and not set(part.outputs) & there, f"{part.name} makes what another made, or nothing"
        there |= set(part.outputs)
        used = {name for node in part.proto.graph.node for name in node.input}
        assert {tensor.name for tensor in part.proto.graph.initializer} <= used, "weights that nobody reads travel too"
    assert set(case.model.outputs) <= there
    assert len({part.name for part in parts}) == len(parts)


def equal(case: Case, parts: list[Component], assignment: Assignment, folder: Path) -> None:
    """Components that together equal the whole model."""
    case.proven(parts, case.builder.build(assignment), folder)


def pieces(
    case: Case, assignment: Assignment, devices: Mapping[str, str], levels: Mapping[str, int] | None = None
) -> list[Component]:
    wires = case.wires(assignment, devices)
    parts = cut(case.model, case.graph, case.builder.build(assignment), devices, wires, levels)
    in_order(case, parts, devices)
    return parts


def test_components_are_proven_with_one_session_open_at_a_time(
    network: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they may need more memory than this machine has."""
    parts, alive, most = pieces(network, {}, in_turn(network.graph)), WeakSet[object](), list[int]()

    def opened(*arguments: object, **named: object) -> object:
        session = open_session(*arguments, **named)  # type: ignore[arg-type]
        alive.add(session)
        most.append(len(alive))
        return session

    monkeypatch.setattr("taglio.components.prove.open_session", opened)
    network.proven(parts, network.builder.build({}), tmp_path)
    assert len(most) > len(parts) > 2 and max(most) == 1


def test_an_output_may_be_a_sequence(tmp_path: Path) -> None:
    sketch = Sketch(5)
    stem = sketch.op("Relu", sketch.conv(sketch.input("x", 1, 3, 8, 8), 3, 4))
    head = sketch.conv(stem, 4, 4)
    sketch.nodes.append(helper.make_node("SequenceConstruct", [stem, head], ["s"], name="pack"))
    proto = sketch.model("s", head)
    proto.graph.output[0].CopyFrom(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    case = tiny(proto, tmp_path)
    parts = pieces(case, {}, at(0.5)(case.graph))
    assert len(parts) == 2
    assert case.proven(parts, case.builder.build({}), tmp_path).identical


def test_an_output_may_be_a_constant(tmp_path: Path) -> None:
    sketch = Sketch(6)
    stem = sketch.op("Relu", sketch.conv(sketch.input("x", 1, 3, 8, 8), 3, 4))
    case = tiny(sketch.model(sketch.constant([1.5, 2.5], "anchors"), sketch.conv(stem, 4, 4)), tmp_path)
    devices = at(0.5)(case.graph)
    parts = cut(case.model, case.graph, case.builder.build({}), devices, case.wires({}, devices))
    assert ["anchors" in part.outputs for part in parts] == [False, True]
    assert case.proven(parts, case.builder.build({}), tmp_path).identical


def test_levels_of_one_device_are_components_of_their_own(network: Case, tmp_path: Path) -> None:
    """What a component writes leaves before the next one runs; together they are still the whole."""
    chosen, blocks = network.every(2), network.graph.blocks
    devices = dict.fromkeys((block.name for block in blocks), "only")
    levels = {block.name: 1 for block in blocks[len(blocks) // 2 :]}
    parts = pieces(network, chosen, devices, levels)
    assert [part.device for part in parts] == ["only", "only"]
    assert {name for part in parts[1:] for name in part.blocks} == set(levels)
    equal(network, parts, chosen, tmp_path)


def scaled_weights(proto: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """A copy with every float matrix multiplied, as other kernels would round it, or as a fault would."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in copy.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            values = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
    return copy


def test_a_weight_that_is_wrong_by_a_millionth_is_no_rounding(network: Case, tmp_path: Path) -> None:
    """A last bit of a float block becomes a step of the int8 block behind it; without fusion a cut changes no bit."""
    chosen = network.every(2)
    parts = pieces(network, chosen, at(0.5)(network.graph))
    whole, samples = network.builder.build(chosen), network.held_out.samples
    assert any(len(t.dims) > 1 and t.data_type == onnx.TensorProto.FLOAT for t in parts[0].proto.graph.initializer)
    for factor in (1.0 + 1e-6, 1.1):
        wrong = [replace(part, proto=scaled_weights(part.proto, factor)) for part in parts]
        with pytest.raises(MeasurementFailed, match="differ from the whole model"):
            prove(tmp_path, network.written(wrong, tmp_path), whole, samples)


def test_a_model_that_magnifies_the_last_bit_is_proven_without_fusion(tmp_path: Path) -> None:
    """The whole adds inside the convolution, the components behind it; the sine of the sum times ten million has no
    digit in common."""
    sketch = Sketch(5)
    x = sketch.input("x", 1, 16, 16, 16)
    total = sketch.op("Add", sketch.conv(x, 16, 16), sketch.op("Relu", sketch.conv(x, 16, 16)))
    sine = sketch.op("Sin", sketch.op("Mul", total, sketch.constant(np.float32(1e7))))
    case = tiny(sketch.model(sketch.rename(sine, "y")), tmp_path)
    whole, samples = case.builder.build({}), case.held_out.samples[:2]
    parts = pieces(case, {}, in_turn(case.graph))
    proof = prove(tmp_path, case.written(parts, tmp_path), whole, samples)
    if proof.identical:
        pytest.skip("kernels of this processor do not add inside a convolution")
    assert 0.1 < proof.distance <= proof.tolerance
    wrong = [replace(parts[0], proto=scaled_weights(parts[0].proto, 1.1)), *parts[1:]]
    with pytest.raises(MeasurementFailed, match="differ from the whole model"):
        prove(tmp_path, case.written(wrong, tmp_path), whole, samples)
