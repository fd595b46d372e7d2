"""Lost information is found whatever the error is, and not where nothing was lost."""

import numpy as np
import pytest

from taglio.error.information import Watch
from taglio.error.tally import Tally

Pairs = list[tuple[np.ndarray, np.ndarray]]


def lost(pairs: Pairs) -> str:
    watch = Watch()
    for a, b in pairs:
        watch.add(a.astype(np.float32), b.astype(np.float32))
    return watch.lost()


def drawn(size: int, count: int = 6, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0.0, 1.0, size) for _ in range(count)]


@pytest.mark.parametrize("size", [40, 5000])
def test_values_that_became_one_are_lost_within_any_error(size: int) -> None:
    pairs = [(1000.0 + y, np.full(size, 1000.0)) for y in drawn(size)]
    assert lost(pairs) == "is 1000 everywhere"
    total = Tally(["y"], watched=True)
    for a, b in pairs:
        total.add([a], [b])
    assert total.value() < 0.002
    assert total.lost() == "y is 1000 everywhere"


def test_little_variation_beside_a_large_offset_is_information() -> None:
    """Kelvin, timestamps: a tenth of a degree in 300, which no step of int8 keeps."""
    assert lost([(300.0 + 0.1 * y, np.full(40, 300.0)) for y in drawn(40)]) == "is 300 everywhere"
    rounding = [(300.0 + 1e-4 * y, np.full(40, 300.0)) for y in drawn(40)]
    assert lost(rounding) == ""


def test_saturated_values_and_those_in_another_order_are_lost() -> None:
    saturated = lost([(y, np.minimum(y, -0.2)) for y in drawn(3000)])
    assert saturated.startswith("is -0.2 in ")
    others = drawn(3000, seed=1)
    assert lost([(1000 + y, 1000 + z) for y, z in zip(drawn(3000), others, strict=True)]) == (
        "ranks its values in a different order"
    )


def test_what_no_longer_follows_the_input_is_lost_behind_a_fixed_pattern() -> None:
    grid = np.arange(400.0)
    assert lost([(grid + 10 * y, grid) for y in drawn(400)]) == "is the same for every input"
    noise = drawn(400, seed=1)
    pairs = [(grid + 10 * y, grid + 10 * z) for y, z in zip(drawn(400), noise, strict=True)]
    assert lost(pairs) == "no longer depends on the input"


def test_the_noise_floor_of_scores_need_not_follow_the_input() -> None:
    """Softmax of a recogniser: each step has one large class, and what the others have is of no use to anybody."""
    rng = np.random.default_rng(0)

    sure = rng.uniform(0.6, 1.0, 40)

    def scores(classes: np.ndarray) -> np.ndarray:
        floor = rng.lognormal(-14.0, 1.0, (40, 9000))
        floor[np.arange(40), classes] = sure
        return floor.ravel()

    read = [np.where(rng.random(40) < 0.5, 0, rng.integers(1, 9000, 40)) for _ in range(8)]
    assert lost([(scores(classes), scores(classes)) for classes in read]) == ""
    fixed = scores(read[0])
    assert lost([(scores(classes), fixed) for classes in read]) != ""


def test_nothing_is_lost_by_rounding() -> None:
    assert lost([(y, np.round(y * 20) / 20) for y in drawn(5000)]) == ""
    grid = np.arange(400.0)
    assert lost([(grid + 10 * y, np.round(grid + 10 * y)) for y in drawn(400)]) == ""


def test_saturated_values_that_round_to_their_ends_are_not_lost() -> None:
    """Masks and probabilities: 1e-9 and 0 are the same answer."""
    sure = [1.0 / (1.0 + np.exp(-10.0 * y - 3.0)) for y in drawn(5000)]
    assert lost([(y, np.round(y * 255) / 255) for y in sure]) == ""
    assert lost([(y, np.where(y < 0.5, 0.5, y)) for y in sure]).startswith("is 0.5 in ")


def test_what_is_constant_for_float_cannot_be_lost() -> None:
    assert lost([(np.full(500, 3.0), np.full(500, 3.01))] * 6) == ""
    assert lost([(1.0 + 1e-5 * y, np.ones(500)) for y in drawn(500)]) == ""
    assert lost([(np.zeros(0), np.zeros(0))] * 6) == ""
    assert lost([(np.ones(1) * i, np.ones(1)) for i in range(3)]) == ""  # too few values to judge


def test_one_value_per_input_that_became_constant_is_lost() -> None:
    """A regressor has as many values as there are inputs."""
    assert lost([(1000.0 + y, np.full(1, 1000.0)) for y in drawn(1, count=8)]) == "is 1000 everywhere"
    assert lost([(1000.0 + y, np.round(1000.0 + y, 1)) for y in drawn(1, count=8)]) == ""


def test_the_noise_floor_of_rare_scores_has_no_order() -> None:
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(6):
        y = np.abs(rng.normal(0.0, 1e-4, 5000))
        y[rng.integers(0, 5000, 60)] = rng.uniform(0.3, 1.0, 60)
        pairs.append((y, np.round(y * 255) / 255))
    assert lost(pairs) == ""


@pytest.mark.parametrize("size", [40, 5000])
def test_a_mask_is_lost_only_where_its_places_are(size: int) -> None:
    """What is off its bulk is alike, or differs by float's noise: that has no order."""
    rng = np.random.default_rng(0)
    masks = [(rng.random(size) < 0.2).astype(float) for _ in range(8)]
    assert lost([(mask, mask) for mask in masks]) == ""
    assert lost([(mask, mask * (1.0 - 1e-6 * rng.random(size))) for mask in masks]) == ""
    assert lost([(mask * (1.0 - 1e-6 * rng.random(size)), mask) for mask in masks]) == ""
    assert lost([(mask, np.zeros(size)) for mask in masks]) == "is 0 everywhere"
    assert lost([(mask, mask[::-1]) for mask in masks]) == "ranks its values in a different order"
