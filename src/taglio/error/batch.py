"""Make the batch of a model with batch 1 dynamic, if its operators allow. Runs nothing.

The first dimension of every input and output becomes dynamic, and a Reshape to a constant shape that begins with 1
keeps the first dimension of its input instead. The caller must check that the answers stay the same: with a Transpose
of the first axis, for instance, they do not.
"""

from collections.abc import Collection, Iterator

import onnx
from onnx import numpy_helper

from taglio import weights


def with_free_batch(model: onnx.ModelProto, fixed: Collection[str] = ()) -> onnx.ModelProto:
    """A copy of `model` whose inputs (except those named in `fixed`) and outputs have a dynamic first dimension."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.value_info[:]
    for value in (*result.graph.input, *result.graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.name not in fixed and len(dims):
            dims[0].Clear()
            dims[0].dim_param = "batch"
    constants = {tensor.name: tensor for graph in _graphs(result.graph) for tensor in graph.initializer}
    for graph in _graphs(result.graph):
        for node in graph.node:
            if node.op_type == "Reshape" and node.input[1] in constants:
                _keep_first(constants[node.input[1]])
    return result


def _keep_first(shape: onnx.TensorProto) -> None:
    sizes = weights.values(shape).copy()
    if sizes.size > 1 and sizes[0] == 1:
        sizes[0] = 0
        shape.CopyFrom(numpy_helper.from_array(sizes, shape.name))


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)
