"""Tasks by name, and what they make of real networks' outputs."""

import numpy as np
import pytest

from taglio.error.judge import TaskJudge
from taglio.error.loss import parse_metric
from taglio.error.measure import anchored
from taglio.error.tally import Measure
from taglio.error.tasks.task import TASKS, names_task, parse_task, task_text
from taglio.errors import BadData, BadOption
from tests.error.tasks.scored import scored


def test_parameters_are_read_and_defaults_kept() -> None:
    task = parse_task("detection: iou=0.6")
    assert task.parameters == {"iou": 0.6, "score": 0.25}
    assert task_text(task) == "detection:iou=0.6" and task_text(TASKS["detection"]) == "detection"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("detect", 'metric "detect" is not one of top1, tokens'),
        ("detection:x=1", '"x=1" is not a parameter: its parameters are iou=0.5, score=0.25'),
        ("detection:iou=1.5", "iou=1.5 must lie between 0 and 1"),
        ("recall:k=1.5", "k=1.5 must be a whole number of at least 1"),
    ],
)
def test_what_is_unknown_is_refused_with_what_there_is(text: str, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        parse_task(text)


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("ctc", True),
        ("ctc:blank=1", True),
        ("ctc:my_function", False),
        ("psnr", False),
    ],
)
def test_a_function_of_a_module_called_like_a_task_is_no_task(text: str, task: bool) -> None:
    assert names_task(text) == task


@pytest.mark.parametrize("name", ["top1", "tokens", "similarity", "recall:k=2", "r2"])
def test_a_model_agrees_with_itself(name: str) -> None:
    outputs = [{"y": row[None]} for row in np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)]
    assert scored(name, outputs, outputs) == pytest.approx(1.0)


def test_labels_are_asked_for_and_refused_by_sample() -> None:
    outputs = [{"y": np.zeros((1, 3), np.float32)}] * 2
    with pytest.raises(BadData, match="needs labels"):
        scored("perplexity", outputs, outputs)
    with pytest.raises(BadData, match="the label of sample 0 must be class numbers, not <U1"):
        scored("tokens", outputs, outputs, np.array(["a", "b"]))
    with pytest.raises(BadData, match="sample 0: metric tokens: 2 labels for 1 position"):
        scored("tokens", outputs, outputs, np.zeros((2, 2), np.int64))


@pytest.mark.parametrize("labelled", [False, True])
def test_where_nothing_is_found_every_model_agrees(labelled: bool) -> None:
    """Blanks alone in every text: an accuracy of 1 would say nothing."""
    blanks, letter = np.zeros((1, 5, 3), np.float32), np.zeros((1, 5, 3), np.float32)
    blanks[..., 0] = letter[..., 0] = 1.0
    letter[0, 2, 1] = 2.0
    labels = np.array(["", ""]) if labelled else None
    samples = [{"x": np.linspace(0.0, 1.0, 4), "length": np.array(9)}] * 2  # scaled where they should not be
    judge = TaskJudge(parse_task("ctc"), ["y"], samples, labels=labels, metadata={"character": "a\nb"})
    judge.evidence(0, [blanks], [letter])
    told = r"(labels hold|float model finds) nothing in any of \d held-out .* values go from 0 to 1\), .*\(blank=0\)"
    with pytest.raises(BadData, match=told):
        judge.refuse_useless(1.0)
    judge = TaskJudge(
        parse_task("ctc"), ["y"], labels=np.array(["", "a"]) if labelled else None, metadata={"character": "a\nb"}
    )
    judge.evidence(0, [blanks], [blanks])
    judge.evidence(1, [letter], [blanks])
    judge.refuse_useless(1.0)


def test_labels_by_which_float_is_never_right_are_refused() -> None:
    scores = np.eye(4, dtype=np.float32)[[1, 3, 2]][:, None]

    def own_score(labels: list[int]) -> float:
        judge = TaskJudge(parse_task("tokens"), ["y"], labels=np.array(labels)[:, None])
        return anchored(Measure(parse_metric("tokens"), judge), lambda: scores[:, None], every=True).metric.float_value

    assert own_score([1, 0, 0]) == pytest.approx(1 / 3)
    with pytest.raises(BadData, match=r"metric tokens: by the labels of 3 .* scores 0, so no model would be worse"):
        own_score([0, 0, 0])


@pytest.mark.parametrize("name", ["r2", "similarity", "recall:k=2"])
def test_answers_that_are_all_alike_are_refused(name: str) -> None:
    """Every pair of equal embeddings is as similar as any other, up to rounding, and equal numbers have no variance."""
    row = np.random.default_rng(0).normal(size=(1, 16)).astype(np.float32)
    row = row if name != "r2" else np.full_like(row, 0.5)

    def measure() -> Measure:
        return Measure(parse_metric(name), TaskJudge(parse_task(name), ["y"]))

    with pytest.raises(BadData, match=r"by its own answers to 5 held-out inputs the float model scores 0, not 1"):
        anchored(measure(), lambda: [[row]] * 5, every=True)
    assert anchored(measure(), lambda: [[row + index**2] for index in range(5)], every=True).metric.name == name


@pytest.mark.parametrize("name", ["top1", "tokens", "segmentation"])
def test_a_single_class_in_all_answers_is_doubted(name: str) -> None:
    maps = np.zeros((2, 3, 4, 4), np.float32)
    maps[0, 1] = maps[1, 2] = 1.0
    one, other = maps[:, None] if name == "segmentation" else np.eye(3, dtype=np.float32)[1:, None]
    for last, doubted in ((one, True), (other, False)):
        judge = TaskJudge(parse_task(name), ["y"])
        for index, scores in enumerate([one, one, one, last]):
            judge.evidence(index, [scores], [scores])
        assert ("the float model always answers class 1" in str(judge.doubt())) == doubted
