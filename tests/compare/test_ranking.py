"""The fastest row within the bound, in all and in every back end, whatever the machine did meanwhile."""

from dataclasses import replace

import pytest

from taglio.compare.ranking import Drift, best, drift, seconds, standings
from taglio.compare.row import Row
from tests.compare.made_up import measured, wanted

FLOAT = measured("float32", 10.0, 0.0)
FAST = measured("qdq-a", 4.0, 0.008)
WRONG = measured("qdq-b", 1.0, 0.5)


def test_the_fastest_within_the_bound() -> None:
    assert best([FLOAT, FAST, WRONG], 0.01, None) is FAST
    assert best([FLOAT, replace(FAST, latency=None)], 0.01, None) is FLOAT
    assert best([Row(wanted("qdq-a"), "crashed", "its process died", None, None), WRONG], 0.01, None) is None


def test_every_back_end_stands_with_its_fastest_row_within_the_bound() -> None:
    other = measured("float32", 8.0, 0.0, backend="openvino")
    found = standings([FLOAT, FAST, WRONG, other], ("pytorch", "openvino", "onnxruntime"), 0.01)
    assert [each.backend for each in found] == ["onnxruntime", "openvino", "pytorch"]
    assert [each.row for each in found] == [FAST, other, None]
    assert [(each.measured, each.total) for each in found] == [(3, 3), (1, 1), (0, 0)]


def beside(row: Row, reference_ms: float) -> Row:
    assert row.latency is not None
    return replace(row, latency=replace(row.latency, reference_s=reference_ms * 1e-3))


# The machine was twice as slow when OpenVINO had its turn: its row of 6 ms would have been 3 ms beside the others.
CALM = beside(measured("float32", 10.0, 0.0), 10.0)
QUICK = beside(measured("qdq-a", 4.0, 0.0), 10.0)
SLOWED = beside(measured("qdq-a", 6.0, 0.0, "openvino"), 20.0)
ROWS = [CALM, QUICK, SLOWED]


def test_seconds_are_those_of_the_usual_machine() -> None:
    machine = drift(ROWS)
    assert machine == Drift(10e-3, 10e-3, 20e-3)
    assert seconds(SLOWED, machine) == pytest.approx(3e-3)
    assert SLOWED.latency is not None
    assert SLOWED.latency.against_reference == pytest.approx(20 / 6)


def test_rows_of_different_back_ends_are_ranked_without_it() -> None:
    assert best(ROWS, 0.01, drift(ROWS)) is SLOWED


def test_rows_without_a_reference_are_taken_as_they_are() -> None:
    rows = [measured("float32", 10.0, 0.0), measured("qdq-a", 4.0, 0.0)]
    assert drift(rows) is None
    assert best(rows, 0.01, None) is rows[1]
