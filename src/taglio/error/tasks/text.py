"""Text that a recogniser with a CTC head reads: best path, then edit distance. Knows no language model.

Graves et al., Connectionist Temporal Classification, ICML 2006: the best path takes the likeliest class of each step,
merges repeats and drops the blank.
"""

from collections.abc import Sequence

import numpy as np

from taglio.error.tasks.outputs import Outputs, Trial, scores_of
from taglio.errors import BadData


def best_path(scores: np.ndarray, blank: int) -> list[int]:
    """Classes read from `scores` [steps, classes]."""
    classes = scores.argmax(axis=1)
    kept = np.concatenate([[True], classes[1:] != classes[:-1]]) & (classes != blank)
    return [int(each) for each in classes[kept]]


def edit_distance(one: Sequence[object], other: Sequence[object]) -> int:
    """Insertions, deletions and substitutions from one to the other (Levenshtein)."""
    previous = list(range(len(other) + 1))
    for row, left in enumerate(one, 1):
        current = [row]
        for column, right in enumerate(other, 1):
            current.append(min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (left != right)))
        previous = current
    return previous[-1]


def character_accuracy(trial: Trial) -> float:
    """1 − edits ÷ characters over all samples, at least 0.

    Without labels the truth is what the float model reads, class by class. Labels are strings [samples]; they are
    compared with characters: those of the model's metadata, one a line, behind the blank, with a space as the last
    class where there is one class more. Raises BadData for labels without such characters.
    """
    blank, labels = int(trial.parameters["blank"]), trial.labels
    read = [best_path(_steps(outputs), blank) for outputs in trial.changed]
    truth: list[Sequence[object]]
    found: list[Sequence[object]]
    if labels is None:
        found = list(read)
        truth = [best_path(_steps(outputs), blank) for outputs in trial.reference]
    else:
        if labels.dtype.kind not in "UO" or labels.ndim != 1:
            raise BadData(f"metric ctc: labels must be text [samples], not {labels.dtype} {list(labels.shape)}")
        alphabet = _alphabet(trial.metadata.get("character", ""), blank, _steps(trial.changed[0]).shape[1])
        found = ["".join(alphabet[each] for each in line) for line in read]
        truth = [str(label) for label in labels]
    length = sum(len(line) for line in truth)
    edits = sum(edit_distance(line, right) for line, right in zip(found, truth, strict=True))
    if not length:
        return 1.0 if not edits else 0.0
    return max(0.0, 1.0 - edits / length)


def _steps(outputs: Outputs) -> np.ndarray:
    """[steps, classes] of one sample, whichever of [1, steps, classes] and [steps, 1, classes] the model writes."""
    scores = scores_of(outputs, "ctc")
    if scores.ndim == 3 and 1 in scores.shape[:2]:
        return scores.reshape(-1, scores.shape[2])
    if scores.ndim != 2:
        raise BadData(f"metric ctc: output {list(scores.shape)} must be [steps, classes] with a batch of 1")
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
            f'under "character" for its {classes} classes: leave the labels out to compare with the float model'
        )
    return letters
