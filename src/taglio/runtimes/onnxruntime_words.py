"""Words for ONNX Runtime's refusals: messages without source files and checks, and what to do about a model that it
does not load. Pure functions."""

import contextlib
import re

import onnx
from onnx import TensorProto, shape_inference

_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_NODE = re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message: ")
# A source file with the name or signature of the function that refused, and its condition if it was a check.
_CHECK = re.compile(r"\S+\.(?:cc|cpp|cu|h|hpp):\d+ (?:.*? was false\.|[^()]*\([^()]*\)(?: const)?|[\w:~]+) ?")
# ONNX Runtime's kernels begin at this opset: see docs/Versioning.md in its repository.
_OLDEST_OPSET = 7
_NO_KERNEL = re.compile(r"NOT_IMPLEMENTED : Could not find an implementation for (\w+)\(")
_TOO_NEW = re.compile(r"Unsupported model IR version|is under development and support for this is limited")
_NO_TYPE = re.compile(r"Type 'tensor\((?:float16|double|bfloat16)\)' of \w+ parameter .* is invalid")
_OTHER_FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})


def without_sources(error: object) -> str:
    """The message on one line, without source files, signatures and checks."""
    text = _NODE.sub(r"\1 \2: ", _CODE.sub("", " ".join(str(error).split())))
    return _CHECK.sub("", text)


def advice(error: object, proto: onnx.ModelProto) -> str:
    """Why ONNX Runtime does not load `proto`, where `error` and the model show it, and what to do: the end of a line.
    "" if they do not show it."""
    opset = max((imported.version for imported in proto.opset_import if imported.domain in ("", "ai.onnx")), default=0)
    if 0 < opset < _OLDEST_OPSET:
        return (
            f": the model's opset {opset} is too old, ONNX Runtime supports {_OLDEST_OPSET} and newer: export it again "
            "with opset 13 or newer"
        )
    if _TOO_NEW.search(str(error)):
        return ": the file is newer than this ONNX Runtime: export it with an older opset and IR version, or update it"
    if _NO_TYPE.search(str(error)):
        return ": export it in float32"
    if missing := _NO_KERNEL.search(str(error)):
        types = _types_around(proto, missing[1])
        names = " and ".join(sorted(TensorProto.DataType.Name(data_type).lower() for data_type in types))
        fix = ": export it in float32" if types & _OTHER_FLOATS else ""
        return f": it has no kernel for {missing[1]} of {names}{fix}" if types else ""
    return ""


def _types_around(proto: onnx.ModelProto, kind: str) -> set[int]:
    """The element types that operators of type `kind` read or write, as far as they can be inferred; those of the
    model that are floats but not float32 if its graph has no such operator."""
    with contextlib.suppress(Exception):  # bare RuntimeErrors from C++; what the file declares remains
        proto = shape_inference.infer_shapes(proto)
    graph = proto.graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    names = {name for node in graph.node if node.op_type == kind for name in (*node.input, *node.output)}
    if not names:  # ONNX Runtime wrote the operator in place of a function or a composed operator
        return {data_type for data_type in types.values() if data_type in _OTHER_FLOATS}
    return {types[name] for name in names if types.get(name)}
