"""LiteRT from ONNX through onnx2tf, and from Keras."""

from pathlib import Path

from tests.compare.backends.conftest import compare, need, rows, shown, sound, told

INT8 = ("int8", "int8-pt", "int8-io", "int8-aeq", "dynamic")

RUN = (
    *("float16 built-in", "dynamic built-in", "int8 built-in", "int16x8 built-in"),
    *("int8-aeq-pt", "dynamic-aeq", "weights-aeq", "int16x8-aeq", "float32 CompiledModel"),
)


def test_from_onnx(few: tuple[Path, Path], tmp_path: Path) -> None:
    need("litert", "onnx2tf")
    result = compare(tmp_path, *few, "litert")
    found = rows(result, "litert")
    sound(found)
    assert [step["target"] for step in result["conversions"]] == ["SavedModel"]
    for key in (*INT8, "float32 built-in", "float16", "int16x8"):
        assert found[key]["status"] == "measured", (key, shown(found[key]))
    for key in INT8:
        assert sum(found[key]["checked"]["int8_operators"].values()) > 0, key
    told(found, RUN, {})
    assert 0 < found["int8-aeq"]["checked"]["error_to_float"] < 0.2


def test_from_keras_needs_no_converter_between(keras_model: tuple[Path, Path], tmp_path: Path) -> None:
    result = compare(tmp_path, *keras_model, "litert")
    found = rows(result, "litert")
    sound(found)
    assert [(step["source"], step["target"]) for step in result["conversions"]] == [("keras", "onnx")]
    assert found["int8"]["status"] == "measured", shown(found["int8"])


def test_from_tflite_only_what_starts_from_one(keras_model: tuple[Path, Path], tmp_path: Path) -> None:
    first = tmp_path / "first"
    compare(first, *keras_model, "litert")
    result = compare(
        tmp_path / "second", first / "compare-work" / "litert" / "float32.tflite", keras_model[1], "litert,onnxruntime"
    )
    found = rows(result, "litert")
    sound(found)
    assert "needs Keras or a SavedModel" in found["int8"]["reason"]
    assert found["int8-aeq"]["status"] == "measured", shown(found["int8-aeq"])
    assert rows(result, "onnxruntime")["float32"]["status"] == "measured"
