"""How a result is run: what is asked, the threads that are chosen, and a rate from the command to `deploy/`."""

import json
import os
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import taglio
from taglio.cores import available_cores, limited_to
from taglio.deploy import verify
from taglio.errors import BadOption
from taglio.flow import stages, threads
from taglio.flow.opening import Model
from taglio.flow.rate import goal_of
from taglio.lab.setup import Setup
from taglio.notes import Kind
from taglio.plan.result import Plan
from taglio.runtimes import onnxruntime
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.way import Way
from tests.end_to_end.command import Case

QUICK = {"effort": 0.02, "scheme": "qdq-u8s8-asym-pc", "runtime": "onnxruntime"}


@pytest.mark.parametrize(
    ("objective", "limit_s", "message"),
    [
        ("speed", None, "`objective` is speed: give latency or rate"),
        ("latency", 0.05, "`max_latency_s` limits a rate"),
        ("rate", 0.0, "`max_latency_s` is 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(objective: str, limit_s: float | None, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        goal_of(objective, limit_s, None)


@pytest.mark.parametrize(("threads", "spins"), [(1, False), (2, True), (3, False)])
def test_threads_busy_wait_within_a_run_where_each_has_a_processor(
    threads: int, spins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "available_cores", lambda: 2)
    options = SessionOptions(threads)
    entries = onnxruntime.settings(options)["config_entries"]
    assert entries["session.intra_op.allow_spinning"] == str(int(spins))
    assert entries.get("session.force_spinning_stop") == ("1" if spins else None)
    assert options.way == Way(threads, spinning=spins)


@pytest.mark.parametrize("way", [Way(2, 2, spinning=True, shared=True), Way(1, 2, joined=4)])
def test_a_result_is_delivered_in_the_way_that_was_chosen(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "available_cores", lambda: 2)
    setup = Setup("m.onnx", {}, "d.npz", "", 0, 1, "all")
    assert setup.in_way(way).way == way


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, where there is one; ONNX Runtime computes on it all the same."""
    monkeypatch.setattr(threads, "available_cores", lambda: 2)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(("speed", "chosen"), [(0.7, 1), (1.01, 1), (1.5, 2)])
def test_more_threads_are_chosen_only_where_they_help(
    speed: float, chosen: int, tiny: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race is run, and what it shows is replaced: beside other tests it may show anything."""
    race = threads._speeds
    monkeypatch.setattr(threads, "_speeds", lambda *given: race(*given) | {1: 1.0, 2: speed})
    work, note = threads.with_threads(Model(tiny.model, tiny.data, threads=2, runtime="onnxruntime"))
    assert work.setup.threads == chosen
    told = re.fullmatch(r"float32 runs with (\d) threads?: ([\d.]+) × as fast as with \d", str(note))
    assert told is not None and int(told[1]) == chosen
    assert float(told[2]) == pytest.approx(speed if chosen == 2 else 1.0 / speed, abs=0.01)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(("speed", "chosen"), [(1.5, 2), (1.01, 1), (0.5, 1)])
def test_a_plan_runs_with_other_threads_only_where_that_pays(
    speed: float, chosen: int, tiny: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_speeds", lambda *_: {1: 1.0, 2: speed})
    work = Model(tiny.model, tiny.data, threads=1, runtime="onnxruntime")
    fitted, note = threads.with_threads(work, cast(Plan, object()))
    assert (fitted.setup.threads, fitted.setup.threads_of_source) == (chosen, 1)
    assert (note is None) == (chosen == 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot limit a process")
def test_cores_are_limited_and_given_back() -> None:
    before = available_cores()
    with limited_to(1):
        assert available_cores() == 1
    assert available_cores() == before
    with (
        pytest.raises(BadOption, match=f"`cpus` is {before + 1}, but this process may use {before} core"),
        limited_to(before + 1),
    ):
        pass


@pytest.fixture(scope="module")
def rated(few_digits: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose way was chosen for a rate within a limit."""
    folder = tmp_path_factory.mktemp("rated") / "out"
    asked: dict[str, Any] = {**QUICK, "objective": "rate", "max_latency_s": 0.5, "max_error": 0.02}
    stages.optimize(folder, few_digits.model, few_digits.data, **asked)
    return folder


def test_a_rate_is_delivered_with_its_way(rated: Path) -> None:
    result = taglio.load(rated)
    assert result.table is not None
    rate = result.table.rate
    assert rate is not None
    assert result.table.speedup is None
    manifest = json.loads((rated / "deploy" / verify.MANIFEST).read_text())
    assert Way(**manifest["way"]) == rate.way == result.setup.way
    settings = json.loads((rated / "deploy" / "session.json").read_text())
    assert settings["intra_op_num_threads"] == rate.way.threads
    feed = {"image": np.load(rated / "deploy" / "samples" / "0-inputs-0.npy")}
    with verify.Callers(rated / "deploy") as callers:
        answers = [callers.submit(feed) for _ in range(3 * rate.way.at_once)]
        expected = result.session().run(feed)["logits"]
        assert all(answer.result()["logits"] == pytest.approx(expected, abs=1e-5) for answer in answers)


def test_a_rate_has_its_figures_in_order(rated: Path) -> None:
    table = taglio.load(rated).table
    assert table is not None
    rate = table.rate
    assert rate is not None
    for figure in filter(None, (rate.capacity_per_s, rate.over_one, rate.over_many, rate.rate_per_s)):
        assert 0.0 < figure.low <= figure.value <= figure.high
    assert rate.rate_per_s is not None
    assert rate.rate_per_s.value <= 2.0 * rate.capacity_per_s.value
    assert rate.p95_s is None or rate.p95_s <= 0.45
    assert {tried.way for tried in rate.tried} >= {Way(1, available_cores())}
    assert rate.alone.startswith("input image has a fixed first dimension")
    assert any(note.kind is Kind.NOT_JOINED for note in table.notes)


def test_a_run_is_timed_as_it_was_profiled_and_says_how_it_is_delivered(rated: Path) -> None:
    result = taglio.load(rated)
    report = stages.run(rated, 5, None, None)
    assert result.setup.way != Way(result.profile.conditions.threads) or not report.note
    if result.setup.way.at_once > 1:
        assert f"deploy/ is for {result.setup.way}" in report.note
