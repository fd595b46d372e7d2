"""Which scheme is picked from what was measured."""

from taglio.choose_scheme import SchemeResult, pick
from taglio.scheme import AUTO_SCHEMES

CHANNEL, TENSOR, RESTRICTED = AUTO_SCHEMES[:3]


def test_the_fastest_wins_and_among_equally_fast_ones_the_most_accurate() -> None:
    exact = SchemeResult(CHANNEL, 0.0101, 0.01, 0.0101)
    rough = SchemeResult(TENSOR, 0.0100, 0.02, 0.0100)
    slow = SchemeResult(RESTRICTED, 0.0150, 0.001, 0.0150)
    assert pick([rough, exact, slow]) == exact
    assert pick([rough, slow]) == rough
    assert pick([slow]) == slow
