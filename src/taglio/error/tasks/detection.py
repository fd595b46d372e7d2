"""Decode the boxes of common detection heads, and compare two sets of boxes.

Heads are recognised by their shapes: YOLO v8 and later [1, 4 + classes, boxes]; YOLO v5 [1, boxes, 5 + classes] with an
objectness; YOLOX the same, undecoded on its grid; boxes that the graph selected, [1, boxes, 6 or more] with corners,
score and class (YOLO v10), or [1, boxes, 4] beside scores and classes [1, boxes], by name; SSD and similar: boxes
[1, boxes, 4] beside scores [1, boxes, classes], with the background as the first class if scores sum to 1; anchor-free
heads with outputs per stride: YuNet's by their names (cls_8, obj_8, bbox_8, …), others by the number of cells, with the
distances from a cell to the four sides of its box (SCRFD), or their distributions (PicoDet; NanoDet, with the scores
and all strides in one output). Anchors and priors are unknown: boxes that the graph leaves encoded are compared in that
form, which is fair between two runs of one model.

Distributions: Li et al., Generalized Focal Loss, NeurIPS 2020: a side is the expectation of a softmax over whole cells.
"""

from ast import literal_eval
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taglio.error.tasks.outputs import Outputs, Setting, prototypes, shapes
from taglio.errors import BadData

CLASS_NAMES = "names"  # Ultralytics' metadata key
# Boxes kept per image.
_MOST_BOXES = 300
_STRIDES = (8, 16, 32)
# The columns of a head's boxes: four distances, or four distributions over 8, 16 or 17 cells.
_BOX_COLUMNS = (4, 32, 64, 68)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of one image: corners [n, 4] (x1, y1, x2, y2), scores [n], classes [n]."""

    corners: np.ndarray
    scores: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        """The number of boxes."""
        return len(self.scores)


def read_boxes(outputs: Outputs, setting: Setting) -> Boxes:
    """Boxes above the task's score threshold; with labels, all that count for an average precision."""
    score = 0.001 if setting.labelled else setting.parameters["score"]
    return decode(outputs, setting.image, score, class_count(setting.metadata))


def class_count(metadata: Mapping[str, str]) -> int | None:
    """The number of classes that Ultralytics' metadata names, as "{0: 'person', 1: 'car'}"; None if it names none."""
    try:
        return len(literal_eval(metadata.get(CLASS_NAMES, ""))) or None
    except (ValueError, SyntaxError, TypeError):
        return None


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


def matched(boxes: Boxes, truth: Boxes, setting: Setting) -> tuple[Boxes, np.ndarray, Boxes]:
    """The changed model's boxes, which of them match a true box (bool), and the true boxes."""
    return boxes, _matches(boxes, truth, setting.parameters["iou"]), truth


def box_agreement(evidence: Sequence[tuple[Boxes, np.ndarray, Boxes]], setting: Setting) -> float:
    """F1 of the boxes of the changed model against those of the float model, matched one to one within a class at the
    task's IoU; 1 if neither finds any. With labels, the mean average precision."""
    if setting.labelled:
        return _average_precision(evidence)
    both = sum(int(hits.sum()) for _, hits, _ in evidence)
    total = sum(len(boxes) + len(truth) for boxes, _, truth in evidence)
    return 2.0 * both / total if total else 1.0


def _average_precision(evidence: Sequence[tuple[Boxes, np.ndarray, Boxes]]) -> float:
    """Mean over classes of the area under the precision-recall curve (all points, as COCO's at one IoU)."""
    wanted = Counter(kind for _, _, truth in evidence for kind in truth.classes.tolist())
    scores = np.concatenate([boxes.scores for boxes, _, _ in evidence])
    classes = np.concatenate([boxes.classes for boxes, _, _ in evidence])
    hits = np.concatenate([of_image for _, of_image, _ in evidence])
    order = np.argsort(-scores, kind="stable")
    classes, hits = classes[order], hits[order]
    areas = [_area(hits[classes == kind], count) for kind, count in wanted.items()]
    if not areas:
        raise BadData("metric detection: the labels hold no box")
    return float(np.mean(areas))


