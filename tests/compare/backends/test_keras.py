"""Keras' operations and times by layer; QKeras after training and by training."""

from pathlib import Path

from tests.compare.backends.conftest import compare, need, rows, shown, sound


def test_keras_layers(keras_model: tuple[Path, Path], tmp_path: Path) -> None:
    result = compare(tmp_path, *keras_model, "keras", "--layers")
    sound(rows(result, "keras"))
    layers = {layer["name"]: layer for layer in result["layers"]}
    size = 16 * 16 * 8
    assert layers["first"]["flops"] == size * (2 * 27 + 1)
    assert layers["second"]["flops"] == size * (2 * 72 + 1)
    assert layers["relu"]["flops"] == 0  # as the notes found: TensorFlow counts no ReLU
    assert all(layer["float_s"] > 0 for layer in layers.values())
    assert all("alone as a sub-model" in layer["note"] for layer in layers.values())


def test_qkeras(keras_model: tuple[Path, Path], tmp_path: Path) -> None:
    need("qkeras")
    found = rows(compare(tmp_path, *keras_model, "qkeras"), "qkeras")
    sound(found)
    errors = {}
    for key in ("ptq-8", "ptq-4", "qat-8", "ptq-8 TFLite", "qat-8 TFLite int8"):
        assert found[key]["status"] == "measured", (key, shown(found[key]))
        errors[key] = found[key]["checked"]["error_to_float"]
    assert errors["ptq-8"] < errors["ptq-4"]
    assert found["ptq-8 TFLite"]["checked"]["size_bytes"] > 0


def test_qkeras_needs_a_keras_model(few: tuple[Path, Path], tmp_path: Path) -> None:
    need("qkeras")
    found = rows(compare(tmp_path, *few, "qkeras"), "qkeras")
    assert {row["status"] for row in found.values()} == {"impossible"}
    assert "this is ONNX: give the .keras or .h5 file" in found["float32"]["reason"]
