"""What a session is expected to take."""

import onnx
from onnx import TensorProto, helper

from taglio.runtimes.footprint import session_bytes
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.openvino import NAME as OPENVINO
from tests.models import Sketch


def test_openvino_unpacks_weights_that_are_quantised_by_blocks() -> None:
    """A model of 314 MB took 724 MB there with its weights in int4, and 693 MB in float."""
    g = Sketch()
    packed = onnx.TensorProto(name="w", data_type=TensorProto.UINT8, dims=[64, 2, 16], raw_data=bytes(2048))
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=64, N=64, bits=4)
    node.attribute.add(name="block_size", type=onnx.AttributeProto.INT, i=32)
    proto = g.model(g.input("x", 1, 64))
    proto.graph.node.append(node)
    proto.graph.initializer.append(packed)
    assert session_bytes(proto, OPENVINO) > 2.0 * 4 * 64 * 64 > session_bytes(proto, NAME)
