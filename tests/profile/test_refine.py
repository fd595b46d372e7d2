"""A profile that is brought to a plan's precisions and to the machine's present speed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from taglio.flow.workspace import reopen_profiled
from taglio.profile import measure
from taglio.profile.measure import FLOAT_RUN, pure_assignments, refine, refine_near
from taglio.profile.result import Profile, WholeRun
from taglio.profile.stopwatch import Effort, Timed, time_models
from taglio.quantize.precision import Assignment
from tests.conftest import Staged

_SLOWER = 3.0


def refined(
    staged: Staged, near: Assignment, patch: pytest.MonkeyPatch, before: Profile | None = None
) -> tuple[Profile, Mapping[str, Timed]]:
    """The profile, or one refined `before`, refined on a machine that is said to be a few times slower by now, and what
    was timed."""
    work, known = reopen_profiled(staged.folder)
    seen: dict[str, Timed] = {}

    def later(*given: Any, **options: Any) -> dict[str, Timed]:
        """Real kernels; walls are a few times those of the profile, and no machine's moods."""
        for name, each in time_models(*given, **options).items():
            before = whole(known, FLOAT_RUN if name == FLOAT_RUN else "int8").wall
            wall = replace(before, median_s=_SLOWER * before.median_s, steady_s=_SLOWER * before.steady_s)
            seen[name] = replace(each, wall=wall)
        return seen

    patch.setattr(measure, "time_models", later)
    builder, feeds = work.builder(known.scheme), work.data.held_out.samples[:2]
    found = refine_near(
        work.model, work.graph, builder, before or known, feeds, work.setup.options(), Effort(budget_s=0.1), near=near
    )
    return found, seen


def whole(profile: Profile, name: str) -> WholeRun:
    return next(each for each in profile.runs if each.name == name)


def test_a_plan_that_was_timed_is_among_runs_of_the_present_speed(
    tiny_staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, known = reopen_profiled(tiny_staged.folder)
    near = pure_assignments(work.graph, known.precisions)["int8"]
    found, seen = refined(tiny_staged, near, monkeypatch)
    assert {each.name for each in found.runs} == {each.name for each in known.runs} | {"near 1", "near too 1"}
    assert whole(found, FLOAT_RUN).wall.median_s == pytest.approx(seen[FLOAT_RUN].wall.median_s)
    for each in known.runs:
        assert whole(found, each.name).wall.steady_s == pytest.approx(_SLOWER * each.wall.steady_s)
    assert found.conditions.reference_s != known.conditions.reference_s
    fewer = dict([*near.items()][:1])
    again, _ = refined(tiny_staged, fewer, monkeypatch, found)
    assert whole(again, "near 1").assignment == whole(found, "near 1").assignment
    assert whole(again, "near 2").assignment == {block: each.name for block, each in fewer.items()}


def test_of_a_plan_in_float_only_the_speed_is_new(tiny_staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    known = reopen_profiled(tiny_staged.folder)[1]
    found, seen = refined(tiny_staged, {}, monkeypatch)
    assert set(seen) == {FLOAT_RUN} and len(found.runs) == len(known.runs)
    assert whole(found, FLOAT_RUN).wall.median_s == pytest.approx(seen[FLOAT_RUN].wall.median_s)


def test_runs_of_a_busy_machine_put_the_refined_profile_in_doubt(
    tiny_staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, known = reopen_profiled(tiny_staged.folder)
    timed = {FLOAT_RUN: replace(refined(tiny_staged, {}, monkeypatch)[1][FLOAT_RUN], others=0.4)}
    runs: dict[str, tuple[Assignment, Timed]] = {name: ({}, each) for name, each in timed.items()}
    again = refine(work.model, work.graph, known, runs, " 1", near={})
    assert again.conditions.others == 0.4 and "other programs used 40%" in str(again.conditions.doubt())
