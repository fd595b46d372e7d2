"""What subgraphs read of the graphs around them, and renaming it."""

import onnx
from onnx import TensorProto, helper

from taglio.model.captures import node_inputs, rename_inputs, separate


def body(*nodes: onnx.NodeProto, output: str, input_names: tuple[str, ...] = ()) -> onnx.GraphProto:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in input_names]
    return helper.make_graph(
        list(nodes), "body", inputs, [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    )


def nested() -> onnx.NodeProto:
    """An If whose branch holds an If; `x` is outside of both, `y` is the outer branch's own, `z` is outside again."""
    deep = body(helper.make_node("Add", ["x", "y"], ["deep"]), output="deep")
    other = body(helper.make_node("Identity", ["z"], ["flat"]), output="flat")
    inner = helper.make_node("If", ["inner_flag"], ["inner"], then_branch=deep, else_branch=other)
    outer = body(helper.make_node("Relu", ["x"], ["y"]), inner, output="inner")
    return helper.make_node("If", ["flag"], ["out"], then_branch=outer, else_branch=body(output="x"))


def test_reads_at_any_depth_are_seen_and_own_names_are_not() -> None:
    assert set(node_inputs(nested())) == {"flag", "inner_flag", "x", "z"}


def test_renaming_reaches_every_depth_but_not_what_a_body_defines() -> None:
    node = nested()
    rename_inputs(node, {"x": "x2", "y": "y2", "z": "z2", "flag": "flag2", "out": "out2"})
    assert set(node_inputs(node)) == {"flag2", "inner_flag", "x2", "z2"}
    outer, other = (
        next(attribute.g for attribute in node.attribute if attribute.name == name)
        for name in ("then_branch", "else_branch")
    )
    assert [list(inner.input) for inner in outer.node] == [["x2"], ["inner_flag"]]
    deep = next(attribute.g for attribute in outer.node[1].attribute if attribute.name == "then_branch")
    assert list(deep.node[0].input) == ["x2", "y"]
    assert other.output[0].name == "x2"
    assert list(node.output) == ["out"]


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
