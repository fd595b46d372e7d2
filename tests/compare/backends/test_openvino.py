"""OpenVINO's own runtime and ONNX Runtime's provider on the files that core wrote."""

from pathlib import Path

from tests.compare.backends.conftest import compare, need, rows, saturating, shown, sound, told

TYPES = ("u8u8", "u8s8", "s8s8")


def test_native(few: tuple[Path, Path], tmp_path: Path) -> None:
    need("openvino")
    result = compare(tmp_path, *few, "openvino", "--layers")
    found = rows(result, "openvino")
    sound(found)
    for key in ("qdq-u8s8-asym-pc", "qdq-s8s8-sym-pc", "mixed-asym-top-10", "bfloat16"):
        assert found[key]["status"] == "measured", shown(found[key])
    for key in ("qdq-u8s8-asym-pc", "qdq-s8s8-sym-pc"):
        assert sum(found[key]["checked"]["int8_operators"].values()) > 10
        assert 0 < found[key]["checked"]["error_to_float"] < 0.1 or saturating(found[key])
    assert 0 < found["qdq-u8s8-asym-pc-rr"]["checked"]["error_to_float"] < 0.1  # weights of 7 bits do not saturate
    forms = [f"qdq-{types}-{sym}-{channel}" for types in TYPES for sym in ("sym", "asym") for channel in ("pc", "pt")]
    told(found, (*forms, "bfloat16", "dynamic-u8s8-pt", "qdq-s8s8-sym-pc + bf16"), {})
    layers = {layer["name"]: layer for layer in result["layers"]}
    timed = [layer for layer in layers.values() if layer["float_s"] and layer["int8_s"] and layer["flops"]]
    assert len(timed) >= 5  # compiled parts found again by their operators' names


def test_provider(few: tuple[Path, Path], tmp_path: Path) -> None:
    need("openvino-ep")
    result = compare(tmp_path, *few, "openvino-ep", "--layers")
    found = rows(result, "openvino-ep")
    sound(found)
    assert found["qdq-u8s8-asym-pc"]["status"] == "measured", shown(found["qdq-u8s8-asym-pc"])
    assert "partition" in found["float32"]["checked"]["notes"][0]
    for key in ("mixed-sym-top-10", "mixed-sym-top-20", "mixed-asym-faster"):
        assert found[key]["status"] == "measured", shown(found[key])
        assert 0 < found[key]["checked"]["error_to_float"] < 0.1 or saturating(found[key])
    assert found["qdq-u8s8-asym-pc"]["checked"]["int8_operators"] == {}
    assert "one kernel per partition" in result["absent"]["openvino-ep"]
