"""Tiny synthetic ONNX models, one builder per structure that matters. Weights are random with a fixed seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from taglio.data.dataset import Dataset, assemble
from taglio.model.inputs import random_feed
from taglio.model.load import Model, load
from taglio.quantize.scheme import Scheme, parse_scheme
from taglio.runtimes.processor import instructions, sums_saturate


def digits_model() -> Path:
    """The embedded network before `training/digits.py` scales its channels apart: the same to the bit in float, and one
    that int8 disturbs as it does most trained networks."""
    return Path(__file__).with_name("digits.onnx")


def initializer(values: object, name: str) -> onnx.TensorProto:
    """A constant of a graph; Python floats become float32."""
    array = np.asarray(values)
    return numpy_helper.from_array(array.astype(np.float32) if array.dtype == np.float64 else array, name)


def parsed(
    text: str, constants: Mapping[str, object] | None = None, imports: str = '"": 17, "com.microsoft": 1'
) -> onnx.ModelProto:
    """A model in ONNX's own notation, `(float[1, 4] x) => (float[1, 4] y) { [name] y = Relu (x) }`. `constants` holds
    values that the notation cannot write, by name; local functions follow the graph."""
    proto = onnx.parser.parse_model(f"<ir_version: 9, opset_import: [{imports}]> tiny {text}")
    proto.graph.initializer.extend(initializer(values, name) for name, values in (constants or {}).items())
    return proto


class Sketch:
    """Writes a graph operator by operator: every method returns the name of the tensor that it adds."""

    def __init__(self, seed: int = 0, opset: int = 17) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def input(self, name: str, *shape: int | str) -> str:
        """A float32 model input; a string is a dynamic dimension."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def constant(self, values: object, name: str = "") -> str:
        """An initialiser; Python floats become float32."""
        self.initializers.append(initializer(values, name or f"w{len(self.initializers)}"))
        return self.initializers[-1].name

    def weight(self, *shape: int, gain: float = 1.0) -> str:
        """Random weights that keep the variance of what they multiply, a different scale per output channel."""
        fan = max(int(np.prod(shape[1:])), 1)
        spread = self.rng.uniform(0.5, 1.5, (shape[0],) + (1,) * (len(shape) - 1))
        return self.constant(self.rng.normal(0, gain / np.sqrt(fan), shape) * spread)

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """One operator, named after its type and position; its first output."""
        name = f"{kind.lower()}{len(self.nodes)}"
        names = [f"{name}_out" if i == 0 else f"{name}_out{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names[0]

    def conv(self, source: str, fan_in: int, fan_out: int, kernel: int = 3, group: int = 1, bias: bool = True) -> str:
        """A Conv of stride 1 that keeps height and width."""
        weights = [self.weight(fan_out, fan_in // group, kernel, kernel)]
        weights += [self.constant(self.rng.normal(0, 0.2, fan_out))] if bias else []
        return self.op("Conv", source, *weights, pads=[kernel // 2] * 4, group=group)

    def rename(self, old: str, new: str) -> str:
        """Give a tensor the name that a model output should have."""
        for node in self.nodes:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
        return new

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The finished model; ONNX infers the shapes of `outputs`."""
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "tiny", self.inputs, infos, self.initializers)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        return onnx.shape_inference.infer_shapes(proto)


def conv_relu_chain() -> onnx.ModelProto:
    """Conv+Relu, Conv+Clip(0, 6), Conv without bias and Conv+LeakyRelu in a row."""
    g = Sketch(1)
    x = g.op("Relu", g.conv(g.input("x", 1, 3, 8, 8), 3, 8))
    x = g.op("Clip", g.conv(x, 8, 10), g.constant(0.0), g.constant(6.0))
    x = g.conv(x, 10, 12, bias=False)
    x = g.op("LeakyRelu", g.conv(x, 12, 4, 1), alpha=0.1)
    return g.model(g.rename(x, "y"))


def branching() -> onnx.ModelProto:
    """An If whose two bodies hold four floats each."""
    return parsed("""(float[1, 4] x) => (float[1, 4] y) <float zero = {0.0}> {
        sum = ReduceSum <keepdims = 0> (x)
        positive = Greater (sum, zero)
        [if] y = If (positive) <
            then_branch = larger () => (float[1, 4] a) <float[4] w = {1.0, 2.0, 3.0, 4.0}> { a = Mul (x, w) },
            else_branch = smaller () => (float[1, 4] b) <float[4] v = {1.0, 2.0, 3.0, 4.0}> { b = Add (x, v) }
        >
    }""")


def residual(rows: int | str = 1) -> onnx.ModelProto:
    """Two residual Adds, one followed by a Relu of its own, one that is the model's output."""
    g = Sketch(2)
    x = g.op("Relu", g.conv(g.input("x", rows, 4, 8, 8), 4, 8))
    y = g.conv(g.op("Relu", g.conv(x, 8, 8)), 8, 8)
    x = g.op("Relu", g.op("Add", x, y))
    y = g.conv(g.op("Relu", g.conv(x, 8, 8, 1)), 8, 8)
    return g.model(g.rename(g.op("Add", y, x), "y"))


def stage(size: int = 9) -> onnx.ModelProto:
    """A residual block behind which two 1×1 convolutions with strides read every other row and column."""
    g = Sketch(9)
    x = g.op("Relu", g.conv(g.input("x", 1, 3, size, size), 3, 8))
    y = g.op("Relu", g.conv(g.op("Relu", g.conv(x, 8, 6, 1)), 6, 6))
    x = g.op("Relu", g.op("Add", g.conv(y, 6, 8, 1), x))
    left, right = (g.op("Conv", x, g.weight(12, 8, 1, 1), strides=[2, 2]) for _ in range(2))
    return g.model(g.rename(g.op("Add", g.conv(g.op("Relu", left), 12, 12), right), "y"))


def silu(opset: int = 17) -> onnx.ModelProto:
    """x·sigmoid(x) behind two convolutions, the second feeding a residual Add and a squeeze-and-excite product."""
    g = Sketch(3, opset)
    x = g.conv(g.input("x", 1, 3, 8, 8), 3, 8)
    x = g.op("Mul", x, g.op("Sigmoid", x))
    z = g.conv(x, 8, 8)
    z = g.op("Add", g.op("Mul", z, g.op("Sigmoid", z)), x)
    gate = g.op("Sigmoid", g.conv(g.op("GlobalAveragePool", z), 8, 8, 1))
    return g.model(g.rename(g.op("Mul", z, gate), "y"))


def depthwise() -> onnx.ModelProto:
    """An inverted bottleneck: 1×1, depthwise 3×3 with Clip(0, 6), 1×1, residual."""
    g = Sketch(4)
    x = g.conv(g.input("x", 1, 6, 9, 9), 6, 6)
    y = g.op("Clip", g.conv(x, 6, 24, 1), g.constant(0.0), g.constant(6.0))
    y = g.op("Clip", g.conv(y, 24, 24, group=24), g.constant(0.0), g.constant(6.0))
    return g.model(g.rename(g.op("Add", g.conv(y, 24, 6, 1), x), "y"))


def pyramid() -> onnx.ModelProto:
    """MaxPool, Resize and Concat of tensors of unlike range, a Split, a Transpose and a Reshape."""
    g = Sketch(5)
    x = g.op("Relu", g.conv(g.input("x", 1, 3, 8, 8), 3, 8))
    down = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    down = g.conv(down, 8, 6)
    up = g.op(
        "Resize", down, "", g.constant([1.0, 1.0, 2.0, 2.0]), mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip
    both = g.op("Concat", up, x, axis=1)
    left = g.op("Split", both, g.constant(np.array([6, 8])), axis=1, outputs=2)
    right = left + "1"
    y = g.op("Concat", g.conv(left, 6, 4, 1), g.conv(right, 8, 4, 1), axis=1)
    y = g.op("Transpose", y, perm=[0, 2, 3, 1])
    return g.model(g.rename(g.op("Reshape", y, g.constant(np.array([1, 64, 8]))), "y"))


def dense() -> onnx.ModelProto:
    """MatMul+Add, a MatMul of two activations, a Gemm of either orientation and a Gemm with Relu."""
    g = Sketch(6)
    x = g.input("x", 1, 6, 16)
    q = g.op("Add", g.op("MatMul", x, g.weight(16, 12)), g.constant(g.rng.normal(0, 0.2, 12)))
    k = g.op("MatMul", x, g.weight(16, 12))
    x = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1]))
    x = g.op("Reshape", x, g.constant(np.array([1, 36])))
    x = g.op("Relu", g.op("Gemm", x, g.weight(20, 36), g.constant(g.rng.normal(0, 0.2, 20)), transB=1))
    return g.model(g.rename(g.op("Gemm", x, g.weight(20, 7), g.constant(g.rng.normal(0, 0.2, 7))), "y"))


def conv_transpose() -> onnx.ModelProto:
    """A ConvTranspose, which has no int8 form here, between two convolutions."""
    g = Sketch(7)
    x = g.op("Relu", g.conv(g.input("x", 1, 3, 6, 6), 3, 8))
    x = g.op("ConvTranspose", x, g.weight(8, 5, 2, 2), g.constant(g.rng.normal(0, 0.2, 5)), strides=[2, 2])
    return g.model(g.rename(g.conv(x, 5, 4), "y"))


def softmax_sandwich() -> onnx.ModelProto:
    """MatMul, Softmax, MatMul: attention, whose Softmax must stay float between int8 neighbours."""
    g = Sketch(8)
    x = g.input("x", 1, 6, 16)
    q, k, v = (g.op("MatMul", x, g.weight(16, 8, gain=2.0)) for _ in range(3))
    p = g.op("Softmax", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
    x = g.op("MatMul", p, v)
    return g.model(g.rename(g.op("MatMul", x, g.weight(8, 5)), "y"))


def two_in_two_out() -> onnx.ModelProto:
    """Two inputs joined by an Add; one output is read inside the model too, the other ends it."""
    g = Sketch(9)
    a = g.op("Relu", g.conv(g.input("left", 1, 3, 8, 8), 3, 8))
    b = g.conv(g.input("right", 1, 2, 8, 8), 2, 8)
    middle = g.rename(g.op("Relu", g.conv(g.op("Add", a, b), 8, 6)), "middle")
    return g.model(middle, g.rename(g.conv(middle, 6, 3), "end"))


def messy() -> onnx.ModelProto:
    """Opset 9, IR 3, initialisers listed as inputs, nameless nodes, an unfolded BatchNormalization, a dead node."""
    g = Sketch(10, opset=9)
    x = g.op("Conv", g.input("x", 1, 3, 8, 8), g.weight(8, 3, 3, 3), pads=[1, 1, 1, 1])
    statistics = [g.constant(g.rng.uniform(0.5, 1.5, 8)) for _ in range(4)]
    x = g.op("Relu", g.op("BatchNormalization", x, *statistics, epsilon=1e-5))
    g.op("Sigmoid", x)
    x = g.op("Reshape", g.op("GlobalAveragePool", x), g.constant(np.array([1, -1])))
    proto = g.model(g.rename(g.op("Gemm", x, g.weight(8, 5), g.constant(np.zeros(5))), "y"))
    proto.ir_version = 3
    for node in proto.graph.node:
        node.name = ""
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return proto


# Every model that the quantisation tests run over.
TINY = {
    builder.__name__: builder
    for builder in (
        conv_relu_chain, residual, stage, silu, depthwise, pyramid, dense, conv_transpose, softmax_sandwich,
        two_in_two_out, messy,
    )
}  # fmt: skip


def saved(proto: onnx.ModelProto, folder: Path, name: str = "tiny") -> Path:
    """Write `proto` below `folder` and return the path."""
    path = folder / f"{name}.onnx"
    onnx.save(proto, path)
    return path


_LOADED: dict[bytes, Model] = {}


def loaded(proto: onnx.ModelProto, folder: Path) -> Model:
    """`proto` through taglio's own reading, checks and simplification: once, since a model is never modified."""
    path, content = saved(proto, folder), proto.SerializeToString()
    if content not in _LOADED:
        _LOADED[content] = load(path)
    return _LOADED[content]


def feeds(model: Model, count: int, seed: int = 0) -> Dataset:
    """`count` standard-normal samples as a dataset."""
    samples: Sequence[dict[str, np.ndarray]] = [random_feed(model.inputs, seed * 1000 + i) for i in range(count)]
    return assemble("random", samples, [str(i) for i in range(count)], None)


def exact(text: str = "u8s8-asym-pc") -> Scheme:
    """The scheme, with weights of 7 bits where this processor's int8 sums saturate: kernels that add in another order
    would not agree there."""
    scheme = parse_scheme(text)
    return scheme.narrow if sums_saturate(instructions()) else scheme
