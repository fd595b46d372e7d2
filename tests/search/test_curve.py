"""What larger limits are predicted to give, from the tables alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from taglio.error.loss import Metric
from taglio.plan.result import Limits
from taglio.search import curve as module
from taglio.search.curve import curve

TABLES: Any = SimpleNamespace(graph=SimpleNamespace(choices=lambda: [1]), error="studied", float_s=1.0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits that were solved for; a plan takes 1 s over 100 times its limit."""
    seen: list[float] = []

    def make_plan(*given: Any, **_: object) -> object:
        seen.append(given[1].max_error)
        latency = SimpleNamespace(value=1.0 / (100.0 * given[1].max_error))
        return SimpleNamespace(status="optimal", predicted_latency_s=latency, assignment=lambda: {"a": 1})

    monkeypatch.setattr(module, "make_plan", make_plan)
    return seen


def levels(limits: Limits, base: float = 0.0, ahead: float = 1.0) -> list[tuple[float, float]]:
    predicted = curve(TABLES, limits, base=base, ahead=ahead)
    return [(round(each.max_error, 6), round(each.speed_up, 6)) for each in predicted]


@pytest.mark.usefixtures("asked")
def test_speed_by_limit() -> None:
    assert levels(Limits(0.01)) == [(0.03, 3.0), (0.1, 10.0)]
    # Float where the plan runs may be faster than the float that is compared with.
    assert levels(Limits(0.01), ahead=2.0) == [(0.03, 6.0), (0.1, 20.0)]
    assert levels(Limits(0.1)) == [(0.3, 30.0)], "no limit of more than half"


def test_what_the_place_changes_is_taken_off(asked: list[float]) -> None:
    levels(Limits(0.01), base=0.018)
    assert asked[0] == pytest.approx(0.024)


def test_nothing_is_told_of_steps(asked: list[float]) -> None:
    assert levels(Limits(0.01, metric=Metric("top1", True))) == []
    assert asked == []
