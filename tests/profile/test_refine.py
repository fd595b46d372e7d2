"""A profile that is brought to a plan's precisions and to the machine's present speed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from taglio.flow.workspace import reopen_profiled
from taglio.profile.busy import doubt
from taglio.profile.effort import Effort
from taglio.profile.measure import FLOAT_RUN, pure_assignments, refine, refine_near
from taglio.profile.result import Profile, WholeRun
from taglio.profile.stopwatch import Stopwatch, Timed, Timings
from taglio.quantize.precision import Assignment
from tests.conftest import Staged

_SLOWER = 3.0


def refined(
    staged: Staged, near: Assignment, patch: pytest.MonkeyPatch, before: Profile | None = None
) -> tuple[Profile, Mapping[str, Timed]]:
    """The profile, or one refined `before`, refined on a machine that is said to be a few times slower by now, and what
    was timed."""
    work, profile = reopen_profiled(staged.folder)
    seen: dict[str, Timed] = {}
    real = Stopwatch.time

    def later(*arguments: Any, **options: Any) -> Timings:
        """Real kernels; walls are a few times those of the profile, and no machine's moods."""
        for name, timing in real(*arguments, **options).all().items():
            before = whole(profile, FLOAT_RUN if name == FLOAT_RUN else "int8").wall
            wall = replace(before, median_s=_SLOWER * before.median_s, steady_s=_SLOWER * before.steady_s)
            seen[name] = replace(timing, wall=wall)
        return Timings(seen, {})

    patch.setattr(Stopwatch, "time", later)
    stopwatch = replace(work.stopwatch, feeds=work.data.held_out.samples[:2])
    builder = work.builder(profile.scheme)
    newer = refine_near(builder, work.graph, before or profile, stopwatch, Effort(0.1), near=near)
    patch.undo()
    return newer, seen


def whole(profile: Profile, name: str) -> WholeRun:
    return next(run for run in profile.runs if run.name == name)


def test_a_plan_that_was_timed_is_among_runs_of_the_present_speed(
    tiny_staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, profile = reopen_profiled(tiny_staged.folder)
    near = pure_assignments(work.graph, profile.precisions)["int8"]
    newer, seen = refined(tiny_staged, near, monkeypatch)
    assert {run.name for run in newer.runs} == {run.name for run in profile.runs} | {"near 1", "near too 1"}
    assert whole(newer, FLOAT_RUN).wall.median_s == pytest.approx(seen[FLOAT_RUN].wall.median_s)
    for run in profile.runs:
        assert whole(newer, run.name).wall.steady_s == pytest.approx(_SLOWER * run.wall.steady_s)
    fewer = dict([*near.items()][:1])
    newest, _ = refined(tiny_staged, fewer, monkeypatch, newer)
    assert whole(newest, "near 1").assignment == whole(newer, "near 1").assignment
    assert whole(newest, "near 2").assignment == {block: form.name for block, form in fewer.items()}


def test_of_a_plan_in_float_only_the_speed_is_new(tiny_staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = reopen_profiled(tiny_staged.folder)[1]
    newer, seen = refined(tiny_staged, {}, monkeypatch)
    assert set(seen) == {FLOAT_RUN} and len(newer.runs) == len(profile.runs)
    assert whole(newer, FLOAT_RUN).wall.median_s == pytest.approx(seen[FLOAT_RUN].wall.median_s)


def test_runs_of_a_busy_machine_put_the_refined_profile_in_doubt(
    tiny_staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, profile = reopen_profiled(tiny_staged.folder)
    timed = {FLOAT_RUN: replace(refined(tiny_staged, {}, monkeypatch)[1][FLOAT_RUN], others=0.4)}
    runs: dict[str, tuple[Assignment, Timed]] = {name: ({}, timing) for name, timing in timed.items()}
    newer = refine(work.model, work.graph, profile, runs, near={})
    assert newer.conditions.others == 0.4 and "other programs used 40%" in str(doubt(newer.conditions.others))
