"""A search that is stopped delivers the best that it has."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

import taglio
from taglio.flow.result import Result
from taglio.flow.stopping import TimeIsUp, Watched
from tests.end_to_end.command import Case

STATIC: dict[str, Any] = {"threads": 1, "runtime": "onnxruntime", "effort": 0.02}


def optimized(case: Case, progress: Callable[[str, int, int], None]) -> Result:
    return taglio.optimize(case.model, case.data, max_error=0.05, force_int8=["*"], progress=progress, **STATIC)


def stopping_at(stage: str, stop: BaseException) -> Callable[[str, int, int], None]:
    """Progress that stops once, in the middle of a stage."""
    done_once: list[str] = []

    def progress(name: str, done: int, _: int) -> None:
        if name.startswith(stage) and done > 0 and not done_once:
            done_once.append(name)
            raise stop

    return progress


@pytest.mark.whole
def test_ctrl_c_in_the_search_delivers_the_best_so_far(few_digits: Case, tmp_path: Any) -> None:
    stages: list[str] = []
    stop = stopping_at("search", KeyboardInterrupt())

    def progress(name: str, done: int, total: int) -> None:
        stages.append(name)
        stop(name, done, total)

    result = taglio.optimize(
        few_digits.model, few_digits.data, max_error=0.05, progress=progress, scheme="qdq-u8s8-asym-pc-rr", **STATIC
    )
    table = result.table
    assert table is not None and table.interrupted
    assert table.plan.holds(0.05)
    assert any("the search was stopped early" in note.text for note in table.notes)
    result.save(tmp_path / "out")
    assert (tmp_path / "out" / "deploy" / "model.onnx").exists()
    assert taglio.load(tmp_path / "out").table == table


@pytest.mark.whole
def test_blocks_that_are_forced_into_int8_are_so_within_any_time_limit(tiny: Case) -> None:
    forced: dict[str, Any] = {"max_error": 0.5, "force_int8": ["*"], "scheme": "qdq-u8s8-asym-pc-rr"}
    result = taglio.optimize(tiny.model, tiny.data, time_limit_s=0.01, **forced, **STATIC)
    assert result.plan.assignment().keys() == {block.name for block in result.graph.candidates()}


def test_ctrl_c_before_anything_is_known_leaves_nothing(tiny: Case) -> None:
    with pytest.raises(KeyboardInterrupt):
        optimized(tiny, stopping_at("loading", KeyboardInterrupt()))


def test_time_that_is_up_ends_what_reports_progress() -> None:
    told: list[str] = []
    watched = Watched(lambda stage, *_: told.append(stage), lambda: " (so far float32)")
    watched("timing", 0, 2)
    watched.end_s = 0.0
    with pytest.raises(TimeIsUp):
        watched("timing", 1, 2)
    watched.end_s = inf
    watched("search", 1, 2)
    assert told == ["timing (so far float32)", "search (so far float32)"]
