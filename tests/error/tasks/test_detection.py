"""Heads decoded from boxes that were encoded here, and agreement against hand counts."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from taglio.error.tasks.detection import decode
from taglio.error.tasks.outputs import Outputs
from taglio.errors import BadData
from tests.error.tasks.scored import scored

IMAGE = (64, 96)
Labelled = Sequence[tuple[tuple[float, ...], float, int]]
CELLS = sum((IMAGE[0] // s) * (IMAGE[1] // s) for s in (8, 16, 32))
# Corners, score, class: two boxes apart, and one that the first suppresses.
BOXES = [((8.0, 8.0, 24.0, 40.0), 0.9, 0), ((50.0, 16.0, 90.0, 60.0), 0.8, 1), ((9.0, 9.0, 24.0, 41.0), 0.6, 0)]


def centres(corners: tuple[float, ...]) -> list[float]:
    x1, y1, x2, y2 = corners
    return [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]


def yolo8(boxes: Labelled) -> Outputs:
    out = np.zeros((1, 6, 40), np.float32)
    for index, (corners, score, kind) in enumerate(boxes):
        out[0, :4, index] = centres(corners)
        out[0, 4 + kind, index] = score
    return {"output0": out}


def yolo8_with_masks(boxes: Labelled) -> Outputs:
    rows = yolo8(boxes)["output0"]
    coefficients = np.full((1, 8, 40), 3.0, np.float32)
    return {"output0": np.concatenate([rows, coefficients], axis=1), "output1": np.ones((1, 8, 16, 24), np.float32)}


def yolo5(boxes: Labelled) -> Outputs:
    out = np.zeros((1, 3 * CELLS, 7), np.float32)
    out[..., :2] = 40.0
    for index, (corners, score, kind) in enumerate(boxes):
        out[0, index, :4] = centres(corners)
        out[0, index, 4], out[0, index, 5 + kind] = 1.0, score
    return {"output": out}


def cell_of(corners: tuple[float, ...], stride: int, used: set[int]) -> tuple[int, int, int]:
    """A cell of `stride` that no other box uses, near the box: index, column, row."""
    columns = IMAGE[1] // stride
    x, y = int(centres(corners)[0] // stride), int(centres(corners)[1] // stride)
    while y * columns + x in used:
        y += 1
    used.add(y * columns + x)
    return y * columns + x, x, y


def yolox(boxes: Labelled) -> Outputs:
    out = np.zeros((1, CELLS, 7), np.float32)
    used: set[int] = set()
    for corners, score, kind in boxes:
        index, x, y = cell_of(corners, 8, used)
        cx, cy, width, height = centres(corners)
        out[0, index] = [cx / 8 - x, cy / 8 - y, np.log(width / 8), np.log(height / 8), 1.0, 0.0, 0.0]
        out[0, index, 5 + kind] = score
    return {"output": out}


def ssd(boxes: Labelled) -> Outputs:
    corners, scores = np.zeros((1, 30, 4), np.float32), np.zeros((1, 30, 3), np.float32)
    scores[..., 0] = 1.0
    for index, (box, score, kind) in enumerate(boxes):
        corners[0, index] = box
        scores[0, index, 0], scores[0, index, 1 + kind] = 1.0 - score, score
    return {"scores": scores, "boxes": corners}


def by_stride(boxes: Labelled) -> Outputs:
    out: dict[str, np.ndarray] = {}
    used: set[int] = set()
    for stride in (8, 16, 32):
        count = (IMAGE[0] // stride) * (IMAGE[1] // stride)
        out |= {
            f"cls_{stride}": np.zeros((1, count, 2), np.float32),
            f"obj_{stride}": np.ones((1, count, 1), np.float32),
        }
        out[f"bbox_{stride}"] = np.zeros((1, count, 4), np.float32)
    for corners, score, kind in boxes:
        index, x, y = cell_of(corners, 16, used)
        cx, cy, width, height = centres(corners)
        out["bbox_16"][0, index] = [cx / 16 - x, cy / 16 - y, np.log(width / 16), np.log(height / 16)]
        out["cls_16"][0, index, kind] = score**2  # the head's score is √(class · object)
    return out


def distances(boxes: Labelled, *, bins: int) -> Outputs:
    """Outputs without a batch axis (SCRFD), two boxes a cell; or with distributions over `bins` cells (PicoDet), whose
    strides reach beyond the image."""
    strides, per_cell, origin = ((8, 16, 32, 64), 1, 0.5) if bins > 1 else ((8, 16, 32), 2, 0.0)
    out: dict[str, np.ndarray] = {}
    for stride in strides:
        rows = -(-IMAGE[0] // stride) * -(-IMAGE[1] // stride) * per_cell
        out |= {f"scores{stride}": np.zeros((rows, 2), np.float32), f"boxes{stride}": np.zeros((rows, 4), np.float32)}
        out[f"points{stride}"] = np.ones((rows, 10), np.float32)
    used: set[int] = set()
    for corners, score, kind in boxes:
        index, x, y = cell_of(corners, 16, used)
        x1, y1, x2, y2 = (values / 16 for values in corners)
        x0, y0 = x + origin, y + origin
        out["boxes16"][per_cell * index] = [x0 - x1, y0 - y1, x2 - x0, y2 - y0]
        out["scores16"][per_cell * index, kind] = score
    if bins == 1:
        return out
    for stride in strides:
        sides = out[f"boxes{stride}"][..., None]
        shares = np.clip(1.0 - np.abs(sides - np.arange(bins)), 1e-9, None)  # of the two nearest whole numbers
        out[f"boxes{stride}"] = np.log(shares).reshape(len(sides), -1)
    return {name: values[None] for name, values in out.items()}


def one_output(boxes: Labelled, *, bins: int) -> Outputs:
    """NanoDet: scores and distributions side by side, the strides one after another."""
    apart = distances(boxes, bins=bins)
    rows = [np.concatenate([apart[f"scores{s}"], apart[f"boxes{s}"] + 20.0], axis=2) for s in (8, 16, 32, 64)]
    return {"output": np.concatenate(rows, axis=1)}


def selected(boxes: Labelled) -> Outputs:
    """What the graph chose itself: corners, score and class, best first."""
    out = np.zeros((1, 20, 6), np.float32)
    for index, (corners, score, kind) in enumerate(boxes):
        out[0, index] = [*corners, score, kind]
    return {"output0": out}


def listed(boxes: Labelled, *, apart: bool) -> Outputs:
    """What the graph chose itself, in several outputs (TensorFlow, TensorRT), or in two (MMDetection)."""
    rows = selected(boxes)["output0"]
    if not apart:
        return {"labels": rows[..., 5].astype(np.int64), "dets": rows[..., :5]}
    scores, classes = rows[..., 4], rows[..., 5]
    return {"detection_classes": classes, "detection_scores": scores, "detection_boxes": rows[..., :4]}


HEADS = [
    partial(listed, apart=True),
    partial(listed, apart=False),
    partial(distances, bins=1),
    partial(distances, bins=8),
    partial(one_output, bins=8),
    selected,
    yolo8,
    yolo8_with_masks,
    yolo5,
    yolox,
    ssd,
    by_stride,
]


@pytest.mark.parametrize("head", HEADS)
def test_each_head_gives_the_boxes_that_were_put_in(head: type) -> None:
    boxes = decode(head(BOXES), IMAGE, 0.25)
    assert np.allclose(boxes.corners, [BOXES[0][0], BOXES[1][0]], atol=1e-3)
    assert np.allclose(boxes.scores, [0.9, 0.8], atol=1e-3)
    assert boxes.classes.tolist() == [0, 1]


@pytest.mark.parametrize("head", [ssd, partial(distances, bins=8)])
def test_agreement_counts_boxes_matched_within_a_class(head: type) -> None:
    moved = [((10.0, 8.0, 26.0, 40.0), 0.9, 0), (BOXES[1][0], 0.8, 0)]  # one moved a little, one of another class
    assert scored("detection", [head(moved)], [head(BOXES)], image=IMAGE) == pytest.approx(2 * 1 / (2 + 2))
    assert scored("detection:iou=0.9", [head(moved)], [head(BOXES)], image=IMAGE) == 0.0
    assert scored("detection", [head([])], [head([])], image=IMAGE) == 1.0
    assert scored("detection", [head([])], [head(BOXES)], image=IMAGE) == 0.0


@pytest.mark.parametrize("by", ["offsets", "centres"])
def test_boxes_that_are_no_corners_agree_with_themselves(by: str) -> None:
    """SSD and RetinaFace leave offsets from priors, DETR centres and sizes: taken for corners, few have an area."""
    rng = np.random.default_rng(0)
    boxes = rng.normal(0.0, 1.0, (1, 30, 4)) if by == "offsets" else rng.uniform([0.3, 0.3, 0.1, 0.1], 0.5, (1, 30, 4))
    scores = rng.uniform(0.0, 1.0, (1, 30, 3))
    own, moved = {"boxes": boxes, "scores": scores}, {"boxes": boxes[:, ::-1], "scores": scores}
    assert scored("detection", [own], [own], image=IMAGE) == 1.0
    assert scored("detection", [{**own, "boxes": boxes * 1.02}], [own], image=IMAGE) > 0.9
    assert scored("detection", [moved], [own], image=IMAGE) < 0.7


def test_rows_that_change_places_are_the_same_boxes() -> None:
    swapped = [BOXES[1], BOXES[0]]
    assert scored("detection", [selected(swapped)], [selected(BOXES)], image=IMAGE) == 1.0


def test_average_precision_is_the_area_counted_by_hand() -> None:
    # Class 0: two boxes of which one is found, behind a false one: precision 1/2 at recall 1/2. Class 1: found.
    false = ((40.0, 1.0, 60.0, 12.0), 0.95, 0)
    labels = np.full((1, 4, 5), -1.0)
    labels[0, :3] = [[*BOXES[0][0], 0], [60, 1, 90, 12, 0], [*BOXES[1][0], 1]]
    detections = [ssd([false, *BOXES[:2]])]
    assert scored("detection", detections, [ssd([])], labels, image=IMAGE) == pytest.approx((0.5 * 0.5 + 1.0) / 2)
    ragged = np.empty(1, object)
    ragged[0] = labels[0, :3]
    assert scored("detection", detections, [ssd([])], ragged, image=IMAGE) == pytest.approx((0.5 * 0.5 + 1.0) / 2)


def test_key_points_behind_the_classes_that_the_metadata_names_are_no_scores() -> None:
    def pose(boxes: Labelled) -> Outputs:
        out = yolo8(boxes)["output0"]
        return {"output0": np.concatenate([out, np.full((1, 3, 40), 30.0, np.float32)], axis=1)}

    names = {"names": "{0: 'person', 1: 'car'}"}
    assert scored("detection", [pose(BOXES[:1])], [pose(BOXES)], image=IMAGE, metadata=names) == pytest.approx(2 / 3)
    assert scored("detection", [yolo8(BOXES)], [yolo8(BOXES)], image=IMAGE, metadata={"names": "person"}) == 1.0


@pytest.mark.parametrize(
    ("outputs", "shown"),
    [
        ({"y": np.zeros((1, 10), np.float32)}, r"y \[1, 10\]"),
        # Scores beside boxes in an unknown form are not boxes.
        ({"y": np.zeros((1, 70, 10), np.float32), "z": np.zeros((1, 70, 20), np.float32)}, r"y \[1, 70, 10\]"),
    ],
)
def test_outputs_of_no_head_are_refused_with_their_shapes(outputs: Outputs, shown: str) -> None:
    with pytest.raises(BadData, match=f"sample 0.*{shown}"):
        scored("detection", [outputs], [outputs], image=IMAGE)