def decode(outputs: Outputs, image: tuple[int, int] | None, score: float, count: int | None = None) -> Boxes:
    """Boxes above `score` after non-maximum suppression within each class, of which there are `count` if it is known.
    Raises BadData if no known head fits."""
    corners, scores = _candidates(outputs, image)
    scores = scores[:, :count]  # key points or an angle may follow
    classes = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), classes]
    kept = best > score
    return _suppressed(Boxes(corners[kept], best[kept], classes[kept]))


def _candidates(outputs: Outputs, image: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    """Corners [n, 4] and scores [n, classes] of all boxes that the head proposes."""
    arrays = {name: np.asarray(v, np.float64) for name, v in outputs.items() if np.asarray(v).dtype.kind == "f"}
    if candidates := _by_stride(arrays, image):
        return candidates
    if image is not None and (heads := heads_by_stride({name: array.shape for name, array in arrays.items()}, image)):
        corners = [_from_distances(_rows(arrays[boxes]), stride, image) for stride, _, boxes in heads]
        return np.concatenate(corners), np.concatenate([_rows(arrays[scores]) for _, scores, _ in heads])
    if candidates := _listed(outputs):
        return candidates
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
        return _corners(boxes), scores[:, 1:] if background else scores
    for array in flat.values():
        if 5 <= array.shape[0] < array.shape[1]:  # YOLO v8 and later have no objectness
            return _from_centres(array[:4].T), array[4 : len(array) - prototypes(arrays, image)].T
        if bins := _bins(array, image):
            return _from_distributions(array, bins, image)
        if array.shape[1] >= 6 and not on_grid(len(array), image) and _has_corners(array):
            return array[:, :4], _one_hot(array[:, 4], array[:, 5])
        if array.shape[1] >= 6 and on_grid(len(array), image):
            return _from_cells(array[:, :4], image), array[:, 4:5] * array[:, 5:]
        if array.shape[1] >= 5 and sum(len(other) == len(array) for other in flat.values()) == 1:
            return _from_centres(array[:, :4]), array[:, 4:]
    raise BadData(f"metric detection: no known head writes {shapes(outputs)}: give module:function as the metric")


def _by_stride(arrays: Mapping[str, np.ndarray], image: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Boxes of outputs like cls_8, obj_8 and bbox_8: offsets and logarithms of sizes in cells of each stride."""
    if image is None:
        return None
    corners, scores = [], []
    for stride in _STRIDES:
        own = {
            name.rsplit("_", 1)[0]: array for name, array in arrays.items() if name.rsplit("_", 1)[-1] == str(stride)
        }
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


def _rows(value: np.ndarray) -> np.ndarray:
    return value.reshape(-1, value.shape[-1])


def heads_by_stride(shapes: Mapping[str, tuple[int, ...]], image: tuple[int, int]) -> list[tuple[int, str, str]]:
    """The strides that have a float output with scores and one with boxes, each with as many rows as it has cells, and
    the names of both; none if there are fewer than two strides. Exporters write boxes behind scores."""
    heads: list[tuple[int, str, str]] = []
    rows = {name: shape[-2] for name, shape in shapes.items() if len(shape) in (2, 3) and shape[:-2] in ((), (1,))}
    for stride in (8, 16, 32, 64, 128):
        cells = _cells(image, stride)
        own = [name for name, count in rows.items() if count in (cells, 2 * cells, 3 * cells)]
        boxes = [name for name in own if shapes[name][-1] in _BOX_COLUMNS]
        if boxes and len(own) > 1:
            heads.append((stride, next(name for name in own if name != boxes[-1]), boxes[-1]))
            rows = {name: count for name, count in rows.items() if name not in own}
    return heads if len(heads) > 1 else []


def on_grid(count: int, image: tuple[int, int] | None) -> bool:
    """Whether `count` is the number of boxes on the usual strides: one per cell, or three as in YOLO v5."""
    return image is not None and bool(_levels(count, image) or _levels(count / 3, image))


def _cells(image: tuple[int, int], stride: int) -> int:
    return -(-image[0] // stride) * -(-image[1] // stride)


def _levels(count: float, image: tuple[int, int]) -> tuple[int, ...]:
    """The usual strides that together have `count` cells, if any have."""
    usual = (_STRIDES, (*_STRIDES, 64))
    return next((strides for strides in usual if sum(_cells(image, stride) for stride in strides) == count), ())


def _bins(array: np.ndarray, image: tuple[int, int] | None) -> int:
    """The number of cells that the distributions at the end of a row span, if class scores precede them; else 0.
    YOLO's rows of this size begin with a box."""
    if image is not None and _levels(len(array), image):
        for columns in _BOX_COLUMNS[1:]:
            scores = array[:, :-columns]
            if scores.size and scores.min() > -0.1 and scores.max() < 1.1 and array[:, -columns:].max() > 1.1:
                return columns // 4
    return 0


def _from_distributions(rows: np.ndarray, bins: int, image: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    """Corners and scores of rows with classes and four distributions for the cells of every stride, one after
    another."""
    assert image is not None, "cells are counted by the image's size"
    strides = _levels(len(rows), image)
    ends = np.cumsum([_cells(image, stride) for stride in strides])[:-1]
    sides = np.split(rows[:, -4 * bins :], ends)
    corners = [_from_distances(of_stride, stride, image) for of_stride, stride in zip(sides, strides, strict=True)]
    return np.concatenate(corners), rows[:, : -4 * bins]


def _listed(outputs: Outputs) -> tuple[np.ndarray, np.ndarray] | None:
    """Boxes [1, boxes, 4] beside a score and a class for each, or [1, boxes, 5] with the score beside a class."""
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    for boxes in arrays.values():
        if boxes.ndim != 3 or boxes.shape[0] != 1 or boxes.shape[2] not in (4, 5):
            continue
        own = {name: array[0] for name, array in arrays.items() if array.shape == boxes.shape[:2]}
        classes = next((array for name, array in own.items() if names_classes(name)), None)
        last = boxes[0, :, 4] if boxes.shape[2] == 5 else None
        scores = next((array for name, array in own.items() if "score" in name.lower()), last)
        if classes is not None and scores is not None:
            return boxes[0, :, :4].astype(np.float64), _one_hot(scores, classes)
    return None


def names_classes(output: str) -> bool:
    """Whether the name of an output says that it holds a class for each box."""
    return any(word in output.lower() for word in ("class", "label"))


def _has_corners(rows: np.ndarray) -> bool:
    """Whether rows that are not empty begin with two corners: of a centre and a size, few have a size larger than the
    centre."""
    used = rows[rows[:, :4].any(axis=1)]
    return len(used) > 0 and bool(np.mean((used[:, 2:4] > used[:, :2]).all(axis=1)) > 0.5)


def _corners(rows: np.ndarray) -> np.ndarray:
    """Corners of boxes [boxes, 4] given by their corners, by centre and size, or as offsets from priors, two to the
    centre and two to the logarithm of the size. Priors are unknown: they have size 1 here, each far from the others."""
    if _has_corners(rows):
        return rows
    if (rows[:, 2:] >= 0.0).all():
        return _from_centres(rows)
    places = np.stack([1e6 * np.arange(len(rows)), np.zeros(len(rows))], axis=1)
    return _from_centres(np.concatenate([places + rows[:, :2], np.exp(np.clip(rows[:, 2:], -20.0, 20.0))], axis=1))


def _one_hot(scores: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Scores [n, classes] of boxes that have one class each."""
    kinds = np.clip(np.rint(classes), 0, 9999).astype(np.int64)  # quantising may have spoiled a class
    one_hot = np.zeros((len(scores), int(kinds.max(initial=0)) + 1))
    one_hot[np.arange(len(scores)), kinds] = scores
    return one_hot


def _from_cells(rows: np.ndarray, image: tuple[int, int] | None) -> np.ndarray:
    """Corners of YOLO v5's decoded boxes, or of YOLOX's, which are offsets in cells and logarithms of sizes. The two
    are distinguished by magnitude."""
    assert image is not None, "cells are counted by the image's size"
    cells = [(stride, *divmod(np.arange(_cells(image, stride)), -(-image[1] // stride))) for stride in _STRIDES]
    strides = np.concatenate([np.full((len(y), 1), stride) for stride, y, _ in cells])
    if len(strides) != len(rows) or float(np.median(np.abs(rows[:, :2]))) > min(_STRIDES):
        return _from_centres(rows)
    origin = np.concatenate([np.stack([x, y], axis=1) for _, y, x in cells])
    sizes = np.exp(np.clip(rows[:, 2:], -20.0, 20.0)) * strides
    return _from_centres(np.concatenate([(rows[:, :2] + origin) * strides, sizes], axis=1))


def _from_distances(rows: np.ndarray, stride: int, image: tuple[int, int]) -> np.ndarray:
    """Corners of boxes given by the distances from their cell to the left, top, right and bottom: in cells, from its
    corner (SCRFD); or distributions [rows, 4 × bins], from its middle (PicoDet)."""
    columns, bins = -(-image[1] // stride), rows.shape[1] // 4
    y, x = np.divmod(np.arange(len(rows)) // (len(rows) // _cells(image, stride)), columns)
    origin = np.stack([x, y], axis=1) + (0.5 if bins > 1 else 0.0)
    if bins > 1:
        sides = rows.reshape(-1, 4, bins)
        shares = np.exp(sides - sides.max(axis=2, keepdims=True))
        rows = shares @ np.arange(bins) / shares.sum(axis=2)
    return np.concatenate([origin - rows[:, :2], origin + rows[:, 2:]], axis=1) * stride


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
        alive[place + 1 :] &= ~((overlap > 0.65) & (boxes.classes[rest] == boxes.classes[index]))
    return Boxes(boxes.corners[kept], boxes.scores[kept], boxes.classes[kept])


def _matches(boxes: Boxes, truth: Boxes, iou: float) -> np.ndarray:
    """Whether each of `boxes` matches a true box, bool [boxes]: best score first, each takes the unmatched true box of
    its class with the largest overlap."""
    hits = np.zeros(len(boxes.scores), bool)
    if not len(truth.scores):
        return hits
    overlap = _iou(boxes.corners, truth.corners)
    overlap[boxes.classes[:, None] != truth.classes[None, :]] = -1.0
    for index in np.argsort(-boxes.scores, kind="stable"):
        best = int(overlap[index].argmax())
        if overlap[index, best] >= iou:
            hits[index] = True
            overlap[:, best] = -1.0
    return hits


def _iou(boxes: np.ndarray, rivals: np.ndarray) -> np.ndarray:
    """Intersection over union [n, m] of corners [n, 4] and [m, 4]."""
    low = np.maximum(boxes[:, None, :2], rivals[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], rivals[None, :, 2:])
    inside = np.clip(high - low, 0.0, None).prod(axis=2)
    area = np.clip(boxes[:, 2:] - boxes[:, :2], 0.0, None).prod(axis=1)
    rival_area = np.clip(rivals[:, 2:] - rivals[:, :2], 0.0, None).prod(axis=1)
    return np.asarray(inside / np.maximum(area[:, None] + rival_area[None, :] - inside, 1e-30))


def _area(hits: np.ndarray, wanted: int) -> float:
    """Area under the precision-recall curve, with precision made monotone. `hits` [boxes] are best first; `wanted` is
    the number of true boxes."""
    right = np.cumsum(hits)
    precision = right / np.arange(1, len(hits) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(np.concatenate([[0.0], right / wanted])) * best).sum())
