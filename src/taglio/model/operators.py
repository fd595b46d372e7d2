"""Which operators only move values, and which have an int8 form in ONNX Runtime's CPU provider. Knows no blocks.

These rules are cheap and need not be complete: every form is tried before it is planned (quantize/trial.py).
"""

from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import helper

# Operators that only move or select values: their output keeps the scale of their input, so they add no error.
MOVEMENT = frozenset(
    {"MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Split", "Slice", "Resize", "Gather",
     "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Identity"}
)  # fmt: skip
# Compute operators with an int8 kernel in ONNX Runtime's CPU provider (QLinear*, QGemm, MatMulIntegerToFloat), and
# ConvTranspose, which it computes in float between Q/DQ pairs; OpenVINO computes it in int8.
# Softmax is left out: QLinearSoftmax of 1.31 is wrong for asymmetric inputs (35 % error from it alone on YOLO11).
INT8_COMPUTE = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "Sigmoid",
     "LeakyRelu"}
)  # fmt: skip
# ONNX's own domain, which has two names.
STANDARD = ("", "ai.onnx")
# Operators whose results are drawn at random.
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
# Operators whose attributes hold graphs.
HOLDS_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
# What ONNX Runtime writes for one kind of processor, if a model is saved after its last optimisations.
_BLOCKED_LAYOUT = "com.microsoft.nchwc"
_FLOAT = onnx.TensorProto.FLOAT


def standard(node: onnx.NodeProto) -> bool:
    """Whether `node` is in ONNX's own domain: operators of other domains may share its names."""
    return node.domain in STANDARD


def moves(node: onnx.NodeProto) -> bool:
    """Whether `node` only moves or interpolates values, so its outputs stay in the range of its first input."""
    if not standard(node) or node.op_type not in MOVEMENT:
        return False
    return node.op_type != "Resize" or not _leaves_range(node)


def _leaves_range(resize: onnx.NodeProto) -> bool:
    """Cubic interpolation overshoots; tf_crop_and_resize writes a constant outside its input."""
    return (
        text(resize, "mode", "nearest") == "cubic"
        or text(resize, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    )


def text(node: onnx.NodeProto, name: str, default: str) -> str:
    """The value of a string attribute, or `default`."""
    return next((attribute.s.decode() for attribute in node.attribute if attribute.name == name), default)


def integer(node: onnx.NodeProto, name: str, default: int = 0) -> int:
    """The value of an integer attribute, or `default`."""
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)


def integers(node: onnx.NodeProto, name: str) -> tuple[int, ...]:
    """The value of an attribute that lists integers; () if the node does not have it."""
    return next((tuple(attribute.ints) for attribute in node.attribute if attribute.name == name), ())


def set_attribute(node: onnx.NodeProto, name: str, value: int | Sequence[int]) -> None:
    """Give `node`, in place, an attribute `name` with this value, instead of its own if it has one."""
    others = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute(name, value)])


def scales(gemm: onnx.NodeProto) -> bool:
    """Whether a Gemm has an alpha or beta other than 1."""
    return any(attribute.name in ("alpha", "beta") and attribute.f != 1.0 for attribute in gemm.attribute)


def refusal(
    node: onnx.NodeProto,
    outputs: Sequence[str],
    initializers: Collection[str],
    shapes: Mapping[str, tuple[int, ...]],
    types: Mapping[str, int],
) -> str:
    """Why a block that begins with `node` and writes `outputs` has no int8 form, or ""."""
    kind = node.op_type
    if node.domain == _BLOCKED_LAYOUT:
        return "ONNX Runtime saved it for one kind of processor: give the model as it was before"
    if kind == "Softmax":
        return "ONNX Runtime's int8 Softmax gives wrong results for some scales"
    if kind in MOVEMENT and standard(node) and not moves(node):
        return f"this {kind} writes values outside its input's range, which int8 would clip"
    if (kind not in INT8_COMPUTE and kind not in MOVEMENT) or not standard(node):
        return f"ONNX Runtime has no int8 {kind} on the CPU"
    activations = [name for name in node.input if name and name not in initializers]
    if not activations or not outputs:
        return "reads no activation"
    if kind in MOVEMENT and node.input[0] in initializers:
        return "it moves a constant"
    for name in (*(activations[:1] if kind in MOVEMENT else activations), *outputs):
        if types.get(name, _FLOAT) != _FLOAT:
            return f"tensor {name} is not float32"
        if name not in shapes:
            return f"the shape of {name} is known only at run time"
        if not shapes[name] or 0 in shapes[name]:
            return f"tensor {name} is {'empty' if shapes[name] else 'a single number'}"
    return _without_kernel(node, initializers, shapes)


def _without_kernel(node: onnx.NodeProto, initializers: Collection[str], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Which attribute or weight ONNX Runtime's int8 kernel of `node` does not support, or ""."""
    kind = node.op_type
    weighted = kind in ("Conv", "ConvTranspose", "Gemm")
    if weighted and any(name and name not in initializers for name in node.input[1:]):
        return "its weights are computed at run time"
    if kind == "Gemm" and scales(node):
        return "Gemm with alpha or beta other than 1 has no int8 kernel"
    if kind == "MatMul" and node.input[0] in initializers:
        return "MatMul with a constant first factor has no int8 form"
    if kind == "AveragePool":
        if integer(node, "ceil_mode") and integer(node, "count_include_pad"):
            return "ONNX Runtime's int8 AveragePool divides partial windows wrongly"
        if any(step != 1 for step in integers(node, "dilations")):
            return "ONNX Runtime's int8 AveragePool ignores dilations"
    if kind == "Conv" and len(shapes.get(node.input[1], ())) not in (3, 4):
        return "only 1-D and 2-D convolutions have an int8 kernel"
    return ""
