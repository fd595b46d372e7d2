"""One block in float16 between float32 neighbours: inputs, weights and results are rounded to float16. Calibrates
nothing. Without a float16 kernel (the usual case on a CPU) ONNX Runtime computes in float32 between these roundings.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from taglio import weights
from taglio.errors import CannotQuantize
from taglio.model.graph import Block
from taglio.quantize.emitter import Emitter

_LARGEST = float(np.finfo(np.float16).max)


def emit_float16(
    emitter: Emitter,
    block: Block,
    reads: Mapping[str, str],
    nodes: dict[str, onnx.NodeProto],
    initializers: dict[str, onnx.TensorProto],
) -> None:
    """Append `block` in float16. `reads` maps each input to the name of the float tensor to read. Raises CannotQuantize
    for a weight beyond the range of float16."""
    inside: dict[str, str] = {}
    for name in block.operators:
        node = onnx.NodeProto()
        node.CopyFrom(nodes[name])
        for index, tensor in enumerate(node.input):
            if not tensor:
                continue
            if tensor not in inside:
                inside[tensor] = _read(emitter, block, tensor, reads, initializers)
            node.input[index] = inside[tensor]
        for index, tensor in enumerate(node.output):
            if tensor:
                inside[tensor] = node.output[index] = f"{tensor}/float16"
        emitter.nodes.append(node)
    for tensor in block.outputs:
        emitter.nodes.append(
            helper.make_node("Cast", [inside[tensor]], [tensor], name=f"{tensor}/to-float32", to=TensorProto.FLOAT)
        )


def _read(
    emitter: Emitter,
    block: Block,
    tensor: str,
    reads: Mapping[str, str],
    initializers: dict[str, onnx.TensorProto],
) -> str:
    constant = initializers.get(tensor)
    if constant is None:
        name = f"{tensor}/{block.name}/to-float16"
        emitter.nodes.append(helper.make_node("Cast", [reads[tensor]], [name], name=name, to=TensorProto.FLOAT16))
        return name
    if constant.data_type != TensorProto.FLOAT:
        return tensor
    values = weights.values(constant)
    largest = float(np.abs(values).max(initial=0.0))
    if largest > _LARGEST:
        raise CannotQuantize(
            f"block {block.name}: weight {tensor} reaches {largest:.3g}, float16 ends at 65504: leave it out"
        )
    return emitter.constant(f"{tensor}/float16", values.astype(np.float16))
