"""Blocks have names that the source model's makers know, also where ONNX Runtime rewrites it."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taglio.model.load import load


def names(model: onnx.ModelProto) -> dict[str, str]:
    """The operators of the simplified model, by name."""
    return {node.name: node.op_type for node in load(model).proto.graph.node}


def graph_of(nodes: list[onnx.NodeProto], *weights: onnx.TensorProto, kind: int = TensorProto.FLOAT) -> onnx.GraphProto:
    source, wanted = (helper.make_tensor_value_info(name, kind, [1, 4]) for name in ("x", "y"))
    return helper.make_graph(nodes, "names", [source], [wanted], weights)


def model_of(graph: onnx.GraphProto, functions: tuple[onnx.FunctionProto, ...] = ()) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid("own", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def test_operators_of_a_function_are_named_after_what_it_writes() -> None:
    body = [helper.make_node("Exp", ["a"], ["e"], name="inner"), helper.make_node("Sigmoid", ["e"], ["b"])]
    function = helper.make_function("own", "Act", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("Act", ["x"], ["h"], name="act", domain="own"),
        helper.make_node("Relu", ["h"], ["y"], name="last"),
    ]
    assert names(model_of(graph_of(nodes), (function,))) == {"Exp:h": "Exp", "Sigmoid:h": "Sigmoid", "last": "Relu"}


def test_casts_that_onnx_runtime_inserts_are_named_after_their_tensor() -> None:
    scale = numpy_helper.from_array(np.full(4, 2.0, np.float16), "scale")
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"], name="mul"),
        helper.make_node("Erf", ["scaled"], ["y"], name="erf"),
    ]
    node_names = names(model_of(graph_of(nodes, scale, kind=TensorProto.FLOAT16)))
    assert {"mul", "erf"} <= set(node_names)
    assert not any("Inserted" in name for name in node_names)


def test_names_that_onnx_runtime_extends_stay_recognisable() -> None:
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    bias = numpy_helper.from_array(np.ones(4, np.float32), "b")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="fc"),
        helper.make_node("Add", ["product", "b"], ["y"], name="bias"),
    ]
    assert all(name.startswith(("fc", "bias")) for name in names(model_of(graph_of(nodes, weight, bias))))
