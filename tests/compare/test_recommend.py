"""The sentence: the fastest row within the bound, the figures that carry it, and what is as good."""

from dataclasses import replace

from taglio.compare.recommend import best, recommend, standings
from taglio.compare.row import Row
from tests.compare.made_up import measured, wanted

FLOAT = measured("float32", 10.0, 0.0)
FAST = measured("qdq-a", 4.0, 0.008)
WRONG = measured("qdq-b", 1.0, 0.5)


def test_the_fastest_within_the_bound() -> None:
    assert best([FLOAT, FAST, WRONG], 0.01) is FAST
    text = recommend([FLOAT, FAST, WRONG], 0.01)
    assert text.startswith("Use onnxruntime/qdq-a: 4.00 ms (± 0.01), 2.50 x as fast as the fastest float32")
    assert "error 0.800% (limit 1.00%), 1.50 MB" in text
    assert "noise" not in text


def test_what_is_within_the_noise_is_said() -> None:
    twin = measured("qdq-c", 4.05, 0.001, spread=0.2)
    assert "as fast within noise: onnxruntime/qdq-c" in recommend([FLOAT, FAST, twin], 0.01)


def test_the_fastest_float_row_of_any_back_end_is_the_yardstick() -> None:
    other = measured("float32", 8.0, 0.0, backend="openvino")
    assert "2.00 x as fast as the fastest float32 (openvino/float32, 8.00 ms)" in recommend([FLOAT, other, FAST], 0.01)


def test_float_is_kept_where_nothing_is_faster() -> None:
    text = recommend([FLOAT, replace(FAST, latency=None)], 0.01)
    assert text.startswith("Use onnxruntime/float32: 10.00 ms")
    assert "x as fast" not in text


def test_no_row_within_the_bound_says_so() -> None:
    row = Row(wanted("qdq-a"), "crashed", "its process died from SIGSEGV", None, None)
    assert "No row was measured within an error of 1.00%" in recommend([row, WRONG], 0.01)


def test_every_back_end_stands_with_its_fastest_row_within_the_bound() -> None:
    other = measured("float32", 8.0, 0.0, backend="openvino")
    found = standings([FLOAT, FAST, WRONG, other], ("pytorch", "openvino", "onnxruntime"), 0.01)
    assert [each.backend for each in found] == ["onnxruntime", "openvino", "pytorch"]
    assert [each.row for each in found] == [FAST, other, None]
    assert [(each.measured, each.total) for each in found] == [(3, 3), (1, 1), (0, 0)]
