"""Which scheme is picked from what was measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from taglio.embedded import digits_data, digits_model
from taglio.error.loss import Metric
from taglio.flow import choose_scheme
from taglio.flow.choose_scheme import SchemeResult, choose, pick
from taglio.flow.workspace import Setup, Work, create
from taglio.quantize.scheme import AUTO_SCHEMES, DEFAULT_SCHEME, Scheme
from taglio.runtimes.onnxruntime import sums_saturate

CHANNEL, TENSOR, RESTRICTED = AUTO_SCHEMES[:3]


def test_the_fastest_wins_and_among_equally_fast_ones_the_most_accurate() -> None:
    exact = SchemeResult(CHANNEL, 0.0101, 0.01, 0.0101)
    rough = SchemeResult(TENSOR, 0.0100, 0.02, 0.0100)
    slow = SchemeResult(RESTRICTED, 0.0150, 0.001, 0.0150)
    assert pick([rough, exact, slow]) == exact
    assert pick([rough, slow]) == rough
    assert pick([slow]) == slow


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return create(tmp_path, Setup(str(digits_model()), {}, str(digits_data()), "", 0, 1, False, "all"))


def tried(work: Work, saturates: bool, elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> list[Scheme]:
    monkeypatch.setattr(choose_scheme, "sums_saturate", lambda: saturates)
    monkeypatch.setattr(choose_scheme, "_EFFORT", replace(choose_scheme._EFFORT, budget_s=0.2))
    chosen, results = choose(work, 1.0, Metric(), [DEFAULT_SCHEME], saturating_elsewhere=elsewhere)
    assert chosen in {each.scheme for each in results}
    return [each.scheme for each in results]


def test_weights_of_seven_bits_are_tried_where_sums_saturate(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = replace(DEFAULT_SCHEME, reduced_range=True)
    assert tried(work, False, False, monkeypatch) == [DEFAULT_SCHEME]
    assert tried(work, True, False, monkeypatch) == [DEFAULT_SCHEME, narrow]
    # What another device loses cannot be seen here.
    assert tried(work, False, True, monkeypatch) == [narrow]
    assert tried(work, True, True, monkeypatch) == [DEFAULT_SCHEME, narrow]


def test_a_bit_less_is_worth_it_where_sums_saturate_and_only_there(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    here = sums_saturate()
    monkeypatch.setattr(choose_scheme, "sums_saturate", lambda: True)
    _, (wide, narrow) = choose(work, 1.0, Metric(), [DEFAULT_SCHEME])
    assert (narrow.error < 0.5 * wide.error) == here
    assert 1.0 < narrow.error / wide.error < 3.0 or here
