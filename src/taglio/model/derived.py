"""Models made from another: with more outputs, or empty. Changes no model in place."""

from collections.abc import Iterable
from copy import deepcopy

import onnx


def with_outputs(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy of `proto` with the tensors `names` among its outputs."""
    result = deepcopy(proto)
    have = {value.name for value in proto.graph.output}
    result.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
    return result


def empty_like(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A model with the opsets, functions and descriptions of `proto` and an empty graph called `name`."""
    result = onnx.ModelProto(
        ir_version=proto.ir_version,
        producer_name="taglio",
        domain=proto.domain,
        model_version=proto.model_version,
        doc_string=proto.doc_string,
        metadata_props=proto.metadata_props,
    )
    result.opset_import.extend(proto.opset_import)
    result.functions.extend(proto.functions)
    result.graph.name = name
    return result
