"""Which of the plans that a cluster timed is taken."""

from typing import Any, cast

import pytest

from taglio.cluster.engine import optimize
from taglio.cluster.planning.place import Answer
from taglio.plan.result import Interval, Limits, Plan


def test_the_plan_taken_is_one_that_was_timed_and_not_one_that_looks_faster_by_the_tables() -> None:
    """Tables promise each new plan less than it takes; timing shows what it takes."""
    takes = {"first": 4.0, "second": 3.0, "third": 1.0}
    timings: list[str] = []

    def placed(profiles: Any, plan: Any, _: float) -> Any:
        if plan is None:
            return made_answer([*takes][len(profiles)], value := 2.0 - 0.1 * len(profiles), 0.9 * value)
        assert plan.start == profiles[-1]
        return made_answer(plan.start, takes[plan.start], 0.5)

    def refined(profiles: Any, plan: Any) -> Any:
        timings.append(plan.start)
        return [*profiles, plan.start]

    plan, profiles = optimize.timed_plan(placed, refined, cast(Any, []))
    assert timings == ["first", "second"] and plan.start == "second"
    assert profiles == cast(Any, ["first", "second"])
    # 1.8 by the tables, of which 90 % are proven, would be faster.
    assert plan.status == "measured" and plan.gap == pytest.approx(1.0 - 0.9 * 1.8 / 3.0)
    takes["first"] = 1.9  # no other plan promises more than a per cent less
    timings.clear()
    plan, _ = optimize.timed_plan(placed, refined, cast(Any, []))
    assert timings == ["first"] and plan.start == "first"


def made_answer(plan: str, value: float, bound: float) -> Answer:
    unknown, nothing = Interval(0.0, value, value), cast(Any, None)
    made = Plan("", nothing, (), Limits(None), (), "optimal", 0.0, unknown, unknown, start=plan)
    return Answer((made,), nothing, nothing, value, bound)
