"""Keras' ways to call a model; QKeras' forms of it."""

from pathlib import Path

import onnx

from tests.compare.backends.conftest import compare, measured, need, rows, sound
from tests.end_to_end.command import Case


def test_keras(keras_model: Case, tmp_path: Path) -> None:
    result = compare(tmp_path, keras_model, "keras")
    figures = rows(result, "keras")
    sound(figures)
    assert {row["status"] for row in figures.values()} == {"measured"}
    (step,) = result["conversions"]
    operators = [node.name for node in onnx.load(step["path"]).graph.node if node.op_type == "Conv"]
    assert [name.partition("/")[0] for name in operators] == ["norm", "second"]  # the first is fused with the norm


def test_qkeras(keras_model: Case, tmp_path: Path) -> None:
    need("qkeras")
    figures = rows(compare(tmp_path, keras_model, "qkeras"), "qkeras")
    sound(figures)
    measured(figures, "ptq-8", "ptq-4")
    assert figures["ptq-8"]["checked"]["error_to_float"] < figures["ptq-4"]["checked"]["error_to_float"]


def test_qkeras_needs_a_keras_model(few_digits: Case, tmp_path: Path) -> None:
    need("qkeras")
    figures = rows(compare(tmp_path, few_digits, "qkeras"), "qkeras")
    assert {row["status"] for row in figures.values()} == {"impossible"}
    assert "this is ONNX: give the .keras or .h5 file" in figures["float32"]["reason"]
