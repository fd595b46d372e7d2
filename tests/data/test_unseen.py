"""Which held-out inputs are kept from the search."""

import numpy as np
import pytest

from taglio.data.dataset import Split, assemble, split
from taglio.data.unseen import unseen_rows, with_unseen


def data_of(count: int, *, labels: bool = False) -> Split:
    samples = [{"x": np.array([float(row)])} for row in range(count)]
    return split(assemble("data", samples, list(map(str, range(count))), np.arange(count) if labels else None))


@pytest.mark.parametrize(("count", "unseen"), [(46, 0), (48, 8), (96, 16)])
def test_a_third_of_24_or_more_inputs_is_unseen(count: int, unseen: int) -> None:
    before = data_of(count, labels=True)
    after = with_unseen(before)
    assert (0 if after.unseen is None else len(after.unseen.samples)) == unseen
    assert len(after.held_out.samples) == count // 2 - unseen
    together = after.all_held_out
    assert sorted(together.names) == sorted(before.held_out.names)
    assert together.labels is not None
    assert list(map(str, together.labels)) == list(together.names)
    assert [str(int(sample["x"][0])) for sample in together.samples] == list(together.names)
    assert not set(after.held_out.names) & set(after.calibration.names)


def test_repeated_inputs_stay_on_one_side_and_calibrated_ones_are_seen() -> None:
    held_out = [*range(24), *range(24)]
    rows = unseen_rows(held_out, [])
    assert rows == [*range(2, 24, 3), *range(26, 48, 3)]
    assert unseen_rows(held_out, [0]) == []  # 23 are left that did not calibrate
    rows = unseen_rows(range(30), [2, 5, 8])
    assert len(rows) == 9 and not {2, 5, 8} & set(rows)


def test_both_sides_have_as_many_as_the_metric_needs() -> None:
    before = data_of(60)
    assert with_unseen(before, 10).unseen is not None
    assert with_unseen(before, 11) is before
