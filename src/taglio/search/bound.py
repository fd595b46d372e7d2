"""Bounds on what any mix of forms could save: without a limit on its error, and within one. Pure.

The bounds come from profiles of the whole model in float and in each form alone. A mix runs every block in one of its
forms, and moves or converts every tensor as one of these models does. So no mix takes less than the sum, over blocks
and tensors, of the least time of each. Two profiles of one model differ by noise, which a minimum would count as a
gain. So the noise between two profiles of float is subtracted. Where it is large, the machine is too busy for a bound.
"""

from collections.abc import Mapping, Sequence

from taglio.profile.attribution import Attribution

# The largest noise, as a share of float's time, at which a bound is computed.
_NOISY = 0.1


def least_share(floats: Attribution, again: Attribution, forms: Sequence[Attribution]) -> float:
    """The least time of any mix, as a share of float's kernels (1: no mix is faster; 0: there is no bound). `again` is
    a second profile of float, `forms` are the profiles of each form alone."""
    base, repeated = _parts(floats), _parts(again)
    total_s = sum(base.values())
    if total_s <= 0.0 or not forms:
        return 1.0
    noise_s = (_gain_s(base, [repeated]) + _gain_s(repeated, [base])) / 2.0
    if noise_s > _NOISY * total_s:
        return 0.0
    saved_s = _gain_s(base, [_parts(form) for form in forms]) - noise_s
    return min(1.0, 1.0 - saved_s / total_s)


def saved_by_block(floats: Attribution, forms: Mapping[str, Attribution]) -> dict[str, dict[str, float]]:
    """By block and form, the seconds that the form saves over float, if it saves any."""
    saved: dict[str, dict[str, float]] = {}
    for form, profile in forms.items():
        for block, seconds in floats.blocks_s.items():
            gain_s = seconds - profile.blocks_s.get(block, seconds)
            if gain_s > 0.0:
                saved.setdefault(block, {})[form] = gain_s
    return saved


def most_saved(
    saved_s: Mapping[str, Mapping[str, float]], errors: Mapping[tuple[str, str], float], limit: float
) -> float:
    """The most seconds that blocks can save within a limit on their error, if squares of errors add up. This is the
    optimum of the fractional knapsack (Dantzig 1957), so no choice of one form for each block saves more. `errors` is
    by block and form; those not in it count as 0.

    The forms of a block are steps, from the most accurate on: each saves more than the one before, for more error. A
    step may be taken in part.
    """
    steps = [step for block, forms in saved_s.items() for step in _steps(block, forms, errors)]
    room, total_s = limit**2, 0.0
    for step_s, square in sorted(steps, key=lambda step: -step[0] / max(step[1], 1e-30)):
        total_s += step_s * (1.0 if square <= room else room / square)
        room = max(0.0, room - square)
    return total_s


def _steps(
    block: str, saved_s: Mapping[str, float], errors: Mapping[tuple[str, str], float]
) -> list[tuple[float, float]]:
    """The seconds saved and the squared error that each form of a block adds to the form before it, from the most
    accurate on."""
    steps, reached_s, reached = list[tuple[float, float]](), 0.0, 0.0
    for form in sorted(saved_s, key=lambda form: errors.get((block, form), 0.0)):
        square = errors.get((block, form), 0.0) ** 2
        if saved_s[form] > reached_s:
            steps.append((saved_s[form] - reached_s, square - reached))
            reached_s, reached = saved_s[form], square
    return steps


def _parts(profile: Attribution) -> dict[tuple[str, str], float]:
    """Seconds by block and by tensor, and of the kernels that belong to neither."""
    return {
        **{("block", name): seconds for name, seconds in profile.blocks_s.items()},
        **{("tensor", name): seconds for name, seconds in profile.tensors_s.items()},
        ("other", ""): profile.orphans_s,
    }


def _gain_s(base: Mapping[tuple[str, str], float], others: Sequence[Mapping[tuple[str, str], float]]) -> float:
    """The seconds saved over `base` if each part takes the least of its times in `others`."""
    if not others:
        return 0.0
    least = {part: min(other.get(part, 0.0) for other in others) for part in base}
    return sum(max(0.0, seconds - least[part]) for part, seconds in base.items())
