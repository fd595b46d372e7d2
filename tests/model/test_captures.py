"""What subgraphs read of the graphs around them, and renaming it."""

import onnx
from onnx import TensorProto, helper

from taglio.model.captures import node_inputs, rename_inputs, separate


def body(*nodes: onnx.NodeProto, output: str, input_names: tuple[str, ...] = ()) -> onnx.GraphProto:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in input_names]
    return helper.make_graph(
        list(nodes), "body", inputs, [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    )


def test_a_loop_variable_hides_an_outer_tensor_of_its_name() -> None:
    loop = helper.make_node("Loop", ["n", "go", "x"], ["y"])
    inner = body(helper.make_node("Add", ["x", "w"], ["x_out"]), output="x_out", input_names=("i", "go_in", "x"))
    loop.attribute.append(helper.make_attribute("body", inner))
    assert node_inputs(loop) == ["n", "go", "x", "w"]
    rename_inputs(loop, {"x": "x2", "w": "w2"})
    assert list(loop.input) == ["n", "go", "x2"]
    assert list(loop.attribute[0].g.node[0].input) == ["x", "w2"]


def test_what_a_body_defines_under_a_name_of_the_outer_graph_gets_its_own() -> None:
    branch = body(
        helper.make_node("Relu", ["x"], ["layout"]), helper.make_node("Neg", ["layout"], ["made"]), output="made"
    )
    node = helper.make_node("If", ["flag"], ["y"], name="choice", then_branch=branch, else_branch=branch)
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["layout"]), node], "g", [], [value])
    assert separate(graph)
    for index, own_body in enumerate(attribute.g for attribute in graph.node[1].attribute):
        name = f"layout/in/choice/{index}"
        assert (list(own_body.node[0].output), list(own_body.node[1].input)) == ([name], [name])
        assert own_body.output[0].name == "made"
    assert graph.node[0].output[0] == "layout"
    assert not separate(graph)
