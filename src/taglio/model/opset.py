"""Bring a model to an opset at which ONNX Runtime can quantise it. `load` checks that the answers stay the same."""

import subprocess
import sys
from functools import cache

import onnx
from onnx import helper
from onnx.parser import parse_model

from taglio import weights
from taglio.errors import BadModel
from taglio.model.captures import graphs
from taglio.model.operators import MOVEMENT, STANDARD, standard
from taglio.runtimes.onnxruntime import SessionOptions, open_session, version
from taglio.scratch import scratch

# Per-channel DequantizeLinear needs opset 13; 17 is the newest that every back end here reads.
MINIMUM_OPSET = 13
TARGET_OPSET = 17
_CONVERT = (
    "import sys, onnx; from onnx import version_converter as c;"
    "onnx.save(c.convert_version(onnx.load(sys.argv[1], load_external_data=False), int(sys.argv[3])), sys.argv[2])"
)


def declared_opset(proto: onnx.ModelProto) -> int:
    """The opset of the standard operators; 0 if the model imports none."""
    return max((imported.version for imported in proto.opset_import if imported.domain in STANDARD), default=0)


def with_quantizable_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` at an opset with int8 forms, or unchanged if it cannot be converted.

    One that is older than 13, or newer than ONNX Runtime's QuantizeLinear, is converted by onnx, in a separate process;
    not if only operators of other domains compute, such as trees: they have no int8 form, and may be large.
    """
    opset = declared_opset(proto)
    if not opset or MINIMUM_OPSET <= opset <= newest_quantizable(opset) or not _computes(proto):
        return proto
    return _converted(proto, TARGET_OPSET if opset < MINIMUM_OPSET else newest_quantizable(opset)) or proto


def no_int8(proto: onnx.ModelProto) -> str:
    """Why nothing in `proto` can be int8, or ""."""
    opset = declared_opset(proto)
    if opset < MINIMUM_OPSET:
        return (
            f"int8 needs opset {MINIMUM_OPSET}, and the model's opset {opset} cannot be converted"
            if _computes(proto)
            else "no operator of ONNX's own domain computes"
        )
    if opset > newest_quantizable(opset):
        return f"ONNX Runtime {version()} has no QuantizeLinear of opset {opset}"
    return ""


def _computes(proto: onnx.ModelProto) -> bool:
    """Whether an operator of ONNX's own domain, or a function, does more than move or convert values."""
    nodes = (node for graph in graphs(proto.graph) for node in graph.node)
    return bool(proto.functions) or any(standard(node) and node.op_type not in MOVEMENT | {"Cast"} for node in nodes)


@cache
def newest_quantizable(opset: int) -> int:
    """The newest opset, at most `opset`, at which ONNX Runtime runs QuantizeLinear and DequantizeLinear: found by
    trying."""
    for tried in range(opset, MINIMUM_OPSET, -1):
        try:
            open_session(_pair(tried), SessionOptions(1))
        except BadModel:
            continue
        return tried
    return MINIMUM_OPSET


def _pair(opset: int) -> onnx.ModelProto:
    return parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}]>
        pair (float[1] x) => (float[1] y) <float scale = {{1.0}}, uint8 zero = {{0}}> {{
            q = QuantizeLinear (x, scale, zero)
            y = DequantizeLinear (q, scale, zero)
        }}"""
    )


def _converted(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto | None:
    """`proto` at `opset`, or None if onnx's converter fails, crashes or times out."""
    with scratch() as folder:
        source, target = folder / "old.onnx", folder / "new.onnx"
        try:
            onnx.save(proto, source)
            subprocess.run(
                [sys.executable, "-c", _CONVERT, str(source), str(target), str(opset)],
                capture_output=True,
                timeout=40.0,  # it takes under 2 s for 1,000 operators; on damaged files it can loop or crash
                check=True,
            )
            converted = onnx.load(target, load_external_data=False)
        except (subprocess.SubprocessError, ValueError, OSError):
            return None
    # Before opset 11, Resize and Upsample map pixels without a half-pixel shift; since then Resize has one by default.
    if declared_opset(proto) < 11:
        _keep_corners(converted)
    in_files = {stored.name: stored for stored in proto.graph.initializer if weights.in_file(stored)}
    for tensor in converted.graph.initializer:  # onnx's converter loses references to files
        if tensor.name in in_files:
            tensor.CopyFrom(in_files[tensor.name])
    return converted


def _keep_corners(converted: onnx.ModelProto) -> None:
    """Make each Resize take pixels as it did before opset 11, in place: onnx's converter does not say how."""
    old = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for node in (node for graph in graphs(converted.graph) for node in graph.node if node.op_type == "Resize"):
        set_names = {attribute.name for attribute in node.attribute}
        node.attribute.extend(helper.make_attribute(name, mode) for name, mode in old.items() if name not in set_names)
