"""Boxes that a detector finds, from the outputs of the common heads, and how alike two sets of boxes are.

Heads, told apart by shapes: YOLO v8 and later [1, 4 + classes, boxes]; YOLO v5 [1, boxes, 5 + classes]
with an objectness; YOLOX the same, undecoded on its grid; SSD and its like: boxes [1, boxes, 4] beside scores
[1, boxes, classes], the first class the background where scores sum to 1; anchor-free heads with outputs for each
stride (cls_8, obj_8, bbox_8, …). Neither anchors nor priors are known here: boxes that the graph leaves encoded are
compared as they are written, which is fair between two runs of one model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taglio.error.tasks.outputs import Outputs, Trial, shapes
from taglio.errors import BadData

# What a detector is run with when its average precision is taken, and how many boxes of an image are kept.
_LOW_SCORE, _MOST_BOXES, _NMS_IOU = 0.001, 300, 0.65
_STRIDES = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of one image: corners [n, 4] (x1, y1, x2, y2), scores [n], classes [n]."""

    corners: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


def detection(trial: Trial) -> float:
    """F1 of the boxes above the task's score that the float model finds and those that the changed one finds, matched
    one to one within a class at the task's IoU; 1 where neither finds any. With labels the mean average precision.

    Labels are [samples, boxes, 5]: x1, y1, x2, y2, class, in the pixels of the input; rows of class −1 are padding.
    Raises BadData for another shape.
    """
    iou, score = trial.parameters["iou"], trial.parameters["score"]
    if trial.labels is not None:
        return _average_precision(trial.changed, trial.labels, trial.image, iou)
    matched = total = 0
    for outputs, wanted in zip(trial.changed, trial.reference, strict=True):
        found, truth = decode(outputs, trial.image, score), decode(wanted, trial.image, score)
        matched += int(_matches(found, truth, iou).sum())
        total += len(found.scores) + len(truth.scores)
    return 2.0 * matched / total if total else 1.0


def _average_precision(
    changed: Sequence[Outputs], labels: np.ndarray, image: tuple[int, int] | None, iou: float
) -> float:
    """Mean over classes of the area under precision and recall (every point, as COCO's at one IoU)."""
    if labels.ndim != 3 or labels.shape[2] != 5:
        raise BadData(
            f"metric detection: labels are {list(labels.shape)}: save [samples, boxes, 5] with x1, y1, x2, y2, class "
            "in pixels of the input, padded with rows of class -1"
        )
    hits: dict[int, list[tuple[float, bool]]] = {}
    wanted: dict[int, int] = {}
    for outputs, padded in zip(changed, labels, strict=True):
        rows = padded[padded[:, 4] >= 0]
        truth = Boxes(rows[:, :4].astype(np.float64), np.ones(len(rows)), rows[:, 4].astype(np.int64))
        found = decode(outputs, image, _LOW_SCORE)
        right = _matches(found, truth, iou)
        for each in truth.classes:
            wanted[int(each)] = wanted.get(int(each), 0) + 1
        for value, hit, each in zip(found.scores, right, found.classes, strict=True):
            hits.setdefault(int(each), []).append((float(value), bool(hit)))
    if not wanted:
        raise BadData("metric detection: the labels hold no box")
    return float(np.mean([_area(hits.get(each, []), count) for each, count in wanted.items()]))


def decode(outputs: Outputs, image: tuple[int, int] | None, score: float) -> Boxes:
    """Boxes above `score` after non-maximum suppression within each class. Raises BadData where no head is known."""
    corners, scores = _candidates(outputs, image)
    classes = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), classes]
    kept = best > score
    return _suppressed(Boxes(corners[kept], best[kept], classes[kept]))


