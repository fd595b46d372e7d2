"""The element types of a model's tensors, as far as its file or ONNX's inference knows them. Runs nothing."""

import onnx

from taglio.model.captures import graphs
from taglio.model.derived import inferred


def element_types(proto: onnx.ModelProto) -> dict[str, int]:
    """Type (of TensorProto) by the tensor's name, also in subgraphs."""
    type_of = {}
    for graph in graphs(inferred(proto).graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            type_of[value.name] = value.type.tensor_type.elem_type
    return type_of
