"""Best paths, edit distances and characters."""

import numpy as np
import pytest

from taglio.error.tasks.outputs import Setting
from taglio.error.tasks.text import another_blank, best_path
from taglio.errors import BadData
from tests.error.tasks.scored import scored

CHARACTERS = "a\nb\nc"


def steps(text: str, letters: str = "-abc ") -> np.ndarray:
    """Scores [1, steps, classes] whose best path is `text`, "-" the blank."""
    scores = np.full((len(text), len(letters)), 0.1, np.float32)
    for index, letter in enumerate(text):
        scores[index, letters.index(letter)] = 0.9
    return scores[None]


def test_repeats_merge_and_blanks_part() -> None:
    assert best_path(steps("-aab-bb--c")[0], 0) == [1, 2, 2, 3]


@pytest.mark.parametrize("batch_second", [False, True])
def test_one_letter_of_four_changes(batch_second: bool) -> None:
    before, after = steps("a-b-c-a"), steps("a-b-b-a")
    if batch_second:
        before, after = before.transpose(1, 0, 2), after.transpose(1, 0, 2)
    assert scored("ctc", [{"y": after}], [{"y": before}]) == pytest.approx(0.75)


def test_a_class_between_all_characters_may_be_the_blank() -> None:
    texts, setting = [[9, 1, 9, 2, 9], [9, 3, 9]], Setting({"blank": 0.0})
    assert str(another_blank(texts, setting)).startswith("class 9 is 62% of the characters read with ctc:blank=0")
    assert another_blank([[1, 2, 3], [1, 4, 5]], setting) is another_blank([[], [1, 1]], setting) is None


def test_labels_are_characters_of_the_metadata_with_a_space_last() -> None:
    outputs = [{"y": steps("a- b")}]
    assert scored("ctc", outputs, outputs, np.array(["a b"]), metadata={"character": CHARACTERS}) == 1.0
    assert scored("ctc", outputs, outputs, np.array(["a bc"]), metadata={"character": CHARACTERS}) == 0.75


@pytest.mark.parametrize("batch_second", [False, True])
def test_lines_of_a_batch_are_read_one_by_one(batch_second: bool) -> None:
    def batch(*lines: str) -> np.ndarray:
        joined = np.concatenate([steps(line) for line in lines])
        return joined.transpose(1, 0, 2) if batch_second else joined

    outputs = [{"y": batch("a-b", "c-c")}, {"y": batch("abc")}]
    changed = [{"y": batch("a-b", "c-b")}, {"y": batch("abb")}]
    labels = np.empty(2, object)
    labels[:] = [np.array(["ab", "cc"]), np.array(["abc"])]
    for truth in (None, labels):
        metadata = {"character": CHARACTERS}
        score = scored("ctc", changed, outputs, truth, image=(8, 24), batches=[2, 1], metadata=metadata)
        assert score == pytest.approx(1 - 2 / 7)
    with pytest.raises(BadData, match=r"label of sample 0 has the shape \[1\] for a batch of 2"):
        scored("ctc", changed, outputs, labels[::-1], image=(8, 24), batches=[2, 1])
