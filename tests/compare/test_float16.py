"""Float16: the chosen blocks are converted, nothing else is, and what cannot be is named."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from taglio.compare.float16 import float16, most_in_float16
from taglio.model import graph as graphs
from taglio.model.graph import Graph
from taglio.model.load import Model
from tests.answers import answers, distance
from tests.models import (
    TINY,
    Sketch,
    feeds,
    loaded,
)


def case(proto: onnx.ModelProto, folder: Path) -> tuple[Model, Graph]:
    model = loaded(proto, folder)
    return model, graphs.build(model)


def run(proto: onnx.ModelProto, model: Model) -> list[np.ndarray]:
    return answers(proto, feeds(model, 1).samples[0])


@pytest.mark.parametrize("name", TINY)
def test_float16_of_any_block_is_close_and_of_float16(name: str, tmp_path: Path) -> None:
    model, graph = case(TINY[name](), tmp_path)
    reference, before = run(model.proto, model), model.proto.SerializeToString(deterministic=True)
    for blocks in [[block.name] for block in graph.blocks] + [[block.name for block in graph.blocks]]:
        converted = float16(model, graph, blocks)
        assert distance(reference, run(converted, model)) < 2e-3
        halves = {t.name for t in converted.graph.initializer if t.data_type == TensorProto.FLOAT16}
        asked = {operator for block in blocks for operator in graph.block(block).operators}
        floats = {t.name for t in model.proto.graph.initializer if t.data_type == TensorProto.FLOAT}
        for node in converted.graph.node:
            for weight in node.input:
                if weight.split("/")[0] in floats and not (node.op_type == "Resize" and weight == node.input[2]):
                    assert (weight in halves) == (node.name in asked), node.name
        for value in (*converted.graph.input, *converted.graph.output):
            assert value.type.tensor_type.elem_type == TensorProto.FLOAT
        assert [value.name for value in converted.graph.output] == list(model.outputs)
        onnx.checker.check_model(converted)
    assert model.proto.SerializeToString(deterministic=True) == before


def test_what_bodies_read_from_outside_stays_float32(tmp_path: Path) -> None:
    g = Sketch(81)
    image = g.input("x", 1, 4, 6, 6)
    x = g.conv(image, 4, 4)
    flag = g.op("Greater", g.op("ReduceSum", x, keepdims=0), g.constant(0.0))
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, None)
    inner = helper.make_graph([helper.make_node("Mul", [x, g.weight(1, 4, 1, 1)], ["result"])], "inner", [], [result])
    nodes = [helper.make_node("If", [flag], ["chosen"], then_branch=inner, else_branch=inner)]
    nodes.append(helper.make_node("Add", ["chosen", image], ["result"]))
    outer = helper.make_graph(nodes, "outer", [], [result])
    chosen = g.op("If", flag, then_branch=outer, else_branch=outer)
    model, graph = case(g.model(g.conv(chosen, 4, 2), x), tmp_path)
    before = run(model.proto, model)
    for name in ("conv0", "reducesum1", "conv4"):
        assert distance(before, run(float16(model, graph, [name]), model)) < 2e-3
    made = most_in_float16(model, graph, [block.name for block in graph.blocks], {})
    assert distance(before, run(made.proto, model)) < 2e-3
    assert {"conv0", "reducesum1", "greater2", "conv4"} == {*made.blocks}
    assert made.left == ("1 of 5 blocks left in float32: no operator of if3 has a float16 form",)


def test_float16_keeps_outputs_that_are_inputs_or_constants(tmp_path: Path) -> None:
    g = Sketch(71)
    grid = g.constant(np.arange(4.0).reshape(1, 4, 1, 1), "grid")
    x = g.op("Mul", g.conv(g.input("x", 1, 4, 6, 6), 4, 4), grid)
    model, graph = case(g.model("x", g.conv(x, 4, 2), grid), tmp_path)
    converted = float16(model, graph, [block.name for block in graph.blocks])
    assert [value.name for value in converted.graph.output] == [*model.outputs]
    before, after = run(model.proto, model), run(converted, model)
    for index in (0, 2):
        np.testing.assert_array_equal(before[index], after[index])
    assert 0 < distance(before, after) < 2e-3
