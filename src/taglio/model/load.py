"""Read, check and simplify an ONNX file. Does not decide what belongs together (graph) nor what is quantised."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, numpy_helper, shape_inference, version_converter

from taglio.data.dataset import InputSpec
from taglio.errors import BadModel
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from taglio.scratch import scratch

# Per-channel DequantizeLinear needs opset 13; 17 is the newest that every back end here reads.
MINIMUM_OPSET = 13
TARGET_OPSET = 17
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
# Rewrites reorder float sums; beyond this relative distance the simplified model is not the user's model.
SIMPLIFY_TOLERANCE = 1e-3
MODEL_FILE_LIMIT_BYTES = 2 * 1024**3
_OTHER_KINDS = {".h5": "Keras", ".keras": "Keras", ".tflite": "TFLite", ".pt": "PyTorch", ".pt2": "PyTorch"}


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A checked model: fixed shapes, BatchNorm folded into Conv, no initialiser among the inputs, unique names.

    `sha256` identifies the source file together with the shapes that were fixed; `proto` is the simplified
    model and is never modified after `load`.
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


def load(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Model:
    """Read `path`, fix the input `shapes` given by input name, refuse what cannot be planned, and simplify.

    Raises BadModel, in one line, for: a missing, truncated or non-ONNX file; operators of an unknown domain;
    NaN or Inf weights; a dynamic or zero input dimension; an opset that cannot be raised to 13; a model that
    ONNX Runtime cannot load or that changes its answers when simplified.
    """
    proto, digest, source_bytes = _read(path)
    _refuse_unknown_operators(path, proto)
    _refuse_bad_weights(path, proto)
    _drop_initializers_from_inputs(proto)
    _fix_shapes(path, proto, shapes or {})
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
    inputs = tuple(_input_spec(path, value) for value in proto.graph.input)
    outputs = tuple(value.name for value in proto.graph.output)
    _compare(path, original, proto, inputs)
    opset = max(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    return Model(path.stem, digest.hexdigest(), opset, inputs, outputs, proto, source_bytes)


def random_feed(inputs: Iterable[InputSpec], seed: int) -> dict[str, np.ndarray]:
    """One feed of standard-normal (floating) or zero/one (integer, bool) values; for timing, never for error."""
    rng = np.random.default_rng(seed)
    feed: dict[str, np.ndarray] = {}
    for spec in inputs:
        dtype = np.dtype(spec.dtype)
        if dtype.kind == "f":
            feed[spec.name] = rng.standard_normal(spec.shape).astype(dtype)
        else:
            feed[spec.name] = rng.integers(0, 2, spec.shape).astype(dtype)
    return feed


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


def _fix_shapes(path: Path, proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    inputs = {value.name: value for value in proto.graph.input}
    for name, shape in shapes.items():
        if name not in inputs:
            raise BadModel(f"{path}: --shape names the input {name}; the model's inputs are {', '.join(inputs)}")
        dims = inputs[name].type.tensor_type.shape.dim
        if len(dims) != len(shape):
            raise BadModel(f"{path}: --shape {name} gives {len(shape)} dimensions, the input has {len(dims)}")
        for dim, size in zip(dims, shape, strict=True):
            if dim.HasField("dim_value") and dim.dim_value not in (size, 0, -1):
                raise BadModel(f"{path}: --shape {name} gives {size} where the model fixes {dim.dim_value}")
            dim.dim_value = size
    if shapes:  # shapes inferred for the dynamic dimension are stale now
        del proto.graph.value_info[:]
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
    for value in proto.graph.input:
        _input_spec(path, value)


def _input_spec(path: Path, value: onnx.ValueInfoProto) -> InputSpec:
    if not value.type.HasField("tensor_type"):
        raise BadModel(f"{path}: input {value.name} is not a tensor: taglio plans tensor models only")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise BadModel(f"{path}: input {value.name} has no shape: fix it with --shape {value.name}=1x3x224x224")
    shown = "x".join(
        str(dim.dim_value) if dim.HasField("dim_value") else (dim.dim_param or "?") for dim in tensor.shape.dim
    )
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value == 0:
            raise BadModel(f"{path}: input {value.name} has a zero dimension ({shown}): export it with real sizes")
        if dim.dim_value <= 0:
            example = "x".join(str(d.dim_value) if d.dim_value > 0 else "1" for d in tensor.shape.dim)
            raise BadModel(
                f"{path}: input {value.name} has a dynamic dimension ({shown}): "
                f"fix it with --shape {value.name}={example}"
            )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return InputSpec(value.name, tuple(dim.dim_value for dim in tensor.shape.dim), dtype.name)


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
    with scratch() as folder:
        target = folder / "simple.onnx"
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


def _compare(path: Path, original: onnx.ModelProto, simple: onnx.ModelProto, inputs: tuple[InputSpec, ...]) -> None:
    """Refuse a simplification that changes the answers: every later proof would be about another model."""
    feed = random_feed(inputs, seed=0)
    options = SessionOptions(threads=os.cpu_count() or 1, optimization=Optimization.BASIC)
    try:
        before = open_session(original, options, label=str(path)).run(None, feed)
        after = open_session(simple, options, label=str(path)).run(None, feed)
    except BadModel:
        raise
    except Exception as error:
        raise BadModel(f"{path}: ONNX Runtime cannot run it on random inputs ({_line(error)})") from None
    for name, left, right in zip((o.name for o in simple.graph.output), before, after, strict=True):
        a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
        distance = float(np.linalg.norm(a - b) / max(float(np.linalg.norm(a)), 1e-30)) if a.shape == b.shape else 1.0
        if np.isfinite(a).all() and not distance <= SIMPLIFY_TOLERANCE:
            raise BadModel(
                f"{path}: simplified, its output {name} differs by {distance:.2%} (limit {SIMPLIFY_TOLERANCE:.1%}): "
                "export it with constant folding and without training-mode operators"
            )


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "..."
