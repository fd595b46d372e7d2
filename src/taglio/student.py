"""Student's t distribution for whole degrees of freedom. Interprets no data."""

from functools import cache
from math import atan, cos, pi, sin, sqrt

# Halvings of the bracket: more than double precision can tell apart.
_HALVINGS = 200


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """The t that Student's distribution with `degrees` degrees of freedom stays below with `probability`.

    Both arguments are checked: 0 < probability < 1 and degrees >= 1, else ValueError.
    """
    if not 0.0 < probability < 1.0 or degrees < 1:
        raise ValueError(f"no t for probability {probability} and {degrees} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, degrees)
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < probability:
        high *= 2.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if t_probability(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return high


def t_probability(t: float, degrees: int) -> float:
    """The probability that Student's t with `degrees` degrees of freedom is below `t`: the finite series of Abramowitz
    and Stegun, 26.7.3 and 26.7.4."""
    angle = atan(t / sqrt(degrees))
    term = 1.0 if degrees % 2 == 0 else cos(angle)
    total = term if degrees > 1 else 0.0
    for k in range(2 + degrees % 2, degrees, 2):
        term *= (k - 1) / k * cos(angle) ** 2
        total += term
    within = sin(angle) * total if degrees % 2 == 0 else 2.0 / pi * (angle + sin(angle) * total)
    return 0.5 * (1.0 + within)
