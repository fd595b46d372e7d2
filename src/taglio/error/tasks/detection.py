"""Decode the boxes of common detection heads, and compare two sets of boxes.

Heads are recognised by their shapes: YOLO v8 and later [1, 4 + classes, boxes]; YOLO v5 [1, boxes, 5 + classes] with an
objectness; YOLOX the same, undecoded on its grid; SSD and similar: boxes [1, boxes, 4] beside scores [1, boxes,
classes], with the background as the first class if scores sum to 1; anchor-free heads with outputs per stride (cls_8,
obj_8, bbox_8, …). Anchors and priors are unknown: boxes that the graph leaves encoded are compared in that form, which
is fair between two runs of one model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taglio.error.tasks.outputs import Outputs, Setting, shapes
from taglio.errors import BadData

# Score threshold for average precision, boxes kept per image, and the IoU of non-maximum suppression.
_LOW_SCORE, _MOST_BOXES, _NMS_IOU = 0.001, 300, 0.65
_STRIDES = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of one image: corners [n, 4] (x1, y1, x2, y2), scores [n], classes [n]."""

    corners: np.ndarray
    scores: np.ndarray
    classes: np.ndarray


def read_boxes(outputs: Outputs, setting: Setting) -> Boxes:
    """Boxes above the task's score threshold; with labels, all that count for an average precision."""
    return decode(outputs, setting.image, _LOW_SCORE if setting.labelled else setting.parameters["score"])


def box_label(label: np.ndarray) -> Boxes:
    """Boxes of a label [boxes, 5]: x1, y1, x2, y2, class, in the pixels of the input; rows of class −1 are padding.
    Raises BadData for another shape."""
    if label.dtype.kind not in "iuf" or label.ndim != 2 or label.shape[1] != 5:
        raise BadData(
            f"must be [boxes, 5] with x1, y1, x2, y2, class in pixels of the input, padded with rows of class -1, "
            f"not {label.dtype} {list(label.shape)}"
        )
    rows = label[label[:, 4] >= 0]
    return Boxes(rows[:, :4].astype(np.float64), np.ones(len(rows)), rows[:, 4].astype(np.int64))


def matched(found: Boxes, truth: Boxes, setting: Setting) -> tuple[Boxes, np.ndarray, Boxes]:
    """The boxes found, which of them match a true box (bool), and the true boxes."""
    return found, _matches(found, truth, setting.parameters["iou"]), truth


def box_agreement(evidence: Sequence[tuple[Boxes, np.ndarray, Boxes]], weights: np.ndarray, setting: Setting) -> float:
    """F1 of the boxes of the changed model against those of the float model, matched one to one within a class at the
    task's IoU; 1 if neither finds any. With labels, the mean average precision."""
    if setting.labelled:
        return _average_precision(evidence, weights)
    counts = np.array([[hits.sum(), len(hits) + len(truth.scores)] for _, hits, truth in evidence], np.float64)
    both, total = weights @ counts
    return float(2.0 * both / total) if total else 1.0


def _average_precision(evidence: Sequence[tuple[Boxes, np.ndarray, Boxes]], weights: np.ndarray) -> float:
    """Mean over classes of the area under the precision-recall curve (all points, as COCO's at one IoU)."""
    wanted: dict[int, float] = {}
    for (_, _, truth), weight in zip(evidence, weights, strict=True):
        for each in truth.classes:
            wanted[int(each)] = wanted.get(int(each), 0.0) + weight
    scores = np.concatenate([found.scores for found, _, _ in evidence])
    classes = np.concatenate([found.classes for found, _, _ in evidence])
    hits = np.concatenate([each for _, each, _ in evidence])
    counts = np.repeat(weights, [len(each) for _, each, _ in evidence])
    order = np.argsort(-scores, kind="stable")
    classes, hits, counts = classes[order], hits[order], counts[order]
    areas = [
        _area(hits[classes == each], counts[classes == each], count) for each, count in wanted.items() if count > 0.0
    ]
    if not areas:
        raise BadData("metric detection: the labels hold no box")
    return float(np.mean(areas))


def decode(outputs: Outputs, image: tuple[int, int] | None, score: float) -> Boxes:
    """Boxes above `score` after non-maximum suppression within each class. Raises BadData if no known head fits."""
    corners, scores = _candidates(outputs, image)
    classes = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), classes]
    kept = best > score
    return _suppressed(Boxes(corners[kept], best[kept], classes[kept]))


def _candidates(outputs: Outputs, image: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    """Corners [n, 4] and scores [n, classes] of all boxes that the head proposes."""
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
        if array.shape[1] >= 6 and on_grid(len(array), image):
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


def on_grid(count: int, image: tuple[int, int] | None) -> bool:
    """Whether `count` is the number of boxes on the usual strides: one per cell, or three as in YOLO v5."""
    if image is None:
        return False
    cells = sum((image[0] // stride) * (image[1] // stride) for stride in _STRIDES)
    return count in (cells, 3 * cells)


def _from_cells(rows: np.ndarray, image: tuple[int, int] | None) -> np.ndarray:
    """Corners of YOLO v5's decoded boxes, or of YOLOX's, which are offsets in cells and logarithms of sizes. The two
    are distinguished by magnitude."""
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
    """Whether each found box matches a true box, bool [found]: best score first, each takes the unmatched true box of
    its class with the largest overlap."""
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


def _area(hits: np.ndarray, counts: np.ndarray, wanted: float) -> float:
    """Area under the precision-recall curve, with precision made monotone. `hits`, best first, count `counts` times
    each; `wanted` is the number of true boxes."""
    right, all_of_them = np.cumsum(hits * counts), np.cumsum(counts)
    precision = np.divide(right, all_of_them, out=np.zeros(len(right)), where=all_of_them > 0.0)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(np.concatenate([[0.0], right / wanted])) * best).sum())
