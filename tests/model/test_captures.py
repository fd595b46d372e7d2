"""What subgraphs read of the graphs around them, and renaming it."""

from taglio.model.captures import node_inputs, rename_inputs, separate
from tests.models import parsed


def test_a_loop_variable_hides_an_outer_tensor_of_its_name() -> None:
    text = """(int64 n, bool go, float[] x, float[] w) => (float[] y) {
        y = Loop <body = b (int64 i, bool go_in, float[] x) => (float[] x_out) { x_out = Add (x, w) }> (n, go, x)
    }"""
    (loop,) = parsed(text).graph.node
    assert node_inputs(loop) == ["n", "go", "x", "w"]
    rename_inputs(loop, {"x": "x2", "w": "w2"})
    assert list(loop.input) == ["n", "go", "x2"]
    assert list(loop.attribute[0].g.node[0].input) == ["x", "w2"]


def test_what_a_body_defines_under_a_name_of_the_outer_graph_gets_its_own() -> None:
    body = "() => (float[] made) { layout = Relu (x) made = Neg (layout) }"
    graph = parsed(
        f"""(float[] x, bool flag) => (float[] y) {{
            layout = Abs (x)
            [choice] y = If (flag) <then_branch = one {body}, else_branch = other {body}>
        }}"""
    ).graph
    assert separate(graph)
    for index, own_body in enumerate(attribute.g for attribute in graph.node[1].attribute):
        name = f"layout/in/choice/{index}"
        assert (list(own_body.node[0].output), list(own_body.node[1].input)) == ([name], [name])
        assert own_body.output[0].name == "made"
    assert graph.node[0].output[0] == "layout"
    assert not separate(graph)
