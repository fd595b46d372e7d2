"""How much memory a session of a model takes, estimated before it is opened. Opens none, and counts no activations.

The factors are the peaks of sessions of 40 matrix products of 1,400 x 1,400 while they opened. ONNX Runtime packs the
weights of one operator after another. OpenVINO maps the file and packs copies; it first unpacks block-wise quantised
weights of a MatMul to float32.
"""

import onnx

from taglio import weights
from taglio.runtimes import openvino

_PACKED, _MAPPED_AND_PACKED, _UNPACKED = 1.1, 2.2, 2.3


def session_bytes(proto: onnx.ModelProto, place: str) -> float:
    """The most bytes that opening `proto` in `place` takes, beyond what this process holds."""
    stored = weights.size_bytes(proto)
    if place != openvino.NAME:
        return _PACKED * stored
    return _MAPPED_AND_PACKED * stored + _UNPACKED * sum(map(_float_bytes, proto.graph.node))


def _float_bytes(node: onnx.NodeProto) -> int:
    """Bytes of the weights of a MatMulNBits in float32; 0 for another operator."""
    if node.op_type != "MatMulNBits":
        return 0
    size = {attribute.name: attribute.i for attribute in node.attribute}
    return 4 * size["K"] * size["N"]
