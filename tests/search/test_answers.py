"""Accuracy from labels, beside the error."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import taglio
from taglio.error.loss import Metric
from taglio.error.tally import PartLoss
from taglio.notes import Kind, Note
from taglio.plan.result import Limits
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.search.answers import _Hits, of_answers, on_calibration
from taglio.search.ledger import Answers
from tests.models import conv_relu_chain, saved


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


def test_calibration_inputs_that_break_the_limit_are_told(tmp_path: Path) -> None:
    """A decoder kept 1 % on the held-out inputs, and had 4 % on one that calibrated."""
    model = saved(conv_relu_chain(), tmp_path)
    samples = [np.full((1, 3, 8, 8), 1.0 + index, np.float32) for index in range(8)]
    work = taglio.Model(model, samples)
    (name,), (output,) = work.model.proto.graph.input, work.model.outputs
    session = open_session(work.model.proto, SessionOptions(1))
    odd = work.data.calibration.samples[0][name.name]

    def note(off: float, run_s: float = 0.0, metric: str = "relative-l2", share: float = 0.01) -> Note | None:
        def run(sample: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            (value,) = session.run([output], dict(sample))
            return {output: value * (1.0 + off * np.array_equal(sample[name.name], odd))}

        built = SimpleNamespace(session=lambda _: SimpleNamespace(run=run))
        slow = work.but(setup=replace(work.setup, run_s=run_s))
        return on_calibration(slow, cast(Any, built), Limits(share, metric=Metric(metric)))

    assert str(note(0.5)).startswith("on 4 calibration inputs error is ")
    assert "beyond the limit that the held-out inputs keep" in str(note(0.5))
    assert not any((note(0.0), note(0.5, share=0.9), note(0.5, run_s=6.0), note(0.5, metric="top1")))


def test_outputs_that_lost_the_same_are_told_in_one_line() -> None:
    lost = ("", "is constant", "no longer depends on the input", "is constant")
    parts = tuple(PartLoss(name, 0.0, each) for name, each in zip("abcd", lost, strict=True))
    chosen, int8 = Answers(0.0, 0.0, None), Answers(0.0, 0.0, None, parts)
    assert of_answers(chosen, int8, Limits(0.01), None) == (
        Note(Kind.FACT, "all-int8 is rejected: b is constant; the same holds for d"),
        Note(Kind.FACT, "all-int8 is rejected: c no longer depends on the input"),
    )
