"""Bias correction (Nagel et al., ICCV 2019): subtract from the bias what int8 adds to the mean of each output channel.

1. A Conv, ConvTranspose or Gemm without a bias gets one, which its int8 kernel adds at no cost.
2. For a MatMul the constant in the Add of its block is corrected; a MatMul without an Add stays as it is.
3. A Gemm with `alpha` or `beta` other than 1 stays as it is.

The mean is over the calibration samples. Each operator is measured alone, with float inputs, so the correction does not
depend on which other blocks are in int8.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from taglio.errors import BadData, BadModel, CannotQuantize
from taglio.model.derived import with_operators
from taglio.model.graph import Block
from taglio.model.load import Model
from taglio.model.operators import scales
from taglio.progress import Progress, reported
from taglio.quantize.emitter import Emitter
from taglio.quantize.precision import precisions
from taglio.quantize.qdq import QdqBuilder, channel_axis
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session, run_session

_APART = "apart/"
_AXES_ARE_INPUTS = 18  # ReduceMean takes its axes as an input from this opset on


def shifts(
    builder: QdqBuilder, scheme: Scheme, samples: Sequence[Mapping[str, np.ndarray]], progress: Progress | None = None
) -> dict[str, tuple[float, ...]]:
    """Operator -> the correction of its bias under `scheme`, per output channel.

    Empty if ONNX Runtime cannot run all int8 operators beside the float model.
    """
    model, emitter, wanted = builder.model, Emitter(), dict[str, str]()
    weights = model.initializers()
    for block in builder.graph.candidates():
        anchor = _corrected(model, block, weights)
        if anchor is None:
            continue
        try:
            nodes = _anchor_alone(builder, block, scheme, emitter.initializers)
        except CannotQuantize:
            continue
        emitter.nodes += nodes
        emitter.nodes += _mean_difference(emitter, model.opset, anchor, weights[anchor.input[1]])
        wanted[anchor.name] = f"{_APART}{anchor.name}/mean"
    if not wanted:
        return {}
    proto = with_operators(model.proto, emitter.nodes, wanted.values())
    proto.graph.initializer.extend(emitter.initializers.values())
    total: list[np.ndarray] = [np.zeros(())] * len(wanted)
    try:
        session = open_session(proto, SessionOptions(0, Optimization.NONE, lean=True), label=model.name)
        for feed in reported(samples, "bias correction", progress):
            means = run_session(session, list(wanted.values()), feed, "the calibration data")
            total = [one + np.asarray(other, np.float64) for one, other in zip(total, means, strict=True)]
    except (BadModel, BadData):
        return {}
    return {
        name: tuple(float(each) for each in np.atleast_1d(summed / len(samples)))
        for name, summed in zip(wanted, total, strict=True)
        if np.isfinite(summed).all()
    }


def _corrected(model: Model, block: Block, weights: Mapping[str, onnx.TensorProto]) -> onnx.NodeProto | None:
    """The operator of `block` to correct by the rules above; None if there is none."""
    nodes = model.nodes()
    anchor = nodes[block.operators[0]]
    if len(anchor.input) < 2 or anchor.input[1] not in weights:
        return None
    match anchor.op_type:
        case "Conv" | "ConvTranspose":
            return anchor
        case "Gemm":
            return None if scales(anchor) else anchor
        case "MatMul":
            added = len(block.operators) > 1 and nodes[block.operators[1]].op_type == "Add"
            return anchor if added and len(weights[anchor.input[1]].dims) == 2 else None
    return None


def _anchor_alone(
    builder: QdqBuilder, block: Block, scheme: Scheme, constants: dict[str, onnx.TensorProto]
) -> list[onnx.NodeProto]:
    """The first operator of `block` in int8, reading float inputs, with all its nodes and tensors renamed; its
    constants are added to `constants`."""
    emitter = Emitter()
    builder.emit(emitter, block, precisions(scheme)[1])
    last = next(index for index, node in enumerate(emitter.nodes) if node.name == block.operators[0])
    nodes = emitter.nodes[: last + 1]
    own = {name for node in nodes for name in node.output} | emitter.initializers.keys()
    rename = {name: f"{_APART}{block.name}/{name}" for name in own}
    for node in nodes:
        node.name = f"{_APART}{block.name}/{node.name}"
        node.input[:] = [rename.get(name, name) for name in node.input]
        node.output[:] = [rename[name] for name in node.output]
    for name, tensor in emitter.initializers.items():
        tensor.name = rename[name]
        constants[tensor.name] = tensor
    nodes[-1].output[0] = f"{_APART}{block.operators[0]}"
    return nodes


def _mean_difference(
    emitter: Emitter, opset: int, anchor: onnx.NodeProto, weight: onnx.TensorProto
) -> list[onnx.NodeProto]:
    """Nodes for the mean of float minus int8 per output channel: axis 1 of a convolution, the last of a product."""
    out, difference = f"{_APART}{anchor.name}", f"{_APART}{anchor.name}/difference"
    nodes = [helper.make_node("Sub", [anchor.output[0], out], [difference], name=difference)]
    axes = [axis for axis in range(len(weight.dims)) if axis != 1]
    if anchor.op_type in ("Gemm", "MatMul"):  # one row per product, whatever the rank
        shape = emitter.constant(f"{difference}/shape", np.array([-1, weight.dims[channel_axis(anchor, weight) or 0]]))
        rows = f"{difference}/rows"
        nodes.append(helper.make_node("Reshape", [difference, shape], [rows], name=rows))
        difference = rows
    name = f"{out}/mean"
    if opset < _AXES_ARE_INPUTS:
        nodes.append(helper.make_node("ReduceMean", [difference], [name], name=name, axes=axes, keepdims=0))
    else:
        given = emitter.constant(f"{name}/axes", np.array(axes, np.int64))
        nodes.append(helper.make_node("ReduceMean", [difference, given], [name], name=name, keepdims=0))
    return nodes
