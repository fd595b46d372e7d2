"""Accuracy from labels, beside the error."""

import numpy as np
import pytest

from taglio.flow.answers import _Hits


@pytest.mark.parametrize(
    ("labels", "share"),
    [
        (np.array([1, 0]), 0.5),
        (np.array([1.0, 1.0]), 1.0),
        (np.array([True, False]), 0.5),
        (np.array([1.5, 1.0]), None),
        (np.array(["1", "1"]), None),
        (np.ones((2, 5)), None),
    ],
)
def test_only_classes_are_counted(labels: np.ndarray, share: float | None) -> None:
    hits = _Hits(labels)
    for index in range(2):
        hits.add(index, [np.array([[0.1, 0.9]])])
    assert hits.share() == share
