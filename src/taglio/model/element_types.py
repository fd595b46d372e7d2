"""The element types of a model's tensors, as far as its file or ONNX's inference knows them. Runs nothing."""

import contextlib

import onnx
from onnx import shape_inference

from taglio.model.captures import graphs


def element_types(proto: onnx.ModelProto) -> dict[str, int]:
    """Type (of TensorProto) by the tensor's name, also in subgraphs."""
    inferred = proto
    with contextlib.suppress(Exception):  # bare RuntimeErrors from C++
        inferred = shape_inference.infer_shapes(proto)
    type_of = {}
    for graph in graphs(inferred.graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            type_of[value.name] = value.type.tensor_type.elem_type
    return type_of
