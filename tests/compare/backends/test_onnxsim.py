"""The quantisation that onnxsim recommends."""

from pathlib import Path

from tests.compare.backends.conftest import compare, measured, need, rows, sound
from tests.end_to_end.command import Case


def test_recommended(few_digits: Case, tmp_path: Path) -> None:
    need("onnxsim")
    figures = rows(compare(tmp_path, few_digits, "onnxsim", "--max-error", "20%"), "onnxsim")
    sound(figures)
    measured(figures, "recommended")
    checked = figures["recommended"]["checked"]
    # 13 % on these samples by onnxsim; its schemes with less error keep float operators.
    assert checked["notes"][0].startswith("dynamic int8 ")
    assert "on the calibration samples by onnxsim" in checked["notes"][0]
    assert 0 < checked["error_to_float"] < 0.2
    assert checked["int8_operators"] == {"DynamicQuantizeMatMul": 1}  # all that its dynamic scheme takes
    assert Path(checked["file"]).exists()
