"""Accuracy from labels, beside the error."""

import numpy as np
import pytest

from taglio.error.loss import Metric
from taglio.error.tally import PartLoss
from taglio.notes import Kind, Note
from taglio.plan.result import Limits
from taglio.search.answers import _Hits, of_answers
from taglio.search.ledger import Answers


@pytest.mark.parametrize(
    ("labels", "share"),
    [
        (np.array([1, 0]), 0.5),
        (np.array([1.0, 1.0]), 1.0),
        (np.array([True, False]), 0.5),
        (np.array([1.5, 1.0]), None),
        (np.array([1, 2]), None),  # counted from 1
        (np.array([-1, 1]), None),
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
    def notes(labels: np.ndarray | None, accuracy: float | None = None, metric: str = "cosine") -> tuple[Note, ...]:
        limits = Limits(0.01, metric=Metric(metric, labelled=metric == "ctc"))
        return of_answers(Answers(0.0, 0.0, accuracy), None, limits, labels)

    texts = np.array(["cat", "dog"])
    (line,) = map(str, notes(texts))
    assert line.startswith("the labels were not used: top-1 accuracy needs a class from 0 to classes - 1 for each")
    assert not notes(None)
    assert not notes(np.array([1, 0]), 0.5)
    assert not notes(texts, metric="ctc")


def test_outputs_that_lost_the_same_are_told_in_one_line() -> None:
    lost = ("", "is constant", "no longer depends on the input", "is constant")
    parts = tuple(PartLoss(name, 0.0, each) for name, each in zip("abcd", lost, strict=True))
    chosen, int8 = Answers(0.0, 0.0, None), Answers(0.0, 0.0, None, parts)
    assert of_answers(chosen, int8, Limits(0.01), None) == (
        Note(Kind.FACT, "all int8 is rejected: b is constant; the same holds for d"),
        Note(Kind.FACT, "all int8 is rejected: c no longer depends on the input"),
    )
