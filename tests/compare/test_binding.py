"""Outputs and inputs are told apart by their values and shapes."""

import numpy as np
import pytest

from taglio.compare.workers.binding import arrange, bind

RNG = np.random.default_rng(0)
FIRST = RNG.standard_normal((1, 3, 4, 4)).astype(np.float32)
SECOND = RNG.standard_normal((1, 5)).astype(np.float32)


def test_channels_last_and_another_order() -> None:
    given = [SECOND, FIRST.transpose(0, 2, 3, 1)]
    binding = bind([FIRST, SECOND], given)
    assert "transposed" in binding.note()
    assert all(np.array_equal(a, b) for a, b in zip(binding(given), (FIRST, SECOND)))


def test_equal_shapes_are_told_apart_by_value() -> None:
    other = FIRST + 1
    binding = bind([FIRST, other], [other + 1e-3, FIRST + 1e-3])
    assert [index for index, _ in binding.sources] == [1, 0]
    assert "order" in binding.note()


def test_what_fits_nothing_names_the_shapes() -> None:
    with pytest.raises(ValueError, match=r"output 0 of the original, \[1, 5\]: found \[1, 6\]"):
        bind([SECOND], [np.zeros((1, 6))])


@pytest.mark.parametrize(
    ("shape", "axes"), [((1, 3, 4, 4), (0, 1, 2, 3)), ((1, 4, 4, 3), (0, 2, 3, 1)), ((1, 5), None)]
)
def test_inputs_are_moved_by_shape(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    if axes is None:
        with pytest.raises(ValueError, match=r"takes an input of \[1, 5\]"):
            arrange([FIRST], [shape])
    else:
        assert arrange([FIRST], [shape]) == (axes,)
