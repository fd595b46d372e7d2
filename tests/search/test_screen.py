"""Where plans are made, in which scheme and forms, and where none can gain."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taglio
from taglio.error.loss import Metric
from taglio.flow import stages
from taglio.flow.opening import Model
from taglio.flow.profile import profiles
from taglio.lab.side_by_side import race
from taglio.lab.work import Work
from taglio.profile.effort import MOST_MIXES
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.stopwatch import Timings
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme
from taglio.runtimes.places import bfloat16_refusal
from taglio.search import form_race
from taglio.search.ledger import INT8_RUN, expected_s
from taglio.search.screen import screen
from tests.end_to_end.command import Case
from tests.models import Sketch
from tests.processor import SATURATES

ORT, OPENVINO = "onnxruntime", "openvino"
HERE = DEFAULT_SCHEME.narrow if SATURATES else DEFAULT_SCHEME
LITTLE = 0.02


@pytest.fixture(scope="module")
def work(tiny: Case) -> Work:
    return Model(tiny.model, tiny.data, threads=1, runtime=ORT).at(LITTLE)


def raced(monkeypatch: pytest.MonkeyPatch, factors: dict[str, float], errors: dict[str, float]) -> None:
    """Races whose times are those of float times a factor by name, with these errors."""

    def scripted(work: Work, models: Any, *rest: Any, **options: Any) -> Timings:
        timings = race(work, models, *rest, **options)
        first = timings.timed[next(iter(models))]
        return Timings(
            {
                name: timed
                if name == FLOAT_RUN
                else replace(first.times(factors.get(name, 1.0)), loss=errors.get(name, timed.loss))
                for name, timed in timings.timed.items()
            },
            timings.refused,
        )

    monkeypatch.setattr(form_race, "race", scripted)


def test_a_limit_of_half_the_error_allows_half_the_gain() -> None:
    assert expected_s(10.0, 4.0, error=0.01, limit=0.01) == 4.0
    assert expected_s(10.0, 4.0, error=0.02, limit=0.01) == 7.0
    assert expected_s(10.0, 14.0, error=0.02, limit=0.01) == 12.0


def test_where_int8_is_faster_plans_are_made(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    raced(monkeypatch, {INT8_RUN: 0.5}, {INT8_RUN: 0.001})
    result = screen(work, None, 0.01, Metric())
    assert (result.planned, result.home, result.why) == ((ORT,), ORT, None)
    assert result.profile is not None and not any(run.mixed for run in result.profile.runs)
    int8, *others = [row for row in result.forms if row.form == INT8_RUN]
    assert int8.scheme == str(HERE) and int8.seconds is not None and int8.float_s is not None
    assert int8.seconds == pytest.approx(0.5 * int8.float_s)
    assert [row.kept for row in (int8, *others)].count(True) == 1


def test_where_no_kernel_is_faster_no_plan_is_made_and_float_is_profiled(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = ("int8-weights", "int8-dynamic", "int4-weights")
    raced(monkeypatch, {INT8_RUN: 3.0, **dict.fromkeys(forms, 2.0)}, {})
    result = screen(work, None, 0.01, Metric())
    assert (result.planned, result.home) == ((), ORT)
    assert str(result.why).startswith("int8 is slower here: about ")
    assert result.profile is not None
    assert {run.name for run in result.profile.runs} >= {FLOAT_RUN, INT8_RUN}
    # Blocks that must be int8 are planned all the same.
    assert screen(work, None, 0.01, Metric(), is_forced=True).planned == (ORT,)


def test_a_scheme_that_was_asked_for_is_taken_as_it_is(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    raced(monkeypatch, {INT8_RUN: 0.5}, {INT8_RUN: 0.5})
    wanted = Scheme(signed=True, reduced_range=True)
    result = screen(work, wanted, 0.01, Metric())
    assert result.scheme == wanted
    assert [(row.form, row.scheme) for row in result.forms] == [(INT8_RUN, str(wanted))]


def test_of_equally_fast_schemes_the_most_accurate_wins(tiny: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    work = Model(tiny.model, tiny.data, threads=1, runtime=OPENVINO).at(LITTLE)
    signed = replace(HERE, signed=True)
    for seconds, error, best in ((0.5, 0.001, signed), (0.4, 0.003, signed), (0.9, 0.001, HERE)):
        raced(monkeypatch, {INT8_RUN: 0.5, str(signed): seconds}, {INT8_RUN: 0.002, str(signed): error})
        result = screen(work, None, 0.01, Metric())
        assert replace(result.scheme, uncalibrated=()) == best
        assert {row.scheme: row.kept for row in result.forms if row.form == INT8_RUN} == {
            str(HERE): best == HERE,
            str(signed): best == signed,
        }


def test_weights_of_seven_bits_are_used_where_sums_saturate_or_may_elsewhere(work: Work) -> None:
    assert screen(work, None, 1.0, Metric(), is_forced=True).scheme.reduced_range == SATURATES
    assert screen(work, None, 1.0, Metric(), is_forced=True, is_narrow=True).scheme.reduced_range


def test_where_no_block_can_be_int8_no_plan_is_made_and_the_reason_is_said() -> None:
    g = Sketch()
    proto = g.model(g.rename(g.op("Softmax", g.input("x", 1, 8)), "y"))
    rows = np.random.default_rng(0).standard_normal((16, 1, 8)).astype(np.float32)
    result = screen(Model(proto, {"x": rows}, runtime=ORT).at(LITTLE), None, 0.01, Metric())
    assert (result.planned, result.forms) == ((), ())
    assert result.why
    assert result.profile is not None


def test_a_form_that_keeps_the_limit_counts_where_a_faster_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of ±1000 that the product ignores leave int8 no step for the others."""
    g = Sketch(8)
    weights = g.rng.normal(0, 1, (256, 64))
    weights[:128] = 0.0  # whole blocks of int8-weights
    product = g.op("MatMul", g.input("x", 8, 256), g.constant(weights))
    data = np.random.default_rng(0).standard_normal((12, 8, 256)).astype(np.float32)
    data[..., :128] *= 1000.0
    work = Model(g.model(g.rename(product, "y")), {"x": data}, threads=1, runtime=ORT).at(LITTLE)
    raced(monkeypatch, {INT8_RUN: 0.3, "int8-weights": 0.6}, {})
    result = screen(work, None, 0.02, Metric())
    assert (result.planned, result.why) == ((ORT,), None)
    assert "int8-weights" in result.scheme.uncalibrated


