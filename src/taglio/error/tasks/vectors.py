"""Read and score class scores, class maps, embeddings and plain numbers. Decodes no boxes and no text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from taglio.error.information import rank_correlation
from taglio.error.tasks.outputs import (
    Outputs,
    Setting,
    class_axis,
    prototypes,
    scores_of,
    shapes,
    vector_of,
    whole_numbers,
)
from taglio.errors import BadData, plural
from taglio.notes import Kind, Note

IGNORED = -100  # the label that PyTorch's cross entropy ignores
_FLAT = -2.0  # below any cosine: a sample is not its own neighbour


def read_top1(outputs: Outputs, _: Setting) -> np.ndarray:
    """The likeliest class of each input. Raises BadData if the first output is not [inputs, classes]."""
    name, value = next(iter(outputs.items()))
    scores = np.asarray(value)
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise BadData(
            f"metric top1: output {name} has shape {list(scores.shape)}, not [inputs, classes]: use relative-l2, "
            "tokens, or a function of your own"
        )
    return np.asarray(scores.argmax(axis=1), np.int64)


def read_tokens(outputs: Outputs, _: Setting) -> np.ndarray:
    """The likeliest class at each position, flat."""
    scores = scores_of(outputs, "tokens")
    return np.asarray(scores.argmax(axis=class_axis(scores)), np.int64).ravel()


def right(classes: np.ndarray, truth: np.ndarray, setting: Setting) -> np.ndarray:
    """The number of correct positions, and of all that count."""
    if truth.size != classes.size:
        if setting.labelled:
            labels, positions = plural(truth.size, "label"), plural(classes.size, "position")
            raise BadData(f"metric tokens: {labels} for {positions}: give one each")
        return np.array([0.0, truth.size])
    counted = truth != IGNORED
    return np.array([(classes == truth)[counted].sum(), counted.sum()], np.float64)


def share(evidence: Sequence[np.ndarray], _: Setting) -> float:
    """Share of correct positions."""
    hits, total = np.sum(evidence, axis=0)
    return float(hits / max(1.0, total))


def one_class(truths: Sequence[np.ndarray], setting: Setting) -> Note | None:
    """A note if the labels, or else the float model's answers, are all one class (if there are four)."""
    kinds = {int(kind) for classes in truths for kind in np.unique(classes)} - {IGNORED}
    if len(kinds) != 1 or len(truths) < 4:
        return None
    whose = "all labels are" if setting.labelled else "the float model always answers"
    found = f"{whose} class {kinds.pop()}, so a model that knows no other agrees"
    return Note(Kind.ONE_CLASS, f"{found}: check the data and their preprocessing")


def read_scores(outputs: Outputs, _: Setting) -> np.ndarray:
    """Scores [positions, classes]."""
    scores = np.asarray(scores_of(outputs, "perplexity"), np.float64)
    return scores.reshape(-1, scores.shape[-1])


def likelihood(scores: np.ndarray, tokens: np.ndarray, _: Setting) -> np.ndarray:
    """Negative log likelihood of the labels under softmax of the scores, and the number of labels."""
    if tokens.size != len(scores):
        raise BadData(f"metric perplexity: labels {list(np.shape(tokens))} do not fit scores {list(scores.shape)}")
    counted = tokens != IGNORED
    if (outside := tokens[counted & ((tokens < 0) | (tokens >= scores.shape[1]))]).size:
        raise BadData(
            f"metric perplexity: label {outside[0]} is not a class: there are {scores.shape[1]}, counted from 0 "
            f"({IGNORED} is ignored)"
        )
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return np.array([-logs[counted, tokens[counted]].sum(), counted.sum()], np.float64)


def perplexity(evidence: Sequence[np.ndarray], _: Setting) -> float:
    """exp of the mean negative log likelihood."""
    lost, total = np.sum(evidence, axis=0)
    return float(np.exp(min(lost / max(1.0, total), 700.0)))


def read_map(outputs: Outputs, setting: Setting) -> np.ndarray:
    """The class of each pixel, flat; for a single channel, whether it is above one half. Raises BadData for prototypes
    of masks, whose channels are no classes."""
    if count := prototypes(outputs, setting.image):
        raise BadData(
            f"metric segmentation: the {count} mask prototypes in {shapes(outputs)} are not classes: use detection"
        )
    for value in outputs.values():
        array = np.asarray(value)
        if array.dtype.kind == "f" and array.ndim == 4:
            if _channels_last(array.shape, setting.image):
                array = np.moveaxis(array, 3, 1)
            several = array.shape[1] > 1
            return np.asarray(array.argmax(axis=1) if several else array[:, 0] > 0.5, np.int64).ravel()
        if array.dtype.kind in "iu" and array.ndim >= 2:
            return array.astype(np.int64).ravel()
    scores = scores_of(outputs, "segmentation")
    return np.asarray(scores.argmax(axis=class_axis(scores)), np.int64).ravel()


def _channels_last(shape: tuple[int, ...], image: tuple[int, int] | None) -> bool:
    """Whether the image's proportions are those of [N, H, W, C] and not of [N, C, H, W]."""

    def fits(height: int, width: int) -> bool:
        # Rounding may change the proportions of a map.
        return image is not None and abs(height * image[1] / (width * image[0]) - 1.0) < 0.05

    return fits(shape[1], shape[2]) and not fits(shape[2], shape[3])


