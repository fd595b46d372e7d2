"""Classes, pixels, embeddings and numbers, against direct counts."""

import numpy as np
import pytest

from taglio.error.tasks.outputs import Outputs, Setting
from taglio.error.tasks.vectors import read_map
from taglio.errors import BadData
from tests.error.tasks.scored import scored


def one_hot(classes: np.ndarray, count: int) -> np.ndarray:
    return np.asarray(np.eye(count, dtype=np.float32)[classes])


def test_tokens_counts_positions_and_skips_ignored_labels() -> None:
    before, after = one_hot(np.array([[0, 1, 2, 3]]), 4), one_hot(np.array([[0, 1, 3, 3]]), 4)
    assert scored("tokens", [{"y": after}], [{"y": before}]) == 0.75
    labels = np.array([[0, 2, -100, 3]])
    assert scored("tokens", [{"y": after}], [{"y": before}], labels) == pytest.approx(2 / 3)


def test_perplexity_of_even_scores_is_the_number_of_classes() -> None:
    outputs = [{"y": np.zeros((1, 3, 7), np.float32)}]
    assert scored("perplexity", outputs, outputs, np.array([[1, 2, -100]])) == pytest.approx(7.0)


@pytest.mark.parametrize("channels_first", [True, False])
def test_mean_iou_of_a_shifted_edge(channels_first: bool) -> None:
    left = np.zeros((4, 8), np.int64)
    left[:, 4:] = 1
    moved = np.zeros((4, 8), np.int64)
    moved[:, 5:] = 1

    def output(classes: np.ndarray) -> Outputs:
        if not channels_first:
            return {"y": classes[None]}  # an ArgMax in the graph
        return {"y": one_hot(classes, 2).transpose(2, 0, 1)[None]}

    expected = (16 / 20 + 12 / 16) / 2
    assert scored("segmentation", [output(moved)], [output(left)]) == pytest.approx(expected)
    assert scored("segmentation", [output(moved)], [output(moved)], left[None]) == pytest.approx(expected)


@pytest.mark.parametrize(("image", "large"), [((4, 8), 1), ((8, 8), 1), ((30, 62), 8)])
@pytest.mark.parametrize("classes", [1, 3])
def test_classes_may_be_the_last_axis_of_a_map(image: tuple[int, int], large: int, classes: int) -> None:
    size = (-(-image[0] // large), -(-image[1] // large))
    rows = np.random.default_rng(0).integers(0, 2, size)
    first = (one_hot(rows, classes) if classes > 1 else rows[..., None]).transpose(2, 0, 1)[None].astype(np.float32)
    last = np.moveaxis(first, 1, 3)
    read = [read_map({"y": values}, Setting(image=image)) for values in (first, last)]
    assert read[0].tolist() == read[1].tolist() == rows.ravel().tolist()


def test_neighbours_and_ranks_of_embeddings() -> None:
    rows = np.random.default_rng(0).normal(size=(12, 16)).astype(np.float32)
    scaled = [{"y": 3.0 * row[None]} for row in rows]
    same = [{"y": row[None]} for row in rows]
    other = [{"y": row[None]} for row in np.random.default_rng(1).normal(size=(12, 16)).astype(np.float32)]
    for name in ("similarity", "recall:k=3"):
        assert scored(name, scaled, same) == pytest.approx(1.0)
        assert scored(name, other, same) < 0.7


def test_embeddings_of_a_batch_are_samples_of_their_own() -> None:
    rows, other = np.random.default_rng(0).normal(size=(2, 12, 16)).astype(np.float32)
    batches = [4, 8]
    for name in ("similarity", "recall:k=3"):
        alone = scored(name, [{"y": row[None]} for row in other], [{"y": row[None]} for row in rows])
        changed, same = ([{"y": each[:4]}, {"y": each[4:]}] for each in (other, rows))
        assert scored(name, changed, same, image=(8, 8), batches=batches) == pytest.approx(alone)
    with pytest.raises(BadData, match=r"sample 0: no output of y \[1, 16\] has a batch of 4"):
        scored("similarity", [{"y": rows[:1]}], [{"y": rows[:1]}], image=(8, 8), batches=[4])


def test_r2_falls_from_one_with_the_squared_error() -> None:
    truth = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    off = truth + 0.5
    assert scored("r2", [{"y": off}], [{"y": truth}]) == pytest.approx(1 - 4 * 0.25 / 5)
    assert scored("r2", [{"y": off}], [{"y": truth}], off) == pytest.approx(1.0)


def test_prototypes_of_masks_are_no_classes() -> None:
    rows, maps = np.zeros((1, 14, 40), np.float32), np.zeros((1, 8, 16, 24), np.float32)
    with pytest.raises(BadData, match=r"8 mask prototypes in .* use detection"):
        scored("segmentation", [{"y": rows, "z": maps}], [{"y": rows, "z": maps}], image=(64, 96))
    whole = {"y": rows, "z": np.zeros((1, 8, 64, 96), np.float32)}
    assert scored("segmentation", [whole], [whole], image=(64, 96)) == 1.0
