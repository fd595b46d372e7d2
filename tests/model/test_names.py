"""Blocks have names that the source model's makers know, also where ONNX Runtime rewrites it."""

import numpy as np
import onnx

from taglio.model.load import load
from tests.models import parsed


def names(model: onnx.ModelProto) -> dict[str, str]:
    """The operators of the simplified model, by name."""
    return {node.name: node.op_type for node in load(model).proto.graph.node}


def test_operators_of_a_function_are_named_after_what_it_writes() -> None:
    call = "(float[1, 4] x) => (float[1, 4] y) { [act] h = own.Act (x) [last] y = Relu (h) }"
    body = '<domain: "own", opset_import: ["": 17]> Act (a) => (b) { [inner] e = Exp (a) b = Sigmoid (e) }'
    proto = parsed(call + body, imports='"": 17, "own": 1')
    assert names(proto) == {"Exp:h": "Exp", "Sigmoid:h": "Sigmoid", "last": "Relu"}


def test_casts_that_onnx_runtime_inserts_are_named_after_their_tensor() -> None:
    text = "(float16[1, 4] x) => (float16[1, 4] y) { [mul] scaled = Mul (x, scale) [erf] y = Erf (scaled) }"
    node_names = names(parsed(text, {"scale": np.full(4, 2.0, np.float16)}))
    assert {"mul", "erf"} <= set(node_names)
    assert not any("Inserted" in name for name in node_names)


def test_names_that_onnx_runtime_extends_stay_recognisable() -> None:
    text = "(float[1, 4] x) => (float[1, 4] y) { [fc] product = MatMul (x, w) [bias] y = Add (product, b) }"
    assert all(name.startswith(("fc", "bias")) for name in names(parsed(text, {"w": np.eye(4), "b": np.ones(4)})))
