"""No mix of forms is faster than the bound says, and noise alone allows no gain."""

from hypothesis import given
from hypothesis import strategies as st

from taglio.profile.attribution import Attribution
from taglio.search.bound import least_share, most_saved, saved_by_block

SECONDS = st.floats(0.0, 10.0)
ROWS = st.lists(SECONDS, min_size=4, max_size=4)


def profile(blocks: list[float], tensors: list[float] | None = None) -> Attribution:
    by_tensor = {f"t{index}": seconds for index, seconds in enumerate(tensors or [])}
    return Attribution({f"b{index}": seconds for index, seconds in enumerate(blocks)}, by_tensor, {}, {}, 0.0, ())


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


def test_a_profile_without_kernels_allows_no_gain() -> None:
    assert least_share(profile([]), profile([]), [profile([1.0])]) == 1.0


def test_the_form_that_saves_most_counts_in_each_block() -> None:
    floats, int8, dynamic = profile([4.0, 4.0, 4.0]), profile([1.0, 9.0, 5.0]), profile([2.0, 3.0, 4.0])
    assert saved_by_block(floats, {"int8": int8, "int8-dynamic": dynamic}) == {
        "b0": ("int8", 3.0),
        "b1": ("int8-dynamic", 1.0),
    }


@given(st.lists(st.tuples(SECONDS, st.floats(0.0, 1.0)), min_size=1, max_size=7), st.floats(0.01, 1.0))
def test_no_choice_of_blocks_within_the_limit_saves_more(blocks: list[tuple[float, float]], limit: float) -> None:
    saved_s = {str(index): seconds for index, (seconds, _) in enumerate(blocks)}
    errors = {str(index): error for index, (_, error) in enumerate(blocks)}
    most_s = most_saved(saved_s, errors, limit)
    for chosen in range(2 ** len(blocks)):
        names = [name for name in saved_s if chosen >> int(name) & 1]
        if sum(errors[name] ** 2 for name in names) <= limit**2:
            assert sum(saved_s[name] for name in names) <= most_s + 1e-9
