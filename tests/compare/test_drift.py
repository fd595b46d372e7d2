"""What a machine that changes speed does to rows, and how the reference takes it out."""

from dataclasses import replace

import pytest

from taglio.compare.drift import Drift, drift, even_s
from taglio.compare.recommend import best, recommend
from taglio.compare.row import Row
from tests.compare.made_up import measured


def beside(row: Row, reference_ms: float) -> Row:
    assert row.latency is not None
    return replace(row, latency=replace(row.latency, reference_s=reference_ms * 1e-3))


# The machine was twice as slow when OpenVINO had its turn: its row of 6 ms would have been 3 ms beside the others.
CALM = beside(measured("float32", 10.0, 0.0), 10.0)
FAST = beside(measured("qdq-a", 4.0, 0.0), 10.0)
SLOWED = beside(measured("qdq-a", 6.0, 0.0, "openvino"), 20.0)
ROWS = [CALM, FAST, SLOWED]


def test_seconds_are_those_of_the_usual_machine() -> None:
    machine = drift(ROWS)
    assert machine == Drift(10e-3, 10e-3, 20e-3)
    assert SLOWED.latency is not None
    assert even_s(SLOWED.latency, machine) == pytest.approx(3e-3)
    assert SLOWED.latency.against_reference == pytest.approx(20 / 6)


def test_rows_of_different_back_ends_are_ranked_without_it() -> None:
    assert best(ROWS, 0.01) is SLOWED
    assert recommend(ROWS, 0.01).startswith(
        "Use openvino/qdq-a: 3.00 ms (± 0.01) at the machine's usual speed (6.00 ms when it was measured), "
        "3.33 x as fast as the fastest float32"
    )


def test_rows_without_a_reference_are_taken_as_they_are() -> None:
    rows = [measured("float32", 10.0, 0.0), measured("qdq-a", 4.0, 0.0)]
    assert drift(rows) is None
    assert best(rows, 0.01) is rows[1]
