"""No mix of forms is faster than the bound says, and noise alone allows no gain."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio.profile.attribution import Attribution
from taglio.search.bound import least_share, most_saved

SECONDS = st.floats(0.0, 10.0)
ROWS = st.lists(SECONDS, min_size=4, max_size=4)


def profile(blocks: list[float], tensors: list[float] | None = None) -> Attribution:
    by_tensor = {f"t{index}": seconds for index, seconds in enumerate(tensors or [])}
    return Attribution({f"b{index}": seconds for index, seconds in enumerate(blocks)}, by_tensor, 0.0)


@given(ROWS, ROWS, ROWS, st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_no_mix_takes_less_than_the_least_share(
    floats: list[float], int8: list[float], other: list[float], mix: list[int]
) -> None:
    total = sum(floats)
    if total == 0.0:
        return
    least = least_share(profile(floats), profile(floats), [profile(int8), profile(other)])
    mixed = sum((floats, int8, other)[form][block] for block, form in enumerate(mix))
    assert least * total <= mixed + 1e-9


def test_blocks_and_tensors_that_are_faster_in_some_form_are_saved() -> None:
    floats, int8 = profile([4.0, 4.0], [2.0]), profile([1.0, 9.0], [1.0])
    assert least_share(floats, floats, [int8]) == (10.0 - 3.0 - 1.0) / 10.0
    assert least_share(floats, floats, []) == 1.0


def test_what_float_gains_on_itself_is_taken_off() -> None:
    floats, again = profile([5.0, 5.0]), profile([4.5, 5.5])
    assert least_share(floats, again, [again]) == 1.0
    assert least_share(floats, floats, [again]) == 0.95
    # On a machine that is too busy nothing is ruled out.
    assert least_share(floats, profile([2.0, 8.0]), [again]) == 0.0


FORM = st.tuples(SECONDS, st.floats(0.0, 1.0))


@given(st.lists(st.lists(FORM, max_size=3), min_size=1, max_size=4), st.floats(0.01, 1.0))
def test_no_choice_of_forms_within_the_limit_saves_more(blocks: list[list[tuple[float, float]]], limit: float) -> None:
    names = {str(block): {str(form): saved for form, (saved, _) in enumerate(row)} for block, row in enumerate(blocks)}
    errors = {(str(block), str(form)): error for block, row in enumerate(blocks) for form, (_, error) in enumerate(row)}
    most_s = most_saved(names, errors, limit)
    for choice in product(*([(0.0, 0.0), *forms] for forms in blocks)):
        if sum(error**2 for _, error in choice) <= limit**2:
            assert sum(saved for saved, _ in choice) <= most_s + 1e-9


def test_a_slower_form_that_is_accurate_saves_where_the_fastest_is_too_inaccurate() -> None:
    errors = {("b", "int8"): 10.0, ("b", "int8-weights"): 0.1}
    assert most_saved({"b": {"int8": 3.0}}, errors, 1.0) == pytest.approx(0.03)
    assert most_saved({"b": {"int8": 3.0, "int8-weights": 2.0}}, errors, 1.0) == pytest.approx(2.01, abs=1e-3)
