"""Read, check and simplify an ONNX file. Does not decide what belongs together (graph) nor what is quantised."""

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, numpy_helper, shape_inference, version_converter

from taglio.data.spec import InputSpec
from taglio.errors import BadModel
from taglio.model.inputs import Feed, fix_shapes, input_specs, keep_interface, random_feeds
from taglio.model.same import refuse_difference
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

# Per-channel DequantizeLinear needs opset 13; 17 is the newest that every back end here reads.
MINIMUM_OPSET = 13
TARGET_OPSET = 17
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
MODEL_FILE_LIMIT_BYTES = 2 * 1024**3
_OTHER_KINDS = {".h5": "Keras", ".keras": "Keras", ".tflite": "TFLite", ".pt": "PyTorch", ".pt2": "PyTorch"}


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A checked model: BatchNorm folded into Conv, no initialiser among the inputs, unique names.

    `sha256` identifies the source file together with the shapes that were fixed; `proto` is the simplified
    model, whose inputs and outputs are the source's own, and is never modified after `load`.
    """

    name: str
    sha256: str
    opset: int
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    proto: onnx.ModelProto
    source_bytes: int

    def initializers(self) -> dict[str, onnx.TensorProto]:
        """Initialisers by name."""
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}


def load(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    samples: Callable[[tuple[InputSpec, ...]], Sequence[Feed]] | None = None,
) -> Model:
    """Read `path`, fix the input `shapes` given by input name, refuse what cannot be planned, and simplify.

    `samples` gives feeds that fit the inputs, on which the simplified model must answer as the original; None takes
    random ones where they run.

    Raises BadModel, in one line, for: a missing, truncated or non-ONNX file; operators of an unknown domain;
    NaN or Inf weights; an input that is no tensor; an opset that cannot be raised to 13; a model that
    ONNX Runtime cannot load or that changes its answers when simplified.
    """
    proto, digest, source_bytes = _read(path)
    _refuse_unknown_operators(path, proto)
    _refuse_bad_weights(path, proto)
    _drop_initializers_from_inputs(proto)
    fix_shapes(path, proto, shapes or {})
    for name, shape in sorted((shapes or {}).items()):
        digest.update(f"{name}={shape}".encode())
    original = proto
    proto = _raise_opset(path, proto)
    proto = _simplify(path, proto)
    _refuse_bad_weights(path, proto)  # again: Constant operators are initialisers now
    try:
        _name_nodes(proto)
    except UnicodeDecodeError:
        raise BadModel(f"{path}: holds a name that is not text, so the file is damaged: export it again") from None
    keep_interface(original, proto)
    inputs = input_specs(path, original)
    outputs = tuple(value.name for value in proto.graph.output)
    refuse_difference(path, original, proto, samples(inputs) if samples else random_feeds(inputs), bool(samples))
    opset = max(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    return Model(path.stem, digest.hexdigest(), opset, inputs, outputs, proto, source_bytes)


def _read(path: Path) -> tuple[onnx.ModelProto, "hashlib._Hash", int]:
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
        raise BadModel(f"{path}: {len(data):,} bytes; the protobuf limit is 2 GiB: taglio handles smaller models")
    digest = hashlib.sha256(data)
    try:
        proto = onnx.load_model_from_string(data)
    except DecodeError:
        if kind := _OTHER_KINDS.get(path.suffix):
            raise BadModel(f"{path}: a {kind} model: convert it to ONNX (taglio compare takes it as it is)") from None
        raise BadModel(f"{path}: not an ONNX file, or cut short at {len(data):,} bytes: export it again") from None
    if not proto.graph.node or not proto.opset_import:
        raise BadModel(f"{path}: holds no ONNX graph ({len(data):,} bytes read): export it again")
    external = [tensor for tensor in proto.graph.initializer if external_data_helper.uses_external_data(tensor)]
    try:
        external_data_helper.load_external_data_for_model(proto, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise BadModel(f"{path}: its external weights cannot be read ({_line(error)}): put them beside it") from None
    for tensor in external:
        digest.update(tensor.raw_data)
    return proto, digest, len(data) + sum(len(tensor.raw_data) for tensor in external)


def _refuse_unknown_operators(path: Path, proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        if node.domain not in KNOWN_DOMAINS:
            raise BadModel(
                f"{path}: operator {node.op_type} ({node.name or node.output[0]}) is of the custom domain "
                f'"{node.domain}", which ONNX Runtime does not know: replace it by standard operators'
            )


def _refuse_bad_weights(path: Path, proto: onnx.ModelProto) -> None:
    for tensor in proto.graph.initializer:
        if tensor.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE):
            continue
        try:
            values = numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise BadModel(f"{path}: weight {tensor.name} is damaged ({_line(error)}): export it again") from None
        finite = np.isfinite(values)
        if not finite.all():
            raise BadModel(
                f"{path}: weight {tensor.name} has {int((~finite).sum())} NaN or Inf among {values.size:,} "
                "values: export the model from a healthy checkpoint"
            )


def _drop_initializers_from_inputs(proto: onnx.ModelProto) -> None:
    # Old exporters list weights as inputs; ONNX Runtime then treats them as overridable and folds nothing.
    names = {tensor.name for tensor in proto.graph.initializer}
    kept = [value for value in proto.graph.input if value.name not in names]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.ir_version = max(proto.ir_version, 4)


def _raise_opset(path: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    version = max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if version >= MINIMUM_OPSET:
        return proto
    try:
        return version_converter.convert_version(proto, TARGET_OPSET)
    except Exception as error:  # the converter raises bare RuntimeErrors from C++
        raise BadModel(
            f"{path}: opset {version} cannot be raised to {TARGET_OPSET} ({_line(error)}): "
            f"export it again with opset {MINIMUM_OPSET} or newer"
        ) from None


def _simplify(path: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    """ONNX Runtime's basic rewrites (constant folding, BatchNorm folding, dead nodes), then inferred shapes."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "simple.onnx"
        open_session(
            proto,
            SessionOptions(threads=1, optimization=Optimization.BASIC),
            save_optimized=target,
            label=str(path),
        )
        simple = onnx.load(target)
    try:
        simple = shape_inference.infer_shapes(simple, data_prop=True)
    except Exception as error:
        raise BadModel(f"{path}: its shapes cannot be inferred ({_line(error)}): export it again") from None
    _drop_unused_initializers(simple)
    return simple


def _drop_unused_initializers(proto: onnx.ModelProto) -> None:
    used = {name for node in proto.graph.node for name in node.input}
    used |= {value.name for value in proto.graph.output}
    for node in proto.graph.node:  # a subgraph may read the outer scope: keep everything then
        if any(
            attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for attribute in node.attribute
        ):
            return
    kept = [tensor for tensor in proto.graph.initializer if tensor.name in used]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)


def _name_nodes(proto: onnx.ModelProto) -> None:
    taken: set[str] = set()
    for node in proto.graph.node:
        name = node.name or f"{node.op_type}:{node.output[0]}"
        while name in taken:
            name += "'"
        taken.add(name)
        node.name = name


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."
