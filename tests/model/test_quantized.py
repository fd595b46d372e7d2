"""Models that hold quantised values: what stays as it is, what is folded, and that neither changes an answer."""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from taglio.model.graph import Graph, build
from taglio.model.load import Model, load
from taglio.model.quantized import already_quantized, quantized_operators
from taglio.notes import Kind, Note
from taglio.quantize.precision import Precision
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges, calibrate
from taglio.quantize.scheme import DEFAULT_SCHEME
from tests.answers import answers, distance
from tests.models import conv_relu_chain, feeds, loaded, parsed, residual, saved

ODD = {"x": np.array([-1, 2, -3, -99], np.float32)}


def prepared(proto: onnx.ModelProto, folder: Path) -> tuple[Model, Graph, Ranges, list[dict[str, np.ndarray]]]:
    model = loaded(proto, folder)
    data = feeds(model, 4)
    return model, build(model), calibrate(model, data), [dict(sample) for sample in data.samples]


def in_int8(model: Model, graph: Graph, ranges: Ranges, names: list[str]) -> onnx.ModelProto:
    precision = Precision("int8", DEFAULT_SCHEME, "whole")
    return QdqBuilder(model, graph, ranges).build(dict.fromkeys(names, precision))


def test_what_taglio_quantised_is_read_again_kept_and_built_on(tmp_path: Path) -> None:
    """Names that taglio wrote, pairs beside new pairs, and the same answers."""
    model, graph, ranges, inputs = prepared(conv_relu_chain(), tmp_path)
    names = [block.name for block in graph.candidates()]
    half = in_int8(model, graph, ranges, names[: len(names) // 2])
    reread, blocks, its_ranges, _ = prepared(half, tmp_path)
    assert quantized_operators(reread.proto) == quantized_operators(half)
    assert already_quantized(half) and not already_quantized(model.proto)
    reasons = {block.refusal for block in blocks.blocks}
    assert "already quantised" in reasons
    left = [block.name for block in blocks.candidates()]
    assert left
    kept = QdqBuilder(reread, blocks, its_ranges).build({})
    np.testing.assert_array_equal(answers(kept, inputs[0]), answers(half, inputs[0]))
    both = in_int8(reread, blocks, its_ranges, left)
    assert distance(answers(half, inputs[0]), answers(both, inputs[0])) < 0.1


@pytest.mark.parametrize("make", [conv_relu_chain, residual])
def test_pairs_are_folded_to_float(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model, graph, ranges, inputs = prepared(make(), tmp_path)
    quantized = in_int8(model, graph, ranges, [block.name for block in graph.candidates()])
    folded = load(saved(quantized, tmp_path, "folded"), requantize=True)
    assert not quantized_operators(folded.proto)
    assert build(folded).candidates()
    assert folded.sha256 != load(saved(quantized, tmp_path, "folded")).sha256
    for feed in inputs:
        assert distance(answers(model.proto, feed), answers(folded.proto, feed)) < 0.05


def test_pairs_in_functions_and_without_a_zero_point_are_folded(tmp_path: Path) -> None:
    """Without a zero point QuantizeLinear writes uint8 from 0 up: it clips, as a Relu does."""
    proto = parsed(
        """(float[4] x) => (float[4] y) <float scale = {0.1}> {
            n = Neg (x)
            d = own.Pair (n, scale)
            y = Neg (d)
        }
        <domain: "own", opset_import: ["": 17]>
        Pair (a, s) => (b) {
            q = QuantizeLinear (a, s)
            b = DequantizeLinear (q, s)
        }""",
        imports='"": 17, "own": 1',
    )
    folded = load(saved(proto, tmp_path), requantize=True)
    assert not quantized_operators(folded.proto)
    np.testing.assert_allclose(answers(folded.proto, ODD)[0], [-1, 0, -3, -25.5])


class Inputs(CalibrationDataReader):  # type: ignore[misc]
    """Calibration inputs, as ONNX Runtime's quantiser takes them."""

    def __init__(self, inputs: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._left = iter(inputs)

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self._left, None)


def test_integer_operators_are_folded_to_float(tmp_path: Path) -> None:
    model, _, _, inputs = prepared(residual(), tmp_path)
    quantize_static(
        saved(model.proto, tmp_path, "float"),
        tmp_path / "q.onnx",
        Inputs(inputs),
        QuantFormat.QOperator,
        reduce_range=True,
    )
    proto = onnx.load(tmp_path / "q.onnx")
    kept = load(saved(proto, tmp_path, "kept"))
    assert any(kind.startswith("QLinear") for kind in quantized_operators(kept.proto))
    np.testing.assert_array_equal(answers(kept.proto, inputs[0]), answers(proto, inputs[0]))
    folded = load(saved(proto, tmp_path, "folded"), requantize=True)
    assert not quantized_operators(folded.proto)
    assert distance(answers(model.proto, inputs[0]), answers(folded.proto, inputs[0])) < 0.05


def test_dynamic_products_are_kept_or_folded(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    text = "(float[4, 8] x) => (float[4, 8] y) { m = MatMul (x, w) r = Relu (m) y = MatMul (r, v) }"
    float_proto = parsed(text, {name: rng.normal(0, 1, (8, 8)) for name in "wv"}, '"": 17')
    model, _, _, inputs = prepared(float_proto, tmp_path)
    quantize_dynamic(model.proto, tmp_path / "q.onnx", reduce_range=True)
    proto = onnx.load(tmp_path / "q.onnx")
    kept = load(saved(proto, tmp_path, "kept"))
    assert not any("MatMulInteger" in block.kind and block.quantizable for block in build(kept).blocks)
    assert all("quantised" in block.refusal for block in build(kept).blocks if block.kind in ("Cast", "Mul"))
    folded = load(saved(proto, tmp_path, "folded"), requantize=True)
    assert not quantized_operators(folded.proto)
    assert distance(answers(model.proto, inputs[0]), answers(folded.proto, inputs[0])) < 0.05


def test_weights_in_blocks_are_kept(tmp_path: Path) -> None:
    """MatMulNBits and GatherBlockQuantized, as language models have them."""
    rng = np.random.default_rng(5)
    proto = parsed(
        """(int64[batch, 6] ids) => (float[batch, 6, 16] y) {
            x = com.microsoft.GatherBlockQuantized <gather_axis = 0, quantize_axis = 1, block_size = 16> (t, ids, ts)
            y = com.microsoft.MatMulNBits <K = 32, N = 16, bits = 4, block_size = 16>
                (x, w, ws, wz, , bias)
        }""",
        {
            "ts": rng.uniform(0.1, 0.2, (20, 2)).astype(np.float32),
            "w": rng.integers(0, 256, (16, 2, 8), dtype=np.uint8),
            "ws": rng.uniform(0.1, 0.2, (16, 2)).astype(np.float32),
            "wz": rng.integers(0, 256, (16, 1), dtype=np.uint8),
            "bias": rng.normal(size=16).astype(np.float32),
        },
    )
    table = helper.make_tensor("t", TensorProto.UINT4, (20, 32), rng.integers(0, 16, 640).tolist())
    proto.graph.initializer.append(table)
    kept, requantized = load(saved(proto, tmp_path)), load(saved(proto, tmp_path), requantize=True)
    for model in (kept, requantized):
        assert quantized_operators(model.proto) == {"GatherBlockQuantized": 1, "MatMulNBits": 1}
    feed = {"ids": rng.integers(0, 20, (2, 6))}
    assert distance(answers(kept.proto, feed), answers(requantized.proto, feed)) == 0.0


def test_an_embedding_in_int8_is_folded_once(tmp_path: Path) -> None:
    """Dynamic quantisation leaves Gather of int8 rows, which are then dequantised, here for two readers."""
    rng = np.random.default_rng(7)
    proto = parsed(
        """(int64[batch, 5] ids) => (float[batch, 5, 8] y, float[batch, 5, 8] z) {
            rows = Gather (table, ids)
            y = DequantizeLinear (rows, scale, zero)
            again = DequantizeLinear (rows, scale, zero)
            z = Relu (again)
        }""",
        {
            "table": rng.integers(-99, 99, (20, 8)).astype(np.int8), "scale": np.float32(0.1), "zero": np.int8(3),
        },
    )  # fmt: skip
    kept = load(saved(proto, tmp_path, "kept"))
    folded = load(saved(proto, tmp_path, "folded"), requantize=True)
    assert not quantized_operators(folded.proto) and not already_quantized(folded.proto, requantized=True)
    assert already_quantized(kept.proto, requantized=True) == (
        Note(
            Kind.FACT,
            "quantised operators without a known float form stay: "
            f"{quantized_operators(kept.proto)['DequantizeLinear']} DequantizeLinear",
        ),
    )
    assert sum(prod(tensor.dims) == 160 for tensor in folded.proto.graph.initializer) == 1
    feed = {"ids": rng.integers(0, 20, (2, 5))}
    np.testing.assert_array_equal(answers(kept.proto, feed), answers(folded.proto, feed))


@pytest.mark.parametrize("ends", [", ys, yz", ""], ids=["int8", "float"])
def test_an_integer_gemm_and_softmax_are_folded_to_float(ends: str, tmp_path: Path) -> None:
    """QGemm may write float itself."""
    rng = np.random.default_rng(6)
    names = "ys, yz" if ends else "xs, xz"
    between = "z = Identity (g)" if ends else "z = QuantizeLinear (g, xs, xz)"
    proto = parsed(
        f"""(float[batch, 8] x) => (float[batch, 4] y) {{
            q = QuantizeLinear (x, xs, xz)
            g = com.microsoft.QGemm <transB = 1> (q, xs, xz, w, ws, wz, bias{ends})
            {between}
            p = com.microsoft.QLinearSoftmax <axis = -1, opset = 17> (z, {names}, ps, xz)
            y = DequantizeLinear (p, ps, xz)
        }}""",
        {
            "xs": np.float32(0.02), "xz": np.uint8(128), "ys": np.float32(0.02), "yz": np.uint8(120),
            "ps": np.float32(1 / 127), "w": rng.integers(-30, 30, (4, 8)).astype(np.int8),
            "ws": rng.uniform(0.01, 0.03, 4).astype(np.float32), "wz": np.zeros(4, np.int8),
            "bias": rng.integers(-900, 900, 4).astype(np.int32),
        },
    )  # fmt: skip
    kept = load(saved(proto, tmp_path, "kept"))
    folded = load(saved(proto, tmp_path, "folded"), requantize=True)
    assert quantized_operators(kept.proto)["QGemm"] == 1 and not quantized_operators(folded.proto)
    feed = {"x": rng.normal(size=(3, 8)).astype(np.float32)}
    assert distance(answers(kept.proto, feed), answers(folded.proto, feed)) < 0.02


def test_a_folded_relu_comes_back_before_opset_11(tmp_path: Path) -> None:
    """The limits of Clip are attributes there: ONNX Runtime refused the model."""
    proto = parsed(
        """(float[4] x) => (float[4] y) {
            q = QuantizeLinear (x, scale, zero)
            y = DequantizeLinear (q, scale, zero)
        }""",
        {"scale": np.float32(0.1), "zero": np.uint8(0)},
        imports='"": 10',
    )
    folded = load(saved(proto, tmp_path), requantize=True)
    np.testing.assert_allclose(answers(folded.proto, {"x": np.array([-1, 2, 3, 99], np.float32)})[0], [0, 2, 3, 25.5])


def test_dynamic_products_before_opset_11_are_folded(tmp_path: Path) -> None:
    """Their scale is computed by several operators."""
    rng = np.random.default_rng(4)
    proto = parsed(
        """(float[2, 8] x) => (float[2, 4] y) {
            low = ReduceMin <keepdims = 0> (x)
            high = ReduceMax <keepdims = 0> (x)
            span = Sub (high, low)
            scale = Div (span, steps)
            below = Div (low, scale)
            above = Sub (origin, below)
            zero = Cast <to = 2> (above)
            q = QuantizeLinear (x, scale, zero)
            integers = MatMulInteger (q, w, zero, wz)
            product = Cast <to = 1> (integers)
            both = Mul (scale, ws)
            y = Mul (product, both)
        }""",
        {
            "steps": np.float32(255), "origin": np.float32(0), "w": rng.integers(0, 255, (8, 4)).astype(np.uint8),
            "wz": np.uint8(120), "ws": np.float32(0.01),
        },
        imports='"": 10',
    )  # fmt: skip
    kept = load(saved(proto, tmp_path, "kept"))
    folded = load(saved(proto, tmp_path, "folded"), requantize=True)
    assert quantized_operators(kept.proto) == {"QuantizeLinear": 1, "MatMulInteger": 1}
    assert {node.op_type for node in folded.proto.graph.node} <= {"MatMul", "Mul"}
    feed = {"x": rng.normal(size=(2, 8)).astype(np.float32)}
    assert distance(answers(kept.proto, feed), answers(folded.proto, feed)) < 0.02


def test_quantised_operators_in_subgraphs_are_kept(tmp_path: Path) -> None:
    """Also beside a node that is written behind the If that reads it, as ONNX Runtime's tools do."""
    proto = parsed(
        """(bool flag, float[4] x) => (float[4] y) {
            y = If (flag) <
                then_branch = t () => (float[4] a) {
                    q = QuantizeLinear (x, scale)
                    r = DequantizeLinear (q, scale)
                    v = DequantizeLinear (w, scale)
                    a = Add (r, v)
                },
                else_branch = e () => (float[4] b) { b = Identity (late) }
            >
            late = Relu (x)
        }""",
        {"scale": np.float32(0.1), "w": np.arange(4, dtype=np.uint8)},
    )
    kept, requantized = load(saved(proto, tmp_path)), load(saved(proto, tmp_path), requantize=True)
    for flag in (True, False):
        feed = {"flag": np.array(flag), "x": np.array([-1, 2, 3, 99], np.float32)}
        np.testing.assert_array_equal(answers(kept.proto, feed), answers(requantized.proto, feed))
    for model in (kept, requantized):
        assert quantized_operators(model.proto).keys() == {"QuantizeLinear", "DequantizeLinear"}


def test_weights_in_float16_are_constants(tmp_path: Path) -> None:
    """ONNX Runtime casts them for operators without a float16 kernel, which left no Conv with an int8 form."""
    proto = conv_relu_chain()
    del proto.graph.value_info[:]
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    model = load(saved(proto, tmp_path))
    reasons = {block.anchor: block.refusal for block in build(model).blocks}
    assert not reasons["Conv"]
    assert "weights" not in " ".join(reasons.values())
    feed = {"x": np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float16)}
    np.testing.assert_array_equal(answers(proto, feed), answers(model.proto, feed))
