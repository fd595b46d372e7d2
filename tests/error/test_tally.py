"""The error that is accumulated sample by sample is NumPy's on all samples at once."""

import numpy as np
import pytest

from taglio.error.tally import Tally
from taglio.errors import BadData

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


@pytest.mark.parametrize("size", [1e-6, 1e-2, 1.0])
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
    total = Tally(["y"])
    total.add([np.array([6.0])], [np.array([9.0])])
    total.add([np.array([0.0, 8.0])], [np.array([4.0, 8.0])])
    assert total.value() == pytest.approx(0.5)
    total.add([np.array([0.0])], [np.array([12.0])])
    assert total.value() == pytest.approx(1.3)


def test_equal_outputs_have_no_error_even_where_they_are_zero() -> None:
    total = accumulated(drawn(0), drawn(0))
    assert list(total.l2()) == [0.0, 0.0]
    nothing = Tally(["y"])
    nothing.add([np.zeros(3)], [np.zeros(3)])
    assert nothing.value() == 0.0


def test_scaling_both_sides_changes_nothing() -> None:
    reference, changed = drawn(0), drawn(2)
    once = accumulated(reference, changed).value()
    thousandfold = accumulated([[1e3 * y for y in s] for s in reference], [[1e3 * z for z in s] for s in changed])
    assert thousandfold.value() == pytest.approx(once, rel=1e-5)


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.float16, np.float64])
def test_outputs_of_any_number_type_count_as_numbers(dtype: type[np.generic]) -> None:
    total = Tally(["class"])
    total.add([np.array([1, 1, 1, 1], dtype)], [np.array([1, 1, 0, 1], dtype)])
    assert total.value() == pytest.approx(0.5)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_float_model_that_gives_no_numbers_is_refused(wrong: float) -> None:
    total = accumulated(drawn(0), drawn(0))
    total.add([np.ones(1), np.array([wrong])], [np.ones(1), np.ones(1)])
    with pytest.raises(BadData, match="output vector of the float model is NaN or infinite on the data"):
        total.value()


def test_a_float_model_that_is_always_zero_is_refused() -> None:
    total = Tally(["y", "mask"])
    for _ in range(3):
        total.add([np.ones(2), np.zeros(2)], [np.ones(2), np.full(2, 0.1)])
    with pytest.raises(BadData, match="output mask of the float model is zero on all samples"):
        total.l2()
    # Zero on some samples is nothing special.
    total.add([np.ones(2), np.ones(2)], [np.ones(2), np.ones(2)])
    assert total.l2()[1] == pytest.approx(np.sqrt(0.06 / 2.0))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_quantised_model_that_gives_no_numbers_is_infinitely_wrong(wrong: float) -> None:
    total = Tally(["y"])
    total.add([np.ones(2)], [np.array([1.0, wrong])])
    assert total.value() == np.inf


def test_numbers_lost_where_the_float_model_is_zero_are_no_agreement() -> None:
    total = Tally(["y"])
    total.add([np.zeros(2)], [np.array([0.0, np.nan])])
    with pytest.raises(BadData, match="output y"):
        total.value()


def test_outputs_must_match_in_number() -> None:
    with pytest.raises(ValueError, match="zip"):
        Tally(["a", "b"]).add([np.ones(1)], [np.ones(1), np.ones(1)])
