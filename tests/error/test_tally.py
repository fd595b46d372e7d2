"""The error that is accumulated sample by sample is NumPy's on all samples at once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from taglio.error.judge import TaskJudge
from taglio.error.loss import RELATIVE, Bound, parse_metric
from taglio.error.parts import whole
from taglio.error.tally import RUINED, Measure, PartLoss, Tally

Samples = list[list[np.ndarray]]


def drawn(seed: int, samples: int = 5) -> Samples:
    """Two outputs a sample: a map and a vector, of unlike size."""
    rng = np.random.default_rng(seed)
    return [
        [rng.normal(3.0, 2.0, (1, 4, 6, 6)).astype(np.float32), rng.normal(0.0, 1e-3, (1, 7)).astype(np.float32)]
        for _ in range(samples)
    ]


def accumulated(reference: Samples, changed: Samples) -> Tally:
    total = Tally(["map", "vector"])
    for y, z in zip(reference, changed, strict=True):
        total.add(y, z)
    return total


def value_of(*pairs: tuple[object, object]) -> float:
    """The error of one output, of which float and the changed model give a pair of arrays for each sample."""
    total = Tally(["y"])
    for reference, changed in pairs:
        total.add([np.asarray(reference)], [np.asarray(changed)])
    return total.value()


@pytest.mark.parametrize("size", [1e-6, 1.0])
def test_it_is_the_norm_of_the_difference_over_the_norm_on_all_samples_together(size: float) -> None:
    reference, other = drawn(0), drawn(1)
    changed = [[y + np.float32(size) * z for y, z in zip(a, b)] for a, b in zip(reference, other)]
    total = accumulated(reference, changed)
    for index in range(2):
        y = np.concatenate([sample[index].astype(np.float64).ravel() for sample in reference])
        z = np.concatenate([sample[index].astype(np.float64).ravel() for sample in changed])
        assert float(total.l2()[index]) == pytest.approx(np.linalg.norm(y - z) / np.linalg.norm(y), rel=1e-4)
    assert total.value() == max(total.l2())


def test_pooling_weighs_samples_by_their_size_and_not_by_their_number() -> None:
    """By hand: differences 3 and 4 on norms 6 and 8 are 5 / 10, though each sample has 0.5 of its own."""
    pairs = ([6.0], [9.0]), ([0.0, 8.0], [4.0, 8.0])
    assert value_of(*pairs) == pytest.approx(0.5)
    assert value_of(*pairs, ([0.0], [12.0])) == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.array([3, 1, 4, 1]), np.array([3, 1, 5, 1])),
        (np.array(["a", "b", "c", "d"], object), np.array(["a", "b", "x", "d"], object)),
        ([np.array([3, 1]), np.array([4, 1])], [np.array([3, 1]), np.array([5, 1])]),
        (np.array([3, 1, 4, 1]), np.array([3, 1, 4])),
    ],
)
def test_what_is_not_float_is_compared_for_equality(before: np.ndarray, after: np.ndarray) -> None:
    alone = Tally(["class"])
    alone.add([before], [after])
    assert alone.value() == pytest.approx(0.25)
    beside = Tally(["class", "y"])
    beside.add([before, np.array([3.0, 4.0])], [after, np.array([3.0, 4.5])])
    assert beside.value() == pytest.approx(0.1)
    assert beside.unchanged() == {"class": pytest.approx(0.75)}
    assert [part.name for part in beside.parts()] == ["y"]


def test_a_scalar_and_a_map_are_outputs_like_others() -> None:
    total = Tally(["mean", "scores"])
    before: list[Any] = [np.float32(2.0), [{"cat": 3.0, "dog": 4.0}]]
    after: list[Any] = [np.float32(2.0), [{"dog": 4.0, "cat": 3.5}]]
    total.add(before, after)
    assert list(total.l2()) == pytest.approx([0.0, 0.1])


def test_rows_in_the_order_of_scores_may_change_places_without_being_lost() -> None:
    rng = np.random.default_rng(0)
    for ranked, lost in ((frozenset[int](), "a different order"), (frozenset({0}), "")):
        tally = Tally(replace(whole(["y"]), ranked=ranked), watched=True)
        for _ in range(6):
            rows = rng.normal(0, 1, (1, 40, 4))
            tally.add([rows], [rng.permutation(rows, axis=1)])
        assert lost in tally.lost() and bool(lost) == bool(tally.lost())
        tally.add([rows], [np.full_like(rows, np.nan)])
        assert "NaN" in tally.lost()


def test_of_lengths_that_differ_what_is_missing_counts_as_zero() -> None:
    total = Tally(["boxes"])
    total.add([np.array([[3.0], [4.0]])], [np.array([[3.0]])])
    assert total.value() == pytest.approx(0.8)
    total.add([np.array([[12.0]])], [np.array([[12.0], [5.0]])])
    assert total.value() == pytest.approx(np.sqrt((16 + 25) / (25 + 144)))
    assert total.ragged == {"boxes": 2}


@pytest.mark.parametrize("masked", [-np.inf, np.nan, -3.4e38, -1e9])
def test_what_is_masked_alike_hides_nothing(masked: float) -> None:
    y = np.array([3.0, masked, 4.0, masked], np.float32)
    assert 0.05 < value_of((y, y + np.array([0.0, 0.0, 0.5, 0.0], np.float32))) <= 0.1
    assert value_of((y, np.array([3.0, 1.0, 4.0, masked], np.float32))) > 0.4


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e25])
def test_outputs_of_any_size_have_an_error(size: float) -> None:
    y = np.array([3.0, -1.0, 4.0], np.float32) * np.float32(size)
    assert value_of((y, y * np.float32(1.5))) == pytest.approx(0.5, rel=1e-5)


def test_masks_of_several_sizes_hide_nothing() -> None:
    y = np.array([3.0, -1e4, 4.0, -65504.0, -1e9, 0.0], np.float32)
    assert 0.05 < value_of((y, y + np.array([0.0, 0.0, 0.5, 0.0, 0.0, 0.0], np.float32))) <= 0.1
    # Values that fill the range between are none.
    wide = np.logspace(-2.0, 6.0, 50, dtype=np.float32)
    assert value_of((wide, wide * np.where(wide < 1.0, 2.0, 1.0).astype(np.float32))) < 1e-5


@pytest.mark.parametrize(("mask", "is_one"), [(-100.0, True), (-999.0, True), (-1.0, False), (-5.0, False)])
def test_a_value_far_beyond_the_others_again_and_again_is_no_part_of_the_norm(mask: float, is_one: bool) -> None:
    values = np.random.default_rng(0).normal(0, 4, (6, 8)).astype(np.float32)
    kept, changed = (np.where(values > 0.0, factor * values, np.float32(mask)) for factor in (1.0, 1.1))
    assert (value_of((kept, changed)) == pytest.approx(0.1)) == is_one
    assert (value_of((kept, np.where(values > 0.0, values, 0.9 * mask))) > 1.0) == is_one


def test_what_is_zero_for_float_on_all_samples_must_stay_zero() -> None:
    total = Tally(["y", "mask"], watched=True)
    for _ in range(3):
        total.add([np.ones(2), np.zeros(2)], [np.ones(2), np.full(2, 0.1)])
    assert total.value() == np.inf
    assert total.lost() == "mask is not 0, as it is in float for every input"
    # Zero on some samples is nothing special.
    total.add([np.ones(2), np.ones(2)], [np.ones(2), np.ones(2)])
    assert total.l2()[1] == pytest.approx(np.sqrt(0.06 / 2.0))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_quantised_model_that_gives_no_numbers_is_infinitely_wrong(wrong: float) -> None:
    assert value_of((np.ones(2), [1.0, wrong])) == np.inf


def test_numbers_lost_where_the_float_model_is_zero_are_no_agreement() -> None:
    total = Tally(["y"], watched=True)
    total.add([np.zeros(2)], [np.array([0.0, np.nan])])
    assert total.value() == np.inf
    assert total.parts() == (PartLoss("y", RUINED, "is NaN or infinite"),)


def test_the_upper_end_is_far_for_few_samples_and_unknown_for_repeated_ones() -> None:
    rng = np.random.default_rng(0)
    margins = []
    for count in (4, 16, 64):
        total = Tally(["y"])
        for _ in range(count):
            y = rng.normal(0.0, 1.0, 50)
            total.add([y], [y + rng.normal(0.0, 0.01 * rng.uniform(0.2, 3.0), 50)])
        end, likely = total.end(range(count), 0.95), total.end(range(count), 0.8)
        assert end is not None and likely is not None
        assert total.value() < likely < end
        margins.append(end / total.value())
        assert total.end([0] * count, 0.95) is None
        doubled = total.end([index // 2 for index in range(count)], 0.95)
        assert doubled is not None
    assert margins[0] > margins[1] > margins[2] > 1.0


@pytest.mark.parametrize("name", ["relative-l2", "sqnr", "cosine"])
def test_losses_by_input_and_the_upper_end_are_in_the_unit_of_the_metric(name: str) -> None:
    """Ten inputs of one size with errors of 1 % and one of 5 %."""
    rng = np.random.default_rng(3)
    total = Tally(["y"], parse_metric(name))
    alone = []
    for index in range(11):
        y = rng.normal(0.0, 1.0, 200)
        z = y + (0.05 if index == 4 else 0.01) * rng.normal(0.0, 1.0, 200)
        total.add([y], [z])
        one = Tally(["y"], parse_metric(name))
        one.add([y], [z])
        alone.append(one.value())
    by_input, end = total.by_input(), total.end(range(11), 0.95)
    assert by_input is not None and end is not None
    assert by_input == pytest.approx(alone) and int(np.argmax(by_input)) == 4
    assert total.value() < end < max(alone)


def test_a_metric_without_a_value_by_input_has_no_upper_end() -> None:
    for name, has in (("top1", True), ("tokens", True), ("similarity", False), ("segmentation", False)):
        metric = parse_metric(name)
        assert metric.by_input == has
        total = Tally(["y"], Measure(metric, TaskJudge(metric.task, ["y"])))
        rng = np.random.default_rng(0)
        for _ in range(4):
            y = rng.normal(0.0, 1.0, (1, 5)).astype(np.float32)
            total.add([y], [y])
        assert total.end(range(4), 0.95) is None
        assert (total.by_input() is not None) == has


def test_a_part_of_the_samples_is_tallied_as_if_it_were_all() -> None:
    """Labelled losses are relative to the float model's score on these samples."""
    labels, scores = np.array([0, 1, 2, 0]), [np.eye(3, dtype=np.float32)[[best]] for best in (0, 1, 2, 1)]
    changed = [np.eye(3, dtype=np.float32)[[best]] for best in (1, 1, 0, 1)]
    metric = parse_metric("tokens")
    measure = Measure(replace(metric, labelled=True), TaskJudge(metric.task, ["y"], labels=labels))
    own = Tally(["y"], measure)
    for y in scores:
        own.add([y], [y])
    total = Tally(["y"], own.measure_on(range(4)))
    for y, z in zip(scores, changed, strict=True):
        total.add([y], [z])
    assert total.value() == pytest.approx(0.5)  # float is right on three of four, the other on one
    rows = [1, 3]
    assert total.only(rows, own.measure_on(rows)).value() == pytest.approx(0.0)
    rows = [0, 2]
    assert total.only(rows, own.measure_on(rows)).value() == pytest.approx(1.0)