def map_label(label: np.ndarray) -> np.ndarray:
    """The class of each pixel, flat; 255 and negative classes are ignored."""
    classes = whole_numbers(label)
    return np.where((classes < 0) | (classes == 255), IGNORED, classes)


def overlaps(pixels: np.ndarray, truth: np.ndarray, _: Setting) -> np.ndarray:
    """Pixel counts by class [3, classes]: correct, predicted, and true."""
    if truth.size != pixels.size:
        labelled = plural(truth.size, "labelled pixel")
        raise BadData(f"metric segmentation: {labelled} for {pixels.size} of the output: give one each")
    counted = truth != IGNORED
    pixels, truth = pixels[counted], truth[counted]
    classes = int(max(pixels.max(initial=0), truth.max(initial=0))) + 1
    both = np.bincount(truth[pixels == truth], minlength=classes)
    return np.stack([both, np.bincount(pixels, minlength=classes), np.bincount(truth, minlength=classes)])


def mean_iou(evidence: Sequence[np.ndarray], _: Setting) -> float:
    """Mean, over the classes in the truth, of intersection over union of the pixels of all samples."""
    sums = np.zeros((3, max(counts.shape[1] for counts in evidence)))
    for counts in evidence:
        sums[:, : counts.shape[1]] += counts
    both, predicted, truth = sums
    inside = truth > 0
    return float(np.mean(both[inside] / (predicted + truth - both)[inside])) if inside.any() else 1.0


def read_vector(outputs: Outputs, _: Setting) -> np.ndarray:
    """The embedding, scaled to unit length."""
    row = vector_of(outputs, "similarity")
    return np.asarray(row / max(float(np.linalg.norm(row)), 1e-30))


def pair(answer: Any, truth: Any, _: Setting) -> tuple[Any, Any]:
    """The pair (truth, answer), unchanged."""
    return truth, answer


def similarity_rank_correlation(evidence: Sequence[tuple[np.ndarray, np.ndarray]], _: Setting) -> float:
    """Spearman's correlation between the cosine similarities of all pairs of samples before and after the change; 0 if
    all are alike."""
    before, after = _similarities(evidence)
    upper = np.triu_indices(len(before), 1)
    return 0.0 if _alike(before) else rank_correlation(before[upper], after[upper])


def neighbour_recall(evidence: Sequence[tuple[np.ndarray, np.ndarray]], setting: Setting) -> float:
    """Share of each sample's k nearest neighbours (by cosine similarity) that are among its k nearest afterwards; 0 if
    all are alike."""
    before, after = _similarities(evidence)
    if _alike(before):
        return 0.0
    count, k = len(before), int(setting.parameters["k"])
    kept = 0
    for row_before, row_after in zip(before, after, strict=True):
        kept += len(set(np.argsort(-row_before)[:k].tolist()) & set(np.argsort(-row_after)[:k].tolist()))
    return kept / (k * count)


def read_numbers(outputs: Outputs, _: Setting) -> np.ndarray:
    """All float values, flat. Raises BadData if there are none."""
    rows = [np.asarray(value, np.float64).ravel() for value in outputs.values() if np.asarray(value).dtype.kind == "f"]
    if not rows:
        raise BadData("metric r2: no output is float: use a function of your own")
    return np.concatenate(rows)


def number_label(label: np.ndarray) -> np.ndarray:
    """The label as float64, flat. Raises BadData for text."""
    if label.dtype.kind not in "iubf":
        raise BadData(f"must be numbers, not {label.dtype}")
    return label.astype(np.float64).ravel()


def residuals(numbers: np.ndarray, truth: np.ndarray, _: Setting) -> np.ndarray:
    """The number of values, their mean, Σ(y − mean)² within the sample, and Σ(y − ŷ)²."""
    if truth.size != numbers.size:
        raise BadData(f"metric r2: {plural(truth.size, 'label')} for {plural(numbers.size, 'number')}: give one each")
    mean = truth.mean() if truth.size else 0.0
    return np.array([truth.size, mean, ((truth - mean) ** 2).sum(), ((truth - numbers) ** 2).sum()])


def r_squared(evidence: Sequence[np.ndarray], _: Setting) -> float:
    """1 − Σ(y − ŷ)² ÷ Σ(y − mean y)², over all numbers of all samples; 0 if all are alike."""
    counts, means, within, missed = np.array(evidence).T
    grand = float(counts @ means) / max(1.0, float(counts.sum()))
    spread, lost = float(within.sum() + counts @ (means - grand) ** 2), float(missed.sum())
    return 1.0 - lost / spread if spread else 0.0


def _similarities(evidence: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    matrices = []
    for rows in zip(*evidence, strict=True):
        if len({row.size for row in rows}) > 1:
            raise BadData("metric similarity: outputs differ in length between samples: use a pooled output")
        matrix = np.stack(rows)
        similar = np.asarray(matrix @ matrix.T)
        np.fill_diagonal(similar, _FLAT)
        matrices.append(similar)
    before, after = matrices
    return before, after


def _alike(similar: np.ndarray) -> bool:
    """Whether all embeddings are the same but for rounding, from their similarities."""
    return bool(np.ptp(similar[np.triu_indices(len(similar), 1)]) < 1e-6)
