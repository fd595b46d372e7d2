"""An ONNX file, with its external weights, as it stands on the disk. Does not judge what the graph computes."""

import hashlib
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper

from taglio.errors import BadModel, one_line

MODEL_FILE_LIMIT_BYTES = 2 * 1024**3
_OTHER_KINDS = {".h5": "Keras", ".keras": "Keras", ".tflite": "TFLite", ".pt": "PyTorch", ".pt2": "PyTorch"}


def read(path: Path) -> tuple[onnx.ModelProto, "hashlib._Hash", int]:
    """The model, a hash of all its bytes and their number. Raises BadModel for what is not a whole ONNX file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise BadModel(f"{path}: no such file: give the path of an .onnx file") from None
    except IsADirectoryError:
        raise BadModel(f"{path}: is a folder: give the path of an .onnx file") from None
    except OSError as error:
        raise BadModel(f"{path}: cannot be read ({error.strerror}): give the path of an .onnx file") from None
    if not data:
        raise BadModel(f"{path}: is empty (0 bytes): export the model again")
    if len(data) >= MODEL_FILE_LIMIT_BYTES:
        raise BadModel(f"{path}: {len(data):,} bytes; the protobuf limit is 2 GiB: save it with external data")
    digest = hashlib.sha256(data)
    try:
        proto = onnx.load_model_from_string(data)
    except DecodeError:
        if kind := _OTHER_KINDS.get(path.suffix):
            raise BadModel(f"{path}: a {kind} model: convert it to ONNX (taglio compare takes it as it is)") from None
        raise BadModel(f"{path}: not an ONNX file, or cut short at {len(data):,} bytes: export it again") from None
    if not proto.opset_import or not (proto.graph.node or _passes_on(proto.graph)):
        raise BadModel(f"{path}: holds no ONNX graph ({len(data):,} bytes read): export it again")
    external = [tensor for tensor in proto.graph.initializer if external_data_helper.uses_external_data(tensor)]
    try:
        external_data_helper.load_external_data_for_model(proto, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise BadModel(f"{path}: its external weights cannot be read ({one_line(error)}): put them beside it") from None
    for tensor in external:
        digest.update(tensor.raw_data)
    return proto, digest, len(data) + sum(len(tensor.raw_data) for tensor in external)


def _passes_on(graph: onnx.GraphProto) -> bool:
    """Whether a graph without operators hands its inputs or constants through."""
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return bool(graph.output) and all(value.name in known for value in graph.output)
