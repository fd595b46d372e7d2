"""What a runtime changes by itself adds to the error of int8 as vectors do."""

import pytest

from taglio.error.runtime_part import left_for_int8, together


def test_what_a_place_changes_by_itself_adds_as_squares() -> None:
    assert together(0.003, 0.004) == pytest.approx(0.005)
    assert left_for_int8(0.005, 0.004) == pytest.approx(0.003)
    assert left_for_int8(0.01, 0.0) == 0.01
    assert left_for_int8(0.01, 0.02) == 0.0
