"""OpenVINO on the files that core wrote."""

from pathlib import Path

from tests.compare.backends.conftest import compare, measured, need, rows, saturating, sound
from tests.end_to_end.command import Case


def test_native(few_digits: Case, tmp_path: Path) -> None:
    need("openvino")
    figures = rows(compare(tmp_path, few_digits, "openvino"), "openvino")
    sound(figures)
    for key in ("qdq-u8s8-asym-pc", "qdq-s8s8-sym-pc"):
        assert sum(figures[key]["checked"]["int8_operators"].values()) > 10
        assert 0 < figures[key]["checked"]["error_to_float"] < 0.1 or saturating(figures[key])
    assert 0 < figures["qdq-u8s8-asym-pc-rr"]["checked"]["error_to_float"] < 0.1  # weights of 7 bits do not saturate
    measured(figures, "qdq-u8s8-asym-pc", "qdq-s8s8-sym-pc", "bfloat16", "qdq-s8s8-sym-pc + bf16")
