"""Scores of classes, maps of classes, embeddings and plain numbers. Decodes no boxes and no text."""

from collections.abc import Sequence

import numpy as np

from taglio.error.tasks.outputs import Outputs, Trial, all_floats, class_axis, scores_of, vector_of
from taglio.errors import BadData

IGNORED = -100  # the label that PyTorch's cross entropy skips


def top1_share(trial: Trial) -> float:
    """Share of positions whose likeliest class is the reference's, or the label's."""
    right, total, labels = 0, 0, trial.labels
    for index, outputs in enumerate(trial.changed):
        found = _classes(outputs, "tokens").ravel()
        truth = _classes(trial.reference[index], "tokens") if labels is None else np.asarray(labels[index])
        wanted = truth.ravel()
        if wanted.size != found.size:
            raise BadData(f"metric tokens: {wanted.size} labels for {found.size} positions of sample {index}")
        counted = wanted != IGNORED
        right += int((found == wanted)[counted].sum())
        total += int(counted.sum())
    return right / max(1, total)


def perplexity(trial: Trial) -> float:
    """exp of the mean negative log likelihood of the labels under softmax of the scores [..., classes]."""
    assert trial.labels is not None, "the task needs labels"
    lost, total = 0.0, 0
    for outputs, wanted in zip(trial.changed, trial.labels, strict=True):
        scores = np.asarray(scores_of(outputs, "perplexity"), np.float64)
        scores = scores.reshape(-1, scores.shape[-1])
        tokens = np.asarray(wanted).ravel()
        if tokens.size != len(scores) or tokens.max(initial=0) >= scores.shape[1]:
            raise BadData(f"metric perplexity: labels {list(np.shape(wanted))} do not fit scores {list(scores.shape)}")
        counted = tokens != IGNORED
        shifted = scores - scores.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        lost -= float(logs[counted, tokens[counted]].sum())
        total += int(counted.sum())
    return float(np.exp(min(lost / max(1, total), 700.0)))


def mean_iou(trial: Trial) -> float:
    """Intersection over union of each class that the truth has, over the pixels of all samples; their mean."""
    both: dict[int, int] = {}
    either: dict[int, int] = {}
    in_truth: set[int] = set()
    labels = trial.labels
    for index, outputs in enumerate(trial.changed):
        found = _classes(outputs, "segmentation").ravel()
        truth = _classes(trial.reference[index], "segmentation") if labels is None else np.asarray(labels[index])
        wanted = truth.ravel()
        if wanted.size != found.size:
            raise BadData(f"metric segmentation: {wanted.size} labelled pixels for {found.size} of sample {index}")
        in_truth |= {int(each) for each in np.unique(wanted)}
        for each in np.union1d(found, wanted):
            a, b = found == each, wanted == each
            both[int(each)] = both.get(int(each), 0) + int((a & b).sum())
            either[int(each)] = either.get(int(each), 0) + int((a | b).sum())
    classes = in_truth - {IGNORED}
    return float(np.mean([both[each] / either[each] for each in classes])) if classes else 1.0


def similarity_rank_correlation(trial: Trial) -> float:
    """Spearman's correlation of the cosine similarities of all pairs of samples, before and after."""
    before, after = _similarities(trial.reference), _similarities(trial.changed)
    upper = np.triu_indices(len(before), 1)
    if len(before) < 3:
        raise BadData(f"metric similarity: {len(before)} samples have too few pairs to rank: give at least 3")
    return spearman(before[upper], after[upper])


def neighbour_recall(trial: Trial) -> float:
    """Share of each sample's k nearest neighbours by cosine similarity that are among them after the change."""
    before, after = _similarities(trial.reference), _similarities(trial.changed)
    count, k = len(before), int(trial.parameters["k"])
    if not 1 <= k < count:
        raise BadData(f"metric recall: k={k} of {count} samples: give k from 1 to {count - 1}")
    kept = 0
    for one, other in zip(before, after, strict=True):
        kept += len(set(np.argsort(-one)[:k].tolist()) & set(np.argsort(-other)[:k].tolist()))
    return kept / (k * count)


def r_squared(trial: Trial) -> float:
    """1 − Σ(y − ŷ)² ÷ Σ(y − mean y)², over all float numbers."""
    found = all_floats(trial.changed, "r2")
    labels = trial.labels
    truth = all_floats(trial.reference, "r2") if labels is None else np.asarray(labels, np.float64).ravel()
    if truth.size != found.size:
        raise BadData(f"metric r2: {truth.size} labels for {found.size} numbers")
    spread = float(((truth - truth.mean()) ** 2).sum())
    missed = float(((truth - found) ** 2).sum())
    return 1.0 - missed / spread if spread else float(missed == 0.0)


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    """Rank correlation, ties at their mean rank; 0 where either is constant and the other is not."""
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    if scale == 0.0:
        return float(not a.any() and not b.any())
    return float(a @ b) / scale


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean: np.ndarray = ends - (counts + 1) / 2.0
    return np.asarray(mean[inverse], np.float64)


def _similarities(samples: Sequence[Outputs]) -> np.ndarray:
    rows = [vector_of(outputs, "similarity") for outputs in samples]
    if len({row.size for row in rows}) > 1:
        raise BadData("metric similarity: the samples' outputs differ in length: use an output that is pooled")
    matrix = np.stack(rows)
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-30)
    similar = np.asarray(matrix @ matrix.T)
    np.fill_diagonal(similar, -2.0)  # a sample is no neighbour of itself
    return similar


def _classes(outputs: Outputs, what: str) -> np.ndarray:
    """Likeliest class at each position; of one channel, whether it is above one half."""
    if what == "segmentation":
        for value in outputs.values():
            array = np.asarray(value)
            if array.dtype.kind == "f" and array.ndim == 4:
                return np.asarray(array.argmax(axis=1) if array.shape[1] > 1 else array[:, 0] > 0.5, np.int64)
            if array.dtype.kind in "iu" and array.ndim >= 2:
                return array.astype(np.int64)
    scores = scores_of(outputs, what)
    return np.asarray(scores.argmax(axis=class_axis(scores)))
