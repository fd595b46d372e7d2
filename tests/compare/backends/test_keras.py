"""Keras' ways to call a model; QKeras' forms of it."""

from pathlib import Path

import onnx

from tests.compare.backends.conftest import compare, need, rows, shown, sound


def test_keras(keras_model: tuple[Path, Path], tmp_path: Path) -> None:
    result = compare(tmp_path, *keras_model, "keras")
    found = rows(result, "keras")
    sound(found)
    assert {row["status"] for row in found.values()} == {"measured"}
    (step,) = result["conversions"]
    operators = [node.name for node in onnx.load(step["path"]).graph.node if node.op_type == "Conv"]
    assert [name.partition("/")[0] for name in operators] == ["norm", "second"]  # the first is fused with the norm


def test_qkeras(keras_model: tuple[Path, Path], tmp_path: Path) -> None:
    need("qkeras")
    found = rows(compare(tmp_path, *keras_model, "qkeras"), "qkeras")
    sound(found)
    errors = {}
    for key in ("ptq-8", "ptq-4", "ptq-8 TFLite int8"):
        assert found[key]["status"] == "measured", (key, shown(found[key]))
        errors[key] = found[key]["checked"]["error_to_float"]
    assert errors["ptq-8"] < errors["ptq-4"]
    assert found["ptq-8 TFLite int8"]["checked"]["size_bytes"] > 0


def test_qkeras_needs_a_keras_model(few: tuple[Path, Path], tmp_path: Path) -> None:
    need("qkeras")
    found = rows(compare(tmp_path, *few, "qkeras"), "qkeras")
    assert {row["status"] for row in found.values()} == {"impossible"}
    assert "this is ONNX: give the .keras or .h5 file" in found["float32"]["reason"]
