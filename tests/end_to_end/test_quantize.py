"""One ONNX file quantised as it was told to be, with no plan."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from taglio.compare.float16 import float16
from taglio.flow.quantize import default_scheme
from taglio.model.graph import build
from taglio.model.load import load
from taglio.runtimes.processor import instructions, sums_saturate
from tests.end_to_end.command import SCHEME, Case, refused, taglio
from tests.end_to_end.independent import DIGITS, difference, held_out, session
from tests.models import dense, parsed, saved

# `quantize` measures its error on so many of the held-out samples.
MEASURED = 16


def types_in(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


def numbers_in(path: Path) -> set[int]:
    return {tensor.data_type for tensor in onnx.load(path).graph.initializer}


@pytest.mark.parametrize(
    ("options", "operators", "numbers"),
    [
        (("--scheme", SCHEME), {"QuantizeLinear", "DequantizeLinear"}, {TensorProto.UINT8, TensorProto.INT8}),
        (("--scheme", "qdq-s8s8-sym-pc-rr"), {"QuantizeLinear", "DequantizeLinear"}, {TensorProto.INT8}),
        (("--method", "float16"), {"Cast"}, {TensorProto.FLOAT16}),
    ],
    ids=["qdq", "qdq s8s8", "float16"],
)
def test_quantize_in_every_form(
    options: Sequence[str],
    operators: set[str],
    numbers: set[int],
    few_digits: Case,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = tmp_path / "quantized.onnx"
    printed = taglio("quantize", *few_digits.arguments(), *options, "-o", made, "--json").json()
    assert operators <= types_in(made)
    assert numbers <= numbers_in(made)
    assert printed["path"] == str(made)
    assert printed["size_bytes"] == made.stat().st_size < 0.75 * printed["float_size_bytes"]
    samples = held_out(few_digits, DIGITS).held_out.samples[:MEASURED]
    computed = made
    if "float16" in options:  # ONNX Runtime computes most of it in float32 on a CPU
        model = load(few_digits.model)
        graph = build(model)
        rounded = float16(model, graph, [block.name for block in graph.candidates()], rounded=True)
        onnx.save(rounded, computed := tmp_path_factory.mktemp("rounded") / "float16.onnx")
    assert printed["error"] == pytest.approx(difference(few_digits.model, computed, samples), abs=1e-5)
    assert 0.0 < printed["error"] < 0.2
    assert list(tmp_path.iterdir()) == [made]


def test_data_that_leave_no_range_are_named(few_digits: Case, tmp_path: Path) -> None:
    """Of the model alone the blocks could be int8, which is what taglio inspect tells."""
    huge = tmp_path / "huge.npz"
    np.savez(huge, image=np.random.default_rng(0).normal(0.0, 1e30, (4, 1, 32, 32)).astype(np.float32))
    made = taglio("quantize", few_digits.model, "--data", huge, "-o", tmp_path / "q.onnx")
    refused(made, "no block can be int8; the largest, ", "has no calibrated range: it reaches")


def test_without_a_scheme_no_sums_saturate_and_the_scheme_is_told(tmp_path: Path) -> None:
    model = saved(dense(), tmp_path)
    shape = [dim.dim_value for dim in onnx.load(model).graph.input[0].type.tensor_type.shape.dim]
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(0, 1, (32, *shape[1:])).astype(np.float32))
    ran = taglio("quantize", model, "--data", tmp_path / "x.npy", "-o", tmp_path / "q.onnx", "--json")
    printed = ran.json()
    assert printed["scheme"] == str(default_scheme(sums_saturate(instructions())))
    assert printed["notes"] == [] and printed["error"] < 0.05


def test_quantize_chosen_blocks(few_digits: Case, tmp_path: Path) -> None:
    made = tmp_path / "some.onnx"
    graph = taglio("inspect", few_digits.model, "--json").json()["graph"]
    wanted = sum("second" in block["name"] for block in graph["blocks"])
    printed = taglio("quantize", *few_digits.arguments(), "--blocks", "*second*", "-o", made, "--json").json()
    assert printed["blocks"] == wanted < printed["candidates"]
    session(made)


def test_an_lstm_becomes_int8_dynamic_its_only_form(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(0.0, 0.1, (1, 128, 32)) for name in ("w", "r")}
    text = "(float[5, 1, 32] x) => (float[5, 1, 1, 32] y) { [lstm] y = LSTM <hidden_size = 32> (x, w, r) }"
    model, quantized = saved(parsed(text, weights), tmp_path), tmp_path / "q.onnx"
    np.savez(tmp_path / "x.npz", x=rng.normal(0.0, 1.0, (8, 5, 1, 32)).astype(np.float32))
    command = ("quantize", model, "--data", tmp_path / "x.npz", "-o", quantized)
    refused(taglio(*command, "--blocks", "lstm"), "no block can be int8; the largest, lstm: its only form")
    for blocks in ("all", "lstm"):
        printed = taglio(*command, "--method", "int8-dynamic", "--blocks", blocks, "--json").json()
        assert "DynamicQuantizeLSTM" in types_in(quantized)
        assert (printed["blocks"], printed["candidates"]) == (1, 1) and 0.0 < printed["error"] < 0.1


def test_quantize_says_when_answers_are_not_float_and_when_they_are_not_finite(tmp_path: Path) -> None:
    text = """(float[1, 8] x) => (int64[1, 1] best, float[1, 8] inverse) {
        y = MatMul (x, w)
        best = ArgMax (y)
        inverse = Reciprocal (y)
    }"""
    rows = np.full((32, 1, 8), 1.0, np.float32)
    rows[:, :, 0] = 1e-6  # int8 rounds it to 0
    np.save(tmp_path / "x.npy", rows * np.linspace(1.0, 2.0, 32, dtype=np.float32)[:, None, None])
    model = parsed(text, {"w": np.eye(8, dtype=np.float32)})
    ran = taglio("quantize", saved(model, tmp_path), "--data", tmp_path / "x.npy", "-o", tmp_path / "q.onnx")
    assert "error NaN\u00a0or\u00a0∞ on held-out inputs" in ran.out
    assert "outputs that are not float are left out of the error; unchanged: best " in ran.out


def test_where_there_is_nothing_to_quantise_nothing_is_written(tiny: Case, tmp_path: Path) -> None:
    made = ("-o", tmp_path / "q.onnx")
    refused(taglio("quantize", *tiny.arguments(), "--blocks", "*nowhere*", *made), "*nowhere*", "taglio inspect")
    no_product = taglio("quantize", *tiny.arguments(), "--method", "int4-weights", *made)
    refused(no_product, "no block can be int4-weights; the largest, ", "no constant matrix of at least 32 by 32")
    model = saved(parsed("(float[n, 4] x) => (float[n, 4] y) { [exp] y = Exp (x) }"), tmp_path, "exp")
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.float32).reshape(10, 4) / 40)
    no_form = taglio("quantize", model, "--data", tmp_path / "x.npy", *made)
    refused(no_form, "exp: no block can be int8; the largest, exp: ONNX")
    assert not (tmp_path / "q.onnx").exists()


def test_the_model_itself_is_not_overwritten(tiny: Case, tmp_path: Path) -> None:
    model = Path(shutil.copy(tiny.model, tmp_path))
    (tmp_path / "alias.onnx").symlink_to(model)
    before = model.read_bytes()
    for out in (model, tmp_path / "alias.onnx"):
        refused(taglio("quantize", model, "--data", tiny.data, "-o", out), "--out", "is the model itself")
    assert model.read_bytes() == before


def test_the_data_are_not_overwritten(tiny: Case, tmp_path: Path) -> None:
    data = Path(shutil.copy(tiny.data, tmp_path))
    before = data.read_bytes()
    refused(taglio("quantize", tiny.model, "--data", data, "-o", data), "--out", "is the data itself")
    calibration = ("--data", tiny.data, "--calibration", data)
    refused(taglio("quantize", tiny.model, *calibration, "-o", data), "--out", "is the calibration data itself")
    assert data.read_bytes() == before
