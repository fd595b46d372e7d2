"""Models that hold quantised values: what stays as it is, what is folded, and that neither changes an answer."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

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
    precision = Precision("int8", DEFAULT_SCHEME)
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


def test_dynamic_products_are_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    text = "(float[4, 8] x) => (float[4, 8] y) { m = MatMul (x, w) r = Relu (m) y = MatMul (r, v) }"
    float_proto = parsed(text, {name: rng.normal(0, 1, (8, 8)) for name in "wv"}, '"": 17')
    quantize_dynamic(float_proto, tmp_path / "q.onnx", reduce_range=True)
    proto = onnx.load(tmp_path / "q.onnx")
    kept, requantized = load(saved(proto, tmp_path)), load(saved(proto, tmp_path), requantize=True)
    assert quantized_operators(kept.proto) == quantized_operators(requantized.proto)
    assert not any("MatMulInteger" in block.kind and block.quantizable for block in build(kept).blocks)
    assert all("quantised" in block.refusal for block in build(kept).blocks if block.kind in ("Cast", "Mul"))
    assert "--requantize" not in already_quantized(kept.proto)[0].text
    left = "quantised operators that were not folded to float stay: 2 DynamicQuantizeLinear, 2 MatMulInteger"
    assert already_quantized(requantized.proto, requantized=True) == (Note(Kind.FACT, left),)


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
