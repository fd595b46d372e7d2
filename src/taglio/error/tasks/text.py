"""Decode the text of a recogniser with a CTC head (best path), and score it by edit distance. Uses no language model.

Graves et al., Connectionist Temporal Classification, ICML 2006: the best path takes the likeliest class of each step,
merges repeats and drops the blank.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np

from taglio.error.tasks.outputs import Outputs, Setting, scores_of
from taglio.errors import BadData
from taglio.notes import Kind, Note

CHARACTERS = "character"  # metadata key of a recogniser's characters, one per line


def best_path(scores: np.ndarray, blank: int) -> list[int]:
    """Classes read from `scores` [steps, classes]."""
    classes = scores.argmax(axis=1)
    kept = np.concatenate([[True], classes[1:] != classes[:-1]]) & (classes != blank)
    return [int(kind) for kind in classes[kept]]


def edit_distance(text: Sequence[object], other: Sequence[object]) -> int:
    """Insertions, deletions and substitutions from one text to the other (Levenshtein)."""
    previous = list(range(len(other) + 1))
    for row, left in enumerate(text, 1):
        current = [row]
        for column, right in enumerate(other, 1):
            current.append(min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (left != right)))
        previous = current
    return previous[-1]


def read_text(outputs: Outputs, setting: Setting) -> Sequence[object]:
    """The classes on the best path; with labels, their characters as a string.

    Characters come from the model's metadata, one per line, after the blank, with a space as the last class if there is
    one class more. Raises BadData if the metadata has no such characters.
    """
    steps, blank = _steps(outputs), int(setting.parameters["blank"])
    path = best_path(steps, blank)
    if not setting.labelled:
        return path
    alphabet = _alphabet(setting.metadata.get(CHARACTERS, ""), blank, steps.shape[1])
    return "".join(alphabet[kind] for kind in path)


def text_label(label: np.ndarray) -> str:
    """A label as text. Raises BadData for anything but one text."""
    if label.dtype.kind not in "UO" or label.size != 1:
        raise BadData(f"must be one text, not {label.dtype} {list(label.shape)}")
    return str(label.item())


def edits(text: Sequence[object], truth: Sequence[object], _: Setting) -> np.ndarray:
    """The number of edits, and the number of characters in the truth."""
    return np.array([edit_distance(text, truth), len(truth)], np.float64)


def character_accuracy(evidence: Sequence[np.ndarray], _: Setting) -> float:
    """1 − edits ÷ characters over all samples, at least 0."""
    wrong, length = np.sum(evidence, axis=0)
    if not length:
        return 1.0 if not wrong else 0.0
    return max(0.0, 1.0 - float(wrong / length))


def another_blank(texts: Sequence[Sequence[object]], setting: Setting) -> Note | None:
    """A note if another class than `blank` seems to be the blank of `texts`, given as classes."""
    counts = Counter(chain.from_iterable(texts))
    often = [(kind, count / counts.total()) for kind, count in counts.most_common(1) if len(counts) > 1]
    # Blanks stand between characters: read as one, the blank is about half of them, and no character is so frequent.
    if setting.labelled or not often or often[0][1] < 0.4:
        return None
    (kind, share), blank = often[0], setting.parameters["blank"]
    found = f"class {kind} is {share:.0%} of the characters read with ctc:blank={blank:g}"
    return Note(Kind.OTHER_BLANK, f"{found}: if it is the blank, give {kind}")


def _steps(outputs: Outputs) -> np.ndarray:
    """Scores [steps, classes] of one sample, from [1, steps, classes] or [steps, 1, classes]."""
    scores = scores_of(outputs, "ctc")
    if scores.ndim == 3 and 1 in scores.shape[:2]:
        return scores.reshape(-1, scores.shape[2])
    if scores.ndim != 2:
        shape = list(scores.shape)
        raise BadData(f"metric ctc: output {shape} must be [steps, classes] with a batch of 1: use relative-l2")
    return scores


def _alphabet(characters: str, blank: int, classes: int) -> list[str]:
    letters = [line or " " for line in characters.split("\n")] if characters else []
    letters.insert(blank, "")
    if len(letters) == classes + 1 and letters[-1] == " ":
        letters.pop()  # the file ended with a line break
    if len(letters) == classes - 1:
        letters.append(" ")
    if len(letters) != classes:
        raise BadData(
            f"metric ctc: labels are text, and the model's metadata names {max(0, len(letters) - 1)} characters "
            f'under "{CHARACTERS}" for its {classes} classes: to compare with the float model, leave the labels out'
        )
    return letters
