"""What a session takes is about what was expected of it."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from taglio import weights
from taglio.memory import give_back, used_bytes
from taglio.runtimes.footprint import session_bytes
from taglio.runtimes.onnxruntime import NAME, SessionOptions
from taglio.runtimes.openvino import NAME as OPENVINO
from taglio.runtimes.session import opener
from tests.models import Sketch

# What other parts of this process take meanwhile.
_SLACK_BYTES = 40e6


def products(size: int = 1024, count: int = 8) -> onnx.ModelProto:
    g = Sketch(3)
    x = g.input("x", 1, size)
    for _ in range(count):
        x = g.op("Relu", g.op("MatMul", x, g.weight(size, size)))
    return g.model(x)


@pytest.mark.parametrize("place", [NAME, OPENVINO])
@pytest.mark.whole
def test_a_session_takes_no_more_than_was_expected(place: str, tmp_path: Path) -> None:
    if place != NAME:
        pytest.importorskip("openvino")
    weights.write(tmp_path / "small.onnx", products(8, 1))  # the package itself takes some 60 MB when first used
    opener(place)(tmp_path / "small.onnx", SessionOptions(1, runtime=place))
    proto = products()
    weights.write(tmp_path / "model.onnx", proto)
    expected = session_bytes(proto, place)
    del proto
    give_back()
    before = used_bytes()
    session = opener(place)(tmp_path / "model.onnx", SessionOptions(1, runtime=place))
    grown_bytes = used_bytes() - before
    del session
    assert grown_bytes <= expected + _SLACK_BYTES


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
