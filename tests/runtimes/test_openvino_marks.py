"""Single operators stay in float32 where OpenVINO computes the others in bfloat16."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from taglio.runtimes import openvino
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.openvino import open_session as open_openvino
from taglio.runtimes.openvino_marks import MarkedModel, note_precision
from tests.models import Sketch, saved
from tests.processor import needs_bfloat16

pytestmark = needs_bfloat16


def noted(path: Path, bfloat16: Sequence[str]) -> Path:
    """The model at `path` with the note that only `bfloat16` is computed so."""
    proto = onnx.load(path)
    tensors = [name for node in proto.graph.node for name in node.output]
    note_precision(proto, [name for name in tensors if name not in bfloat16])
    copy = path.with_name("noted.onnx")
    onnx.save(proto, copy)
    return copy


Act = Callable[[Sketch, str], str]


def network(folder: Path, act: Act, *, residual: bool = False) -> tuple[Path, list[str]]:
    """A convolution, another that may add the first's values to its own, what `act` makes of that, and a convolution or
    product behind it; and the tensors that the first computes."""
    g = Sketch(4, opset=20)
    computed = g.conv(g.input("x", 1, 16, 12, 12), 16, 16)
    first = g.op("Relu", computed)
    second = g.conv(first, 16, 16)
    second = g.op("Add", second, first) if residual else second
    return saved(g.model(g.rename(act(g, second), "y")), folder), [computed, first]


def distance(path: Path, *bfloat16: str) -> float:
    """How far the answers with these tensors in bfloat16 are from those of float32."""
    sample = {"x": np.random.default_rng(0).standard_normal((1, 16, 12, 12)).astype(np.float32)}
    (wanted,) = open_session(path, SessionOptions(1)).run(None, sample)
    (answer,) = open_openvino(noted(path, bfloat16), SessionOptions(1)).run(None, sample)
    return float(np.linalg.norm(answer - wanted) / np.linalg.norm(wanted))


def then(kind: str, **attributes: Any) -> Act:
    """An operator and a convolution."""
    return lambda g, source: g.conv(g.op(kind, source, **attributes), 16, 16)


def product(g: Sketch, source: str) -> str:
    """Two products with a bias and an activation between them."""
    flat = g.op("Reshape", source, g.constant(np.array([1, 16, 144])))
    hidden = g.op("Gelu", g.op("Add", g.op("MatMul", flat, g.weight(144, 48)), g.weight(48)))
    return g.op("MatMul", hidden, g.weight(48, 8))


def swish(g: Sketch, source: str) -> str:
    """x sigmoid(x), and a convolution."""
    return g.conv(g.op("Mul", source, g.op("Sigmoid", source)), 16, 16)


def padding(g: Sketch, source: str) -> str:
    """A reflected border, and a convolution."""
    pads = g.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    return g.conv(g.op("Pad", g.op("Sqrt", g.op("Abs", source)), pads, mode="reflect"), 16, 16)


def computed_padding(g: Sketch, source: str) -> str:
    """A reflected border of a computed width, and a convolution."""
    sign = g.op("Cast", g.op("Sign", g.op("Exp", source)), to=onnx.TensorProto.INT64)
    one = g.op("Unsqueeze", g.op("ReduceMax", sign, keepdims=0), g.constant(np.array([0])))
    pads = g.op("Mul", one, g.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])))
    return g.conv(g.op("Pad", g.op("Sqrt", g.op("Abs", source)), pads, mode="reflect"), 16, 16)


def difference(g: Sketch, source: str) -> str:
    """A product less another, and a product of that."""
    flat = g.op("Reshape", source, g.constant(np.array([16, 144])))
    one, other = (g.op("MatMul", flat, g.weight(144, 48)) for _ in range(2))
    return g.op("MatMul", g.op("Sub", one, other), g.weight(48, 8))


def moved(g: Sketch, source: str) -> str:
    """Activations of what was moved, and numbers by which they are multiplied, one for each channel or for all."""
    last = g.op("Transpose", g.op("Abs", source), perm=[0, 2, 3, 1])
    values = g.op("MatMul", g.op("Gelu", g.op("Mul", last, g.weight(16))), g.weight(16, 8))
    rows = g.op("Reshape", values, g.constant(np.array([9, 128])))
    return g.op("Sqrt", g.op("Abs", g.op("Mul", rows, g.constant([[[0.3]]]))))


KEPT = {
    "activation": then("Relu"),
    "hard activation": then("HardSwish"),
    "softmax": then("Softmax", axis=-1),
    "pool": then("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "padding": padding,
    "computed padding": computed_padding,
    "difference": difference,
    "moved": moved,
    "swish": swish,
    "product": product,
}


@pytest.mark.parametrize("act", KEPT)
def test_what_is_not_named_stays_in_float32(act: str, tmp_path: Path) -> None:
    path, first = network(tmp_path, KEPT[act])
    assert distance(path) < 1e-6
    assert 1e-4 < distance(path, *first) < 0.02


@pytest.mark.parametrize("act", ["activation", "hard activation", "pool", "product"])
def test_a_residual_stays_in_float32_with_all_that_is_fused(act: str, tmp_path: Path) -> None:
    path, first = network(tmp_path, KEPT[act], residual=True)
    assert distance(path) < 1e-6
    assert 1e-4 < distance(path, *first) < 0.02


def test_a_residual_before_an_activation_that_loses_its_mark_is_in_bfloat16(tmp_path: Path) -> None:
    """Otherwise OpenVINO fails, or converts."""
    path, _ = network(tmp_path, swish, residual=True)
    assert 1e-4 < distance(path) < 0.02


def test_names_with_commas(tmp_path: Path) -> None:
    g = Sketch(4)
    first = g.rename(g.conv(g.input("x", 1, 16, 12, 12), 16, 16), "a, b")
    path = saved(g.model(g.rename(g.conv(first, 16, 16), "y")), tmp_path)
    assert distance(path) < 1e-6
    assert 1e-4 < distance(path, "a, b") < 0.02


@pytest.mark.parametrize("named", [0, 1])
def test_a_sum_that_is_not_named_is_in_float32_with_the_convolutions_it_adds(named: int, tmp_path: Path) -> None:
    """OpenVINO adds in place: with one of them in bfloat16 before int8 it leaves a size that is not known unset."""
    g = Sketch(4)
    x = g.input("x", 1, 16, 12, "width")
    ends = [g.conv(g.op(kind, x), 16, 16) for kind in ("Relu", "Abs")]
    scale, zero = g.constant(0.05), g.constant(np.array(128, np.uint8))
    pair = g.op("DequantizeLinear", g.op("QuantizeLinear", g.op("Add", *ends), scale, zero), scale, zero)
    weights = g.op(
        "DequantizeLinear", g.constant(g.rng.integers(-99, 99, (16, 16, 3, 3)).astype(np.int8)), g.constant(0.01)
    )
    y = g.rename(g.op("Conv", pair, weights, pads=[1] * 4), "y")
    assert distance(saved(g.model(y), tmp_path), ends[named]) < 0.005


@pytest.mark.parametrize(
    ("width", "int8", "behind"), [("width", True, "Clamp"), (12, True, "Add"), ("width", False, "Add")]
)
def test_beside_int8_no_convolution_of_unknown_size_adds_in_place(
    width: str | int, int8: bool, behind: str, tmp_path: Path
) -> None:
    """Sums lose their marks there. A table reader's network of 70 blocks then answered nothing, or crashed the process
    after a few models."""
    g = Sketch(4)
    x = g.input("x", 1, 16, 12, width)
    ends = [g.conv(g.op(kind, x), 16, 16) for kind in ("Relu", "Abs")]
    total = g.op("Add", *ends)
    if int8:
        scale, zero = g.constant(0.05), g.constant(np.array(128, np.uint8))
        total = g.op("DequantizeLinear", g.op("QuantizeLinear", total, scale, zero), scale, zero)
    path = saved(g.model(g.rename(g.conv(total, 16, 16), "y")), tmp_path)
    read = MarkedModel(openvino._core(), path, tmp_path).read()
    sums = [
        [source.get_node().get_type_name() for source in node.input_values()]
        for node in read.get_ordered_ops()
        if node.get_type_name() == "Add"
    ]
    assert [behind, behind] in sums
