"""NNCF's presets, weights and accuracy control on the float model."""

from pathlib import Path

import numpy as np

from tests.compare.backends.conftest import compare, measured, need, rows, saturating, sound
from tests.end_to_end.command import Case
from tests.models import Sketch, saved

PRESETS = ("performance", "mixed", "transformer")


def test_presets_and_accuracy_control(few_digits: Case, tmp_path: Path) -> None:
    need("nncf")
    figures = rows(compare(tmp_path, few_digits, "nncf", "--max-error", "3%"), "nncf")
    sound(figures)
    measured(figures, *PRESETS, "accuracy-control", "mixed + bf16", "int8-sym-weights", "int8-asym-weights")
    float_bytes = figures["float32"]["checked"]["size_bytes"]
    for key in PRESETS:
        checked = figures[key]["checked"]
        assert checked["int8_operators"]["Convolution"] > 10, key
        assert 0 < checked["error_to_float"] < 0.2 or saturating(figures[key]), key
        assert checked["size_bytes"] < 0.6 * float_bytes
    errors = {key: figures[key]["checked"]["error_to_float"] for key in ("mixed", "accuracy-control")}
    assert errors["accuracy-control"] < errors["mixed"]
    assert "none of its weights became int4" in figures["int4-sym-weights"]["reason"]  # a network of convolutions
    model = Path(figures["mixed"]["checked"]["file"])
    assert model.suffix == ".xml" and model.with_suffix(".bin").stat().st_size > 0.1 * float_bytes


def test_matrix_products_have_weights_in_int4(tmp_path: Path) -> None:
    need("nncf")
    g = Sketch()
    x = g.input("x", 1, 4, 256)
    for _ in range(3):
        x = g.op("Relu", g.op("MatMul", x, g.weight(256, 256)))
    model = saved(g.model(g.rename(x, "y")), tmp_path)
    np.savez(tmp_path / "data.npz", x=g.rng.normal(0, 1, (8, 4, 256)).astype(np.float32))
    figures = rows(compare(tmp_path / "out", Case(model, tmp_path / "data.npz"), "nncf"), "nncf")
    sound(figures)
    measured(figures, "int4-sym-weights", "int4-asym-weights")
    for key in ("int4-sym-weights", "int4-asym-weights"):
        assert figures[key]["checked"]["size_bytes"] < figures["int8-sym-weights"]["checked"]["size_bytes"]
