"""Read an ONNX file and its external weights. Does not judge what the graph computes."""

import hashlib
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import TensorProto

from taglio import artifact, weights
from taglio.errors import BadModel, one_line

_PICKLED = (".pt", ".pth", ".bin")
# What a clone without Git LFS has in the place of a large file.
_GIT_LFS = b"version https://git-lfs"

# Name of a model from memory in error messages.
IN_MEMORY = Path("model")


def read(source: Path | onnx.ModelProto) -> tuple[onnx.ModelProto, "hashlib._Hash"]:
    """The model and a hash of all its bytes. Large external weights stay in their files (weights.py). Raises BadModel
    for anything but a complete ONNX file."""
    path = source if isinstance(source, Path) else IN_MEMORY
    try:
        data = artifact.read_bytes(source) if isinstance(source, Path) else source.SerializeToString()
    except (EncodeError, ValueError):
        raise BadModel(f"{path}: more than protobuf's 2 GiB: save it with external data and give its path") from None
    except FileNotFoundError:
        raise BadModel(f"{path}: no such file: give the path of a model") from None
    except IsADirectoryError:
        raise BadModel(
            f"{path}: is a directory without saved_model.pb and config.json: give a model's directory, or an .onnx file"
        ) from None
    except OSError as error:
        raise BadModel(f"{path}: cannot be read ({error.strerror}): give the path of an .onnx file") from None
    if not data:
        raise BadModel(f"{path}: file is empty (0 bytes): export the model again")
    if len(data) >= weights.MESSAGE_BYTES:
        raise BadModel(f"{path}: {len(data):,} bytes; the protobuf limit is 2 GiB: save it with external data")
    digest = hashlib.sha256(data)
    proto = parsed(path, data)
    if not proto.opset_import or not (proto.graph.node or _passes_on(proto.graph)):
        raise BadModel(f"{path}: holds no ONNX graph ({len(data):,} bytes read): export it again")
    if not proto.graph.output:
        raise BadModel(f"{path}: the graph has no outputs: export it with some")
    external = [tensor for tensor in weights.tensors(proto) if weights.in_file(tensor)]
    try:
        for tensor in external:
            _find(path, tensor)
            for chunk in weights.chunks(tensor):
                digest.update(chunk)
        if external and weights.weight_bytes(proto) < weights.IN_FILES_BYTES:
            for tensor in external:
                weights.hold(tensor)
    except (OSError, ValueError, KeyError, OverflowError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else one_line(error)
        fix = "give its path instead" if path == IN_MEMORY else "put the whole files that it names beside it"
        raise BadModel(f"{path}: external weights cannot be read ({why}): {fix}") from None
    return proto, digest


def _find(path: Path, tensor: TensorProto) -> None:
    """Make an external tensor refer to its file by absolute path. Raises OSError or ValueError if the file does not
    hold its bytes."""
    location, offset, length = weights.place(tensor)
    if not location or Path(location).is_absolute() or ".." in Path(location).parts:
        raise ValueError(f"{tensor.name} refers to {location!r}, which is not in the model's directory")
    file = (path.parent / location).resolve()
    expected, size = weights.stored_bytes(tensor.data_type, tensor.dims), file.stat().st_size
    if length != expected:
        raise ValueError(f"{tensor.name} has {length:,} bytes; its shape needs {expected:,}")
    if offset < 0 or offset + length > size:
        raise ValueError(f"{location} has {size:,} bytes, but {tensor.name} ends at {offset + length:,}")
    weights.refer(tensor, file, offset, length)


def parsed(path: Path, data: bytes) -> onnx.ModelProto:
    """The model in `data`, an ONNX message. Raises BadModel if it is none."""
    try:
        return onnx.load_model_from_string(data)
    except DecodeError:
        if path.suffix in _PICKLED:
            raise BadModel(
                f"{path}: PyTorch weights without the module: save a .pt2 with torch.export.save, or give "
                "module:function"
            ) from None
        if data.startswith(_GIT_LFS):
            raise BadModel(f"{path}: a pointer of Git LFS, not the model: run git lfs pull") from None
        raise BadModel(f"{path}: not an ONNX file, or cut short at {len(data):,} bytes: export it again") from None


def _passes_on(graph: onnx.GraphProto) -> bool:
    """Whether the outputs of a graph without operators are inputs or constants."""
    available = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return bool(graph.output) and all(value.name in available for value in graph.output)