def test_a_further_metric_that_needs_more_samples_is_left_out_of_a_part() -> None:
    bound = Bound(parse_metric("similarity"), 0.1)
    total = Tally(["y"], Measure(RELATIVE, None, ((bound, TaskJudge(bound.metric.task, ["y"])),)))
    rng = np.random.default_rng(0)
    for _ in range(6):
        y = rng.normal(0.0, 1.0, (1, 8)).astype(np.float32)
        total.add([y], [y])
    assert len(total.others()) == 1
    assert len(total.only([0, 1, 2]).others()) == 1 and not total.only([0, 1]).others()


def test_a_limit_on_the_worst_input_is_on_its_loss() -> None:
    """Of all inputs together the error is smaller; further metrics are bounded alike."""
    rng = np.random.default_rng(3)
    metric = replace(RELATIVE, worst_input=True)
    bound = Bound(replace(parse_metric("cosine"), worst_input=True), 0.02)
    worst = Tally(["y"], Measure(metric, None, ((bound, None),)))
    pool = Tally(["y"])
    for index in range(8):
        y = rng.normal(0.0, 1.0, 200)
        z = y + (0.05 if index == 4 else 0.01) * rng.normal(0.0, 1.0, 200)
        for tally in (worst, pool):
            tally.add([y], [z])
    by_input = pool.by_input()
    assert by_input is not None and worst.by_input() == pytest.approx(by_input)
    assert worst.value() == pytest.approx(by_input.max()) and worst.value() > 1.5 * pool.value()
    assert worst.others()[0].loss == pytest.approx(by_input.max(), rel=0.02)  # the angle of a small change
    assert worst.judged(0.1) > 2.0 * 0.1  # the further limit is broken by that factor
    assert worst.l2() == pytest.approx(pool.l2()) and worst.end(range(8), 0.95) is None
    assert metric.title == "error of the worst input"
