"""Read a model for OpenVINO, with HardSwish as one operator again, which OpenVINO does not fuse by itself.

ONNX Runtime, which simplifies models, splits HardSwish into x · HardSigmoid(x). OpenVINO has a fast kernel for
HardSwish and a slow one for HardSigmoid: a network of them took 3.4 instead of 1.0 ms in bfloat16. A delivered model
for OpenVINO is in OpenVINO's format, with HardSwish in it.
"""

import importlib
from typing import Any

import numpy as np

# HardSwish's HardSigmoid: max(0, min(1, alpha · x + beta)).
_ALPHA, _BETA = 1.0 / 6.0, 0.5


def read_fused(core: Any, path: str) -> Any:
    """The openvino.Model of the file at `path`, read by an openvino.Core."""
    model = core.read_model(path)
    for node in model.get_ordered_ops():
        gated = _gated(node)
        if gated is not None:
            replace_by(node, importlib.import_module("openvino.opset4").hswish(gated))
    return model


def replace_by(node: Any, by: Any) -> None:
    """Put the openvino.Node `by` in place of `node`, with its names."""
    by.set_friendly_name(node.get_friendly_name())
    by.output(0).set_names(node.output(0).get_names())
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(by.output(0))


def _gated(node: Any) -> Any | None:
    """The x of a node that computes x · HardSigmoid(x) as HardSwish does; None for any other node."""
    if node.get_type_name() != "Multiply":
        return None
    for gate, value in (node.input_values(), node.input_values()[::-1]):
        hard = gate.get_node()
        if hard.get_type_name() != "HardSigmoid" or hard.input_value(0) != value:
            continue
        slopes = [source.get_node() for source in hard.input_values()[1:]]
        if all(slope.get_type_name() == "Constant" for slope in slopes) and np.allclose(
            [float(slope.data) for slope in slopes], (_ALPHA, _BETA), atol=1e-6
        ):
            return value
    return None