def _candidates(outputs: Outputs, image: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    """Corners [n, 4] and scores [n, classes] of every box that the head proposes."""
    arrays = {name: np.asarray(v, np.float64) for name, v in outputs.items() if np.asarray(v).dtype.kind == "f"}
    if found := _by_stride(arrays, image):
        return found
    flat = {name: array[0] for name, array in arrays.items() if array.ndim == 3 and array.shape[0] == 1}
    pairs = [
        (boxes, scores)
        for boxes in flat.values()
        if boxes.shape[1] == 4
        for scores in flat.values()
        if scores is not boxes and len(scores) == len(boxes)
    ]
    if pairs:
        boxes, scores = pairs[0]
        background = scores.shape[1] > 1 and np.allclose(scores.sum(axis=1), 1.0, atol=1e-2)
        return boxes, scores[:, 1:] if background else scores
    for array in flat.values():
        if 5 <= array.shape[0] < array.shape[1]:  # YOLO v8 and later have no objectness
            masks = next((a.shape[1] for a in arrays.values() if a.ndim == 4), 0)  # coefficients of prototypes
            return _from_centres(array[:4].T), array[4 : len(array) - masks].T
        if array.shape[1] >= 6 and _on_grid(len(array), image):
            return _from_cells(array[:, :4], image), array[:, 4:5] * array[:, 5:]
        if array.shape[1] >= 5:
            return _from_centres(array[:, :4]), array[:, 4:]
    raise BadData(f"metric detection: no known head writes {shapes(outputs)}: give module:function as the metric")


def _by_stride(arrays: Mapping[str, np.ndarray], image: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Boxes of outputs like cls_8, obj_8 and bbox_8: offsets and logarithms of sizes in cells of each stride."""
    if image is None:
        return None
    corners, scores = [], []
    for stride in _STRIDES:
        own = {name.rsplit("_", 1)[0]: a for name, a in arrays.items() if name.rsplit("_", 1)[-1] == str(stride)}
        if not {"cls", "bbox"} <= set(own):
            return None
        rows = own["bbox"].reshape(-1, 4)
        columns = max(1, image[1] // stride)
        cells = np.arange(len(rows))
        origin = np.stack([cells % columns, cells // columns], axis=1)
        centre, size = (origin + rows[:, :2]) * stride, np.exp(np.clip(rows[:, 2:], -20.0, 20.0)) * stride
        corners.append(np.concatenate([centre - size / 2, centre + size / 2], axis=1))
        classes = own["cls"].reshape(len(rows), -1)
        objects = own["obj"].reshape(len(rows), 1) if "obj" in own else classes
        scores.append(np.sqrt(np.clip(classes * objects, 0.0, None)))
    return np.concatenate(corners), np.concatenate(scores)


def _on_grid(count: int, image: tuple[int, int] | None) -> bool:
    """Whether `count` is the number of cells of the usual strides: one box a cell, or three as in YOLO v5."""
    if image is None:
        return False
    cells = sum((image[0] // stride) * (image[1] // stride) for stride in _STRIDES)
    return count in (cells, 3 * cells)


def _from_cells(rows: np.ndarray, image: tuple[int, int] | None) -> np.ndarray:
    """Corners of YOLO v5's decoded boxes, or of YOLOX's: offsets in cells and logarithms of sizes, so small numbers."""
    assert image is not None, "cells are counted by the image's size"
    cells = [(stride, *divmod(np.arange((image[0] // stride) * (image[1] // stride)), image[1] // stride)) for stride in
             _STRIDES]  # fmt: skip
    strides = np.concatenate([np.full((len(y), 1), stride) for stride, y, _ in cells])
    if len(strides) != len(rows) or float(np.median(np.abs(rows[:, :2]))) > min(_STRIDES):
        return _from_centres(rows)
    origin = np.concatenate([np.stack([x, y], axis=1) for _, y, x in cells])
    sizes = np.exp(np.clip(rows[:, 2:], -20.0, 20.0)) * strides
    return _from_centres(np.concatenate([(rows[:, :2] + origin) * strides, sizes], axis=1))


def _from_centres(rows: np.ndarray) -> np.ndarray:
    centre, size = rows[:, :2], np.abs(rows[:, 2:4])
    return np.concatenate([centre - size / 2, centre + size / 2], axis=1)


def _suppressed(boxes: Boxes) -> Boxes:
    """The best of boxes that overlap within a class, best first."""
    order = np.argsort(-boxes.scores, kind="stable")[: 10 * _MOST_BOXES]
    kept: list[int] = []
    alive = np.ones(len(order), bool)
    for place, index in enumerate(order):
        if not alive[place]:
            continue
        kept.append(int(index))
        if len(kept) == _MOST_BOXES:
            break
        rest = order[place + 1 :]
        overlap = _iou(boxes.corners[index : index + 1], boxes.corners[rest])[0]
        alive[place + 1 :] &= ~((overlap > _NMS_IOU) & (boxes.classes[rest] == boxes.classes[index]))
    return Boxes(boxes.corners[kept], boxes.scores[kept], boxes.classes[kept])


def _matches(found: Boxes, truth: Boxes, iou: float) -> np.ndarray:
    """Whether each found box, best first, takes a box of the truth that nobody took: its class, the largest overlap."""
    hits = np.zeros(len(found.scores), bool)
    if not len(truth.scores):
        return hits
    overlap = _iou(found.corners, truth.corners)
    overlap[found.classes[:, None] != truth.classes[None, :]] = -1.0
    for index in np.argsort(-found.scores, kind="stable"):
        best = int(overlap[index].argmax())
        if overlap[index, best] >= iou:
            hits[index] = True
            overlap[:, best] = -1.0
    return hits


def _iou(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Intersection over union [n, m] of corners [n, 4] and [m, 4]."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    inside = np.clip(high - low, 0.0, None).prod(axis=2)
    area_one = np.clip(one[:, 2:] - one[:, :2], 0.0, None).prod(axis=1)
    area_other = np.clip(other[:, 2:] - other[:, :2], 0.0, None).prod(axis=1)
    return np.asarray(inside / np.maximum(area_one[:, None] + area_other[None, :] - inside, 1e-30))


def _area(hits: Sequence[tuple[float, bool]], wanted: int) -> float:
    """Area under the precision that is reached at each recall or beyond it."""
    if not hits:
        return 0.0
    right = np.array([hit for _, hit in sorted(hits, key=lambda each: -each[0])])
    recall = np.cumsum(right) / wanted
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(np.concatenate([[0.0], recall])) * best).sum())
