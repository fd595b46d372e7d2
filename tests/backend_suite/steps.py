"""The steps of random graphs. Each writes operators that read a value, and returns a value of the same or a smaller
rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FUNCTIONS = "suite.functions"
_NEGATIVE = np.float32(-1e9)


@dataclass(frozen=True, slots=True)
class Value:
    """A float32 tensor: [N, C, H, W], [N, T, D] or [N, F] by its rank; sizes are those of the first sample."""

    name: str
    shape: tuple[int, ...]


@dataclass(slots=True)
class Writer:
    """A graph in the making."""

    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    prefix: str = ""
    # The generator of the step that is being written.
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def name(self, kind: str) -> str:
        return f"{self.prefix}{kind.lower()}{len(self.nodes)}"

    def constant(self, values: Any) -> str:
        name = f"{self.prefix}w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, *shape: int, fan: int | None = None, gain: float = 1.0) -> str:
        fan = fan or int(np.prod(shape[1:]))
        return self.constant(self.rng.normal(0.0, gain / np.sqrt(fan), shape).astype(np.float32))

    def op(self, kind: str, *inputs: str, outputs: int | Sequence[str] = 1, domain: str = "", **attributes: Any) -> str:
        """An operator with so many outputs, or with outputs of these names; its first output."""
        name = self.name(kind)
        names = [f"{name}_y{index or ''}" for index in range(outputs)] if isinstance(outputs, int) else list(outputs)
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, domain=domain, **attributes))
        return names[0]

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]


Step = Callable[[Writer, Value], Value]


def _same(w: Writer, x: Value, kind: str, *more: str, **attributes: Any) -> Value:
    return Value(w.op(kind, x.name, *more, **attributes), x.shape)


def convolution(
    w: Writer, x: Value, out: int, kernel: int, stride: int = 1, group: int = 1, dilation: int = 1
) -> Value:
    n, c, height, width = x.shape
    more = [w.constant(w.rng.normal(0, 0.2, out).astype(np.float32))] if w.rng.random() < 0.7 else []
    reach = dilation * (kernel - 1)
    attributes: dict[str, Any] = {"pads": [reach // 2] * 2 + [reach - reach // 2] * 2}
    if w.rng.random() < 0.15 and dilation == 1:
        attributes = {"auto_pad": w.pick("SAME_UPPER", "SAME_LOWER")}
    attributes |= {"dilations": [dilation] * 2} if dilation > 1 else {}
    name = w.op(
        "Conv",
        x.name,
        w.weight(out, c // group, kernel, kernel),
        *more,
        strides=[stride] * 2,
        group=group,
        **attributes,
    )
    return Value(name, (n, out, -(-height // stride), -(-width // stride)))


def conv(w: Writer, x: Value) -> Value:
    group = x.shape[1] if w.rng.random() < 0.2 else 1
    out = x.shape[1] * w.pick(1, 2) if group > 1 else w.pick(4, 6, 8)
    stride = 2 if min(x.shape[2:]) >= 6 and w.rng.random() < 0.2 else 1
    return convolution(w, x, min(out, 32) if group == 1 else out, w.pick(1, 3, 3), stride, group, w.pick(1, 1, 1, 2))


def conv_transpose(w: Writer, x: Value) -> Value:
    n, c, height, width = x.shape
    if height > 24:
        return conv(w, x)
    out = w.pick(3, 4)
    name = w.op("ConvTranspose", x.name, w.weight(c, out, 2, 2, fan=c), strides=[2, 2])
    return Value(name, (n, out, height * 2, width * 2))


def activation(w: Writer, x: Value) -> Value:
    kind = w.pick(
        "Relu", "Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Selu",
        "Softplus", "Gelu", "SiLU", "Mish", "Erf", "Celu", "Softsign", "ThresholdedRelu", "Abs", "Exp",
    )  # fmt: skip
    if kind == "Clip":
        return _same(w, x, "Clip", w.constant(np.float32(w.pick(0.0, -1.0))), w.constant(np.float32(6.0)))
    if kind == "PRelu":
        slopes = w.rng.uniform(
            0.05, 0.3, (x.shape[1], *[1] * (len(x.shape) - 2)) if len(x.shape) == 4 else x.shape[-1:]
        )
        return _same(w, x, "PRelu", w.constant(slopes.astype(np.float32)))
    if kind == "SiLU":
        return Value(w.op("Mul", x.name, w.op("Sigmoid", x.name)), x.shape)
    if kind == "Mish":
        return Value(w.op("Mul", x.name, w.op("Tanh", w.op("Softplus", x.name))), x.shape)
    if kind == "Exp":
        return Value(w.op("Exp", w.op("Clip", x.name, w.constant(np.float32(-3)), w.constant(np.float32(1)))), x.shape)
    if (kind == "HardSwish" and w.opset < 14) or (kind == "Gelu" and w.opset < 20):
        kind = "Tanh"
    return _same(w, x, kind)


def norm(w: Writer, x: Value) -> Value:
    c = x.shape[1]

    def scales(size: int) -> tuple[str, str]:
        draws = w.rng.uniform(0.5, 1.5, size), w.rng.normal(0.0, 0.2, size)
        return w.constant(draws[0].astype(np.float32)), w.constant(draws[1].astype(np.float32))

    if len(x.shape) == 4:
        kind = w.pick("BatchNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization")
        if kind == "BatchNormalization":
            mean = w.constant(w.rng.normal(0, 0.2, c).astype(np.float32))
            return _same(w, x, kind, *scales(c), mean, w.constant(w.rng.uniform(0.5, 1.5, c).astype(np.float32)))
        if kind == "GroupNormalization" and c % 2 == 0:
            if w.opset >= 21:
                return _same(w, x, kind, *scales(c), num_groups=2)
            grouped = w.op("Reshape", x.name, w.constant(np.array([0, 2, -1])))
            ones = w.constant(np.ones(2, np.float32)), w.constant(np.zeros(2, np.float32))
            grouped = w.op("InstanceNormalization", grouped, *ones)
            back = w.op("Reshape", grouped, w.op("Shape", x.name))
            gain, shift = (w.constant(w.rng.uniform(0.5, 1.5, (c, 1, 1)).astype(np.float32)) for _ in range(2))
            return Value(w.op("Add", w.op("Mul", back, gain), shift), x.shape)
        return _same(w, x, "InstanceNormalization", *scales(c))
    gain, shift = scales(x.shape[-1])
    if w.opset >= 17 and w.rng.random() < 0.7:
        return _same(w, x, "LayerNormalization", gain, shift, axis=-1)
    axes: dict[str, Any] = {"axes": [-1]} if w.opset < 18 else {}
    more = [] if w.opset < 18 else [w.constant(np.array([-1]))]
    centred = w.op("Sub", x.name, w.op("ReduceMean", x.name, *more, **axes))
    square = w.op("ReduceMean", w.op("Mul", centred, centred), *more, **axes)
    root = w.op("Sqrt", w.op("Add", square, w.constant(np.float32(1e-5))))
    return Value(w.op("Add", w.op("Mul", w.op("Div", centred, root), gain), shift), x.shape)


def residual(w: Writer, x: Value) -> Value:
    branch = _project(w, activation(w, _project(w, x, x.shape[_axis(x)] * 2)), x.shape[_axis(x)])
    return Value(w.op(w.pick("Add", "Add", "Sub", "Mul", "Max"), x.name, branch.name), x.shape)


def concat(w: Writer, x: Value) -> Value:
    parts = [_project(w, x, 4), x if w.rng.random() < 0.5 else activation(w, _project(w, x, 3))]
    axis = _axis(x)
    size = sum(part.shape[axis] for part in parts)
    name = w.op("Concat", *[part.name for part in parts], axis=axis)
    return Value(name, (*x.shape[:axis], size, *x.shape[axis + 1 :]))


def split(w: Writer, x: Value) -> Value:
    axis = _axis(x)
    size = x.shape[axis]
    if size < 2:
        return concat(w, x)
    left = size // 2
    name = w.op("Split", x.name, w.constant(np.array([left, size - left])), axis=axis, outputs=2)
    halves = [
        Value(each, (*x.shape[:axis], width, *x.shape[axis + 1 :]))
        for each, width in ((name, left), (f"{name}1", size - left))
    ]
    treated = [_project(w, halves[0], 4), activation(w, _project(w, halves[1], 4))]
    return Value(w.op(w.pick("Add", "Mul"), treated[0].name, treated[1].name), treated[0].shape)


def _axis(x: Value) -> int:
    return 1 if len(x.shape) == 4 else len(x.shape) - 1


def _project(w: Writer, x: Value, out: int) -> Value:
    if len(x.shape) == 4:
        return convolution(w, x, out, w.pick(1, 3))
    return _dense(w, x, out)


def _dense(w: Writer, x: Value, out: int) -> Value:
    size = x.shape[-1]
    if len(x.shape) == 2 and w.rng.random() < 0.5:
        more = [w.constant(w.rng.normal(0, 0.2, out).astype(np.float32))] if w.rng.random() < 0.7 else []
        turned = int(w.rng.integers(2))
        weight = w.weight(*((out, size) if turned else (size, out)), fan=size)
        attributes: dict[str, Any] = {"alpha": 0.5, "beta": 2.0} if w.rng.random() < 0.15 else {}
        return Value(w.op("Gemm", x.name, weight, *more, transB=turned, **attributes), (*x.shape[:-1], out))
    name = w.op("MatMul", x.name, w.weight(size, out, fan=size))
    if w.rng.random() < 0.7:
        bias = w.constant(w.rng.normal(0, 0.2, out).astype(np.float32))
        name = w.op("Add", name, bias) if w.rng.random() < 0.7 else w.op("Add", bias, name)
    return Value(name, (*x.shape[:-1], out))


def dense(w: Writer, x: Value) -> Value:
    return _dense(w, x, w.pick(6, 8, 12))


def pool(w: Writer, x: Value) -> Value:
    n, c, height, width = x.shape
    if min(height, width) < 4:
        return conv(w, x)
    if w.rng.random() < 0.3:
        kind = w.pick("MaxPool", "AveragePool")
        return _same(w, x, kind, kernel_shape=[3, 3], pads=[1] * 4)
    name = w.op(w.pick("MaxPool", "AveragePool"), x.name, kernel_shape=[2, 2], strides=[2, 2])
    return Value(name, (n, c, height // 2, width // 2))


def resize(w: Writer, x: Value) -> Value:
    n, c, height, width = x.shape
    if height > 20:
        return pool(w, x)
    mode = w.pick("nearest", "nearest", "linear", "cubic")
    how: dict[str, Any] = (
        {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"} if mode == "nearest" else {}
    )
    name = w.op("Resize", x.name, "", w.constant(np.array([1, 1, 2, 2], np.float32)), mode=mode, **how)
    return Value(name, (n, c, height * 2, width * 2))


def pad(w: Writer, x: Value) -> Value:
    n, c, height, width = x.shape
    mode = w.pick("constant", "reflect", "edge")
    name = w.op("Pad", x.name, w.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])), mode=mode)
    return Value(name, (n, c, height + 2, width + 2))


def excite(w: Writer, x: Value) -> Value:
    n, c = x.shape[:2]
    gate = Value(w.op("GlobalAveragePool", x.name), (n, c, 1, 1))
    gate = convolution(w, gate, c, 1)
    return Value(w.op("Mul", x.name, w.op(w.pick("Sigmoid", "HardSigmoid"), gate.name)), x.shape)


def shuffle(w: Writer, x: Value) -> Value:
    n, c, height, width = x.shape
    if w.rng.random() < 0.4 and c % 4 == 0:
        return Value(w.op("DepthToSpace", x.name, blocksize=2), (n, c // 4, height * 2, width * 2))
    if c % 2 == 0:
        parts = w.op("Reshape", x.name, w.constant(np.array([0, 2, c // 2, -1])))
        turned = w.op("Transpose", parts, perm=[0, 2, 1, 3])
        sides = w.op("Slice", w.op("Shape", x.name), w.constant(np.array([2])), w.constant(np.array([4])))
        shape = w.op("Concat", w.constant(np.array([0, c])), sides, axis=0)
        return Value(w.op("Reshape", turned, shape), x.shape)
    return _same(w, x, "Identity")


def to_flat(w: Writer, x: Value) -> Value:
    n, c = x.shape[:2]
    pooled = w.op(w.pick("GlobalAveragePool", "GlobalMaxPool"), x.name)
    return Value(w.op("Flatten", pooled, axis=1), (n, c))


def to_sequence(w: Writer, x: Value) -> Value:
    n, c, height, width = x.shape
    joined = w.op("Reshape", x.name, w.constant(np.array([0, 0, -1])))
    return Value(w.op("Transpose", joined, perm=[0, 2, 1]), (n, height * width, c))


def average(w: Writer, x: Value) -> Value:
    axes: dict[str, Any] = {"axes": [1]} if w.opset < 18 else {}
    more = [] if w.opset < 18 else [w.constant(np.array([1]))]
    return Value(w.op("ReduceMean", x.name, *more, keepdims=0, **axes), (x.shape[0], x.shape[2]))


def last(w: Writer, x: Value) -> Value:
    return Value(w.op("Gather", x.name, w.constant(np.array(-1)), axis=1), (x.shape[0], x.shape[2]))


def attention(w: Writer, x: Value) -> Value:
    width = x.shape[2]
    heads = 2 if width % 2 == 0 and w.rng.random() < 0.6 else 1
    parts = [_dense(w, x, width).name for _ in range(3)]
    if heads > 1:
        shape = w.constant(np.array([0, 0, heads, width // heads]))
        parts = [w.op("Transpose", w.op("Reshape", each, shape), perm=[0, 2, 1, 3]) for each in parts]
        key = w.op("Transpose", parts[1], perm=[0, 1, 3, 2])
    else:
        key = w.op("Transpose", parts[1], perm=[0, 2, 1])
    scores = w.op("MatMul", parts[0], key)
    scores = w.op(w.pick("Mul", "Div"), scores, w.constant(np.float32(w.pick(0.5, 2.0))))
    draw = w.rng.random()
    if draw < 0.6:  # a mask, of the values themselves so that it fits every length
        kept = w.op("Greater", scores, w.constant(np.float32(-0.7)))
        masked = np.float32(-np.inf) if draw < 0.2 else _NEGATIVE
        if draw < 0.4:
            scores = w.op("Where", kept, scores, w.constant(masked))
        else:
            away = w.op("Mul", w.op("Cast", w.op("Not", kept), to=TensorProto.FLOAT), w.constant(_NEGATIVE))
            scores = w.op("Add", scores, away)
    mixed = w.op("MatMul", w.op("Softmax", scores, axis=-1), parts[2])
    if heads > 1:
        mixed = w.op("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = w.op("Reshape", mixed, w.constant(np.array([0, 0, width])))
    out = _dense(w, Value(mixed, x.shape), width)
    return Value(w.op("Add", x.name, out.name), x.shape) if w.rng.random() < 0.7 else out


def recurrence(w: Writer, x: Value) -> Value:
    n, length, width = x.shape
    kind, gates = w.pick(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    hidden, both = w.pick(4, 6), int(w.rng.random() < 0.3) + 1
    turned = w.op("Transpose", x.name, perm=[1, 0, 2])
    more = [w.weight(both, gates * hidden, width, fan=width), w.weight(both, gates * hidden, hidden, fan=hidden)]
    more += [w.constant(w.rng.normal(0, 0.1, (both, 2 * gates * hidden)).astype(np.float32))]
    direction = "bidirectional" if both == 2 else "forward"
    out = w.op(kind, turned, *more, hidden_size=hidden, direction=direction, outputs=1 if kind == "RNN" else 2)
    out = w.op("Reshape", w.op("Transpose", out, perm=[2, 0, 1, 3]), w.constant(np.array([0, 0, -1])))
    return Value(out, (n, length, both * hidden))


def cast(w: Writer, x: Value) -> Value:
    """float16 or double and back, with a computation between."""
    to = w.pick(TensorProto.FLOAT16, TensorProto.DOUBLE)
    there = w.op("Cast", x.name, to=to)
    if w.rng.random() < 0.5 and len(x.shape) == 4 and to == TensorProto.FLOAT16:  # no Conv of doubles in ONNX Runtime
        weight = w.rng.normal(0, 1 / np.sqrt(x.shape[1]), (4, x.shape[1], 1, 1))
        there = w.op("Conv", there, w.constant(weight.astype(np.float16)))
        return Value(w.op("Cast", there, to=TensorProto.FLOAT), (x.shape[0], 4, *x.shape[2:]))
    there = w.op(w.pick("Relu", "Tanh", "Sigmoid"), there)
    return Value(w.op("Cast", there, to=TensorProto.FLOAT), x.shape)


def weight_cast(w: Writer, x: Value) -> Value:
    """An anchor whose weight is stored in float16 behind a Cast, or in int8 behind a DequantizeLinear."""
    size, out = x.shape[_axis(x)], 5
    shape = (out, size, 1, 1) if len(x.shape) == 4 else (size, out)
    values = w.rng.normal(0, 1 / np.sqrt(size), shape)
    if w.rng.random() < 0.5:
        weight = w.op("Cast", w.constant(values.astype(np.float16)), to=TensorProto.FLOAT)
    else:
        whole = w.constant(np.clip(np.rint(values * 60), -127, 127).astype(np.int8))
        weight = w.op("DequantizeLinear", whole, w.constant(np.float32(1 / 60)), w.constant(np.int8(0)))
    name = w.op("Conv" if len(x.shape) == 4 else "MatMul", x.name, weight)
    axis = _axis(x)
    return Value(name, (*x.shape[:axis], out, *x.shape[axis + 1 :]))


def function(w: Writer, x: Value) -> Value:
    """A local function of an anchor and an activation, its weight an argument."""
    size, out = x.shape[_axis(x)], 5
    kind = "Conv" if len(x.shape) == 4 else "MatMul"
    name = f"Layer{len(w.functions)}"
    nodes = [helper.make_node(kind, ["x", "w"], ["h"]), helper.make_node(w.pick("Relu", "Tanh"), ["h"], ["y"])]
    w.functions.append(
        helper.make_function(FUNCTIONS, name, ["x", "w"], ["y"], nodes, [helper.make_opsetid("", w.opset)])
    )
    weight = w.weight(out, size, 1, 1) if kind == "Conv" else w.weight(size, out, fan=size)
    axis = _axis(x)
    return Value(w.op(name, x.name, weight, domain=FUNCTIONS), (*x.shape[:axis], out, *x.shape[axis + 1 :]))


def branch(w: Writer, x: Value) -> Value:
    """An If on the data or on a constant; both branches read the outer scope."""
    if w.rng.random() < 0.7:
        mean = w.op("ReduceMean" if w.opset < 18 else "ReduceSum", x.name, keepdims=0)
        condition = w.op("Greater", mean, w.constant(np.float32(0.0)))
    else:
        condition = w.constant(np.array(w.rng.random() < 0.5))
    name = w.name("If")
    graphs = []
    for which in ("then", "else"):
        inner = Writer(w.opset, prefix=f"{name}_{which}_", rng=w.rng)
        end = _project(inner, x, x.shape[_axis(x)]) if which == "then" else _same(inner, x, "Tanh")
        value = helper.make_tensor_value_info(end.name, TensorProto.FLOAT, None)
        graphs.append(helper.make_graph(inner.nodes, which, [], [value], inner.weights))
    return Value(w.op("If", condition, then_branch=graphs[0], else_branch=graphs[1]), x.shape)


def loop(w: Writer, x: Value) -> Value:
    """A Loop of three rounds whose body reads a weight of the outer scope."""
    name, outer = w.name("Loop"), w.weight(x.shape[-1], x.shape[-1], fan=x.shape[-1], gain=0.7)
    inner = Writer(w.opset, prefix=f"{name}_", rng=w.rng)
    going = inner.op("Identity", f"{name}_cond")
    end = inner.op(inner.pick("Tanh", "Relu"), inner.op("MatMul", f"{name}_x", outer))
    body = helper.make_graph(
        inner.nodes,
        "body",
        [
            helper.make_tensor_value_info(f"{name}_i", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"{name}_cond", TensorProto.BOOL, []),
            helper.make_tensor_value_info(f"{name}_x", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            helper.make_tensor_value_info(end, TensorProto.FLOAT, None),
        ],
        inner.weights,
    )
    rounds, true = w.constant(np.array(3)), w.constant(np.array(True))
    return Value(w.op("Loop", rounds, true, x.name, body=body), x.shape)


def softmax(w: Writer, x: Value) -> Value:
    return _same(w, x, w.pick("Softmax", "Softmax", "LogSoftmax"), axis=_axis(x))


def scale(w: Writer, x: Value) -> Value:
    """Arithmetic with a constant, at either side."""
    shape = (x.shape[1], 1, 1) if len(x.shape) == 4 else x.shape[-1:]
    values = w.constant(w.rng.uniform(0.5, 1.5, shape if w.rng.random() < 0.6 else ()).astype(np.float32))
    kind = w.pick("Add", "Mul", "Sub", "Div")
    operands = (values, x.name) if kind in ("Add", "Mul", "Sub") and w.rng.random() < 0.3 else (x.name, values)
    return Value(w.op(kind, *operands), x.shape)


def slice_(w: Writer, x: Value) -> Value:
    axis = _axis(x)
    size = x.shape[axis]
    if size < 3:
        return _same(w, x, "Identity")
    bounds = [w.constant(np.array([each])) for each in (1, size, axis)]
    return Value(w.op("Slice", x.name, *bounds), (*x.shape[:axis], size - 1, *x.shape[axis + 1 :]))


_ANY: list[tuple[float, Step]] = [
    (3, activation), (2, norm), (2, residual), (1.5, concat), (1.5, split), (1, cast), (0.7, weight_cast),
    (0.7, function), (0.7, branch), (0.5, softmax), (1, scale), (0.5, slice_),
]  # fmt: skip
STEPS: dict[int, list[tuple[float, Step]]] = {
    4: [*_ANY, (6, conv), (0.7, conv_transpose), (1, pool), (1, resize), (0.4, pad), (0.7, excite), (0.7, shuffle),
        (0.6, to_flat), (0.5, to_sequence)],
    3: [*_ANY, (3, dense), (3, attention), (1.5, recurrence), (0.5, average), (0.3, last), (0.5, loop)],
    2: [*_ANY, (4, dense), (0.5, loop)],
}  # fmt: skip
