"""Seconds of OpenVINO's compiled parts find the nodes that they were made of."""

import onnx
import pytest

from taglio.errors import MeasurementFailed
from taglio.profile.openvino_clock import join
from taglio.runtimes.openvino_parts import CompiledPart
from tests.models import parsed


def graph() -> onnx.ModelProto:
    return parsed("""(x, s, z, w) => (out) {
        [x_q] x_q = QuantizeLinear (x, s, z)
        [x_q_to_dq] x_q_to_dq = DequantizeLinear (x_q, s, z)
        [conv] c = Conv (x_q_to_dq, w)
        [relu] y = Relu (c)
        [soft] out = Softmax (y)
    }""")


def test_a_fused_part_is_its_convs() -> None:
    parts = [
        CompiledPart("relu", "Convolution", ("x_q_to_dq", "conv", "relu"), "x"),
        CompiledPart("out", "Softmax", ("out",), "relu"),
    ]
    assert join(graph(), parts, {"relu": 2.0, "out": 1.0}) == {"conv": 2.0, "soft": 1.0}


def test_what_was_put_in_stands_behind_what_it_reads() -> None:
    model = graph()
    parts = [
        CompiledPart("conv", "Convolution", ("conv",), "x"),
        CompiledPart("r1", "Reorder", (), "conv"),
        CompiledPart("r2", "Reorder", (), "r1"),
        CompiledPart("start", "Reorder", (), "x"),
    ]
    seconds_of = join(model, parts, {"conv": 2.0, "r1": 0.25, "r2": 0.125, "start": 1.0})
    assert seconds_of == {"conv": 2.0, "r1/put in": 0.25, "r2/put in": 0.125}
    added = [node for node in model.graph.node if node.name.endswith("/put in")]
    assert [(node.op_type, list(node.input)) for node in added] == [("ReorderOutput", ["c"])] * 2


def test_a_product_with_a_bias_is_its_matmuls_whatever_it_is_called() -> None:
    model = parsed("""(x, w, b, s, z) => (act_q) {
        ["dense/MatMul"] product = MatMul (x, w)
        ["dense/Add"] sum = Add (product, b)
        [act] act = Gelu (sum)
        [act_q] act_q = QuantizeLinear (act, s, z)
    }""")
    for originals in (("dense/Add", "act"), ("dense/MatMul/DequantizationMultiply", "act_q"), ("act_q",)):
        fused = CompiledPart("dense/Add", "FullyConnected", originals, "x")
        assert join(model, [fused], {"dense/Add": 2.0}) == {"dense/MatMul": 2.0}
    assert join(model, [CompiledPart("act", "Eltwise", ("act",), "x")], {"act": 1.0}) == {"act": 1.0}


def test_a_graph_of_other_names_is_refused() -> None:
    with pytest.raises(MeasurementFailed, match="names none of the model's operators"):
        join(graph(), [CompiledPart("a", "Convolution", ("a",), "")], {"a": 1.0})
