"""Accuracy from labels, beside the error."""

import numpy as np
import pytest

from taglio.error.loss import Metric
from taglio.flow.answers import Answers, _Hits, of_answers
from taglio.plan.result import Limits


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


def test_labels_that_nothing_uses_are_told() -> None:
    def notes(labels: np.ndarray | None, accuracy: float | None = None, metric: str = "cosine") -> tuple[str, ...]:
        limits = Limits(0.01, metric=Metric(metric, labelled=metric == "ctc"))
        return of_answers({"plan": Answers(0.0, 0.0, accuracy)}, "plan", limits, labels)

    texts = np.array(["cat", "dog"])
    (line,) = notes(texts)
    assert line.startswith("the labels were not used: top-1 accuracy needs a whole number for each input")
    assert not notes(None)
    assert not notes(np.array([1, 0]), 0.5)
    assert not notes(texts, metric="ctc")
