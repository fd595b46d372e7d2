"""LiteRT from ONNX through onnx2tf, and from Keras."""

from pathlib import Path

from tests.compare.backends.conftest import compare, measured, need, rows, sound
from tests.end_to_end.command import Case

INT8 = ("int8", "int8-pt", "int8-io", "int8-aeq", "dynamic")

RUN = ("float16", "int16x8", "int8-aeq-pt", "dynamic-aeq", "weights-aeq", "int16x8-aeq", "float32 CompiledModel")


def test_from_onnx(few_digits: Case, tmp_path: Path) -> None:
    need("litert", "onnx2tf")
    result = compare(tmp_path, few_digits, "litert")
    figures = rows(result, "litert")
    sound(figures)
    assert [step["target"] for step in result["conversions"]] == ["SavedModel"]
    measured(figures, *INT8, *RUN)
    for key in INT8:
        assert sum(figures[key]["checked"]["int8_operators"].values()) > 0, key
    assert 0 < figures["int8-aeq"]["checked"]["error_to_float"] < 0.2


def test_from_keras_needs_no_converter_between(keras_model: Case, tmp_path: Path) -> None:
    result = compare(tmp_path, keras_model, "litert")
    figures = rows(result, "litert")
    sound(figures)
    assert [(step["source"], step["target"]) for step in result["conversions"]] == [("keras", "onnx")]
    measured(figures, "int8")


def test_from_tflite_only_what_starts_from_one(keras_model: Case, tmp_path: Path) -> None:
    first = tmp_path / "first"
    compare(first, keras_model, "litert")
    made = Case(first / "compare-work" / "litert" / "float32.tflite", keras_model.data)
    result = compare(tmp_path / "second", made, "litert,onnxruntime")
    figures = rows(result, "litert")
    sound(figures)
    assert "needs Keras or a SavedModel" in figures["int8"]["reason"]
    measured(figures, "int8-aeq")
    measured(rows(result, "onnxruntime"), "float32")
