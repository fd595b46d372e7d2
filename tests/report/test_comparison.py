"""The page and the table of a comparison: every row and reason, escaped, and drawn from nothing but the comparison."""

from dataclasses import replace
from pathlib import Path

import pytest

from taglio.compare.result import Comparison, Conversion, best
from taglio.compare.row import Row
from taglio.profile.machine import Machine
from taglio.report import comparison
from tests.compare.made_up import measured, wanted

CRASHED = Row(wanted("qdq-b"), "crashed", "its process died from SIGSEGV <here>", None, None)
RESULT = Comparison(
    "model.onnx", "0" * 64, "keras", Machine("Some CPU", 2, ("avx512_vnni",), 2**34, "Linux", "3"), 2, "data.npz", 8, 8,
    0.01, 300.0, 2**34, ("onnxruntime", "pytorch"), {"onnxruntime": {"onnxruntime": "1.31.1"}},
    (Conversion("keras", "onnx", "tf2onnx 1.17", 1e-6, "m.onnx"),),
    (measured("float32", 10.0, 0.0), measured("qdq-a", 4.0, 0.008), CRASHED), "onnxruntime/qdq-a", False, 12.0,
)  # fmt: skip


def test_the_page_has_every_row_and_reason() -> None:
    page = comparison.render(RESULT)
    for text in ("qdq-a", "4.00", "2.50×", "SIGSEGV &lt;here&gt;", "tf2onnx 1.17",
                 "avx512_vnni", "is onnxruntime/qdq-a."):  # fmt: skip
        assert text in page, text
    assert "<here>" not in page
    assert page.count('<div class="chart"') == 1
    assert "onnxruntime: 2 of 3" in page  # the legend
    assert "recommended: onnxruntime/qdq-a" in page
    assert "default-src 'none'" in page.replace("&#39;", "'")


def test_a_comparison_in_which_nothing_ran_is_still_a_page() -> None:
    page = comparison.render(replace(RESULT, rows=(CRASHED,), recommended=""))
    assert "No row was measured." in page


def test_the_table_gives_each_reason_once(capsys: pytest.CaptureFixture[str]) -> None:
    twin = replace(CRASHED, wanted=wanted("qdq-c"))
    comparison.show(replace(RESULT, rows=(*RESULT.rows, twin)), Path("out/comparison.html"))
    out = capsys.readouterr().out
    assert out.count("SIGSEGV") == 1
    assert "qdq-b, qdq-c: crashed:" in out
    assert "3 of 4" in out
    assert "out/comparison.json" in out


def test_the_fastest_row_within_the_limit() -> None:
    float_row, fast, wrong = RESULT.rows[0], RESULT.rows[1], measured("qdq-b", 1.0, 0.5)
    assert best([float_row, fast, wrong], 0.01) is fast
    assert best([float_row, replace(fast, latency=None)], 0.01) is float_row
    assert best([CRASHED, wrong], 0.01) is None


def test_back_ends_stand_in_the_order_of_their_speed_relative_to_the_reference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The machine was twice as slow when the third had its turn: its row of 6 ms would have been 3 ms beside the
    others."""
    slowed = measured("qdq-a", 6.0, 0.0, "openvino")
    assert slowed.latency is not None
    slowed = replace(slowed, latency=replace(slowed.latency, reference_s=20e-3))
    assert best([*RESULT.rows, slowed], 0.01) is slowed
    backends = ("onnxruntime", "pytorch", "openvino")
    comparison.show(replace(RESULT, backends=backends, rows=(*RESULT.rows, slowed)), Path("out/comparison.html"))
    lines = capsys.readouterr().out.splitlines()
    start = next(index for index, line in enumerate(lines) if "Fastest row of each back end" in line)
    first, second, third = (line.split() for line in lines[start + 3 : start + 6])
    assert first[:4] == ["openvino", "qdq-a", "6.00", "ms"]
    assert second[:4] == ["onnxruntime", "qdq-a", "4.00", "ms"]
    assert second[-3:] == ["2", "of", "3"]
    assert third == ["pytorch", "none", *"–––––", "0", "of", "0"]


def test_a_back_end_that_is_missing_takes_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(
        Row(wanted(key), "missing", "openvino not installed: run taglio backends add openvino", None, None)
        for key in "ab"
    )
    comparison.show(replace(RESULT, rows=rows), Path("out/comparison.html"))
    out = capsys.readouterr().out
    assert "all 2 rows: missing: openvino not installed: run taglio backends add openvino" in out
    assert "latency" not in out.partition("Fastest")[0]
    other = Row(wanted("c"), "impossible", "no such kernel", None, None)
    comparison.show(replace(RESULT, rows=(*rows, other)), Path("out/comparison.html"))
    out = capsys.readouterr().out
    assert "a, b: missing: openvino not installed" in out
    assert "c: impossible: no such kernel" in out