@pytest.mark.skipif(bool(bfloat16_refusal()), reason=bfloat16_refusal())
def test_bfloat16_that_is_faster_is_planned_with_whatever_the_error_of_all_blocks_in_it(
    tiny: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block may make nearly all of that error, as in magika."""
    work = Model(tiny.model, tiny.data, threads=1, runtime=OPENVINO).at(LITTLE)
    raced(monkeypatch, {INT8_RUN: 0.6, "bfloat16": 0.7}, {INT8_RUN: 0.6, "bfloat16": 0.5})
    result = screen(work, None, 0.01, Metric(), is_forced=True)
    assert "bfloat16" in result.scheme.uncalibrated
    (profile,) = profiles(result.work, result.planned, result.scheme).values()
    assert sum(run.mixed for run in profile.runs) == MOST_MIXES


@pytest.mark.whole
def test_a_search_that_cannot_gain_ends_early_and_its_workspace_is_whole(
    tiny: Case, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = ("int8-weights", "int8-dynamic", "int4-weights")
    raced(monkeypatch, {INT8_RUN: 3.0, **dict.fromkeys(forms, 2.0)}, {})
    result = taglio.optimize(tiny.model, tiny.data, max_error=0.01, effort=LITTLE, threads=1, runtime=ORT)
    assert result.error is None and not result.plan.assignment()
    assert result.table is not None
    assert any(note.text.startswith("int8 is slower here") for note in result.table.notes)
    assert not {"profile", "error"} & {*result.table.stage_seconds}
    result.save(tmp_path / "out")
    again = taglio.load(tmp_path / "out")
    assert again.error is None and again.plan == result.plan
    monkeypatch.undo()
    model = stages.error(tmp_path / "out")
    assert (tmp_path / "out" / "error.json").exists() and model.subsets
