"""A plan is accepted on inputs that nothing was selected on, and what that costs and shows is said."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import taglio
from taglio.confirm.speedup import Speedup
from taglio.error.loss import RELATIVE
from taglio.errors import BadOption
from taglio.flow.opening import Model
from taglio.flow.outcome import Outcome
from taglio.notes import Kind
from taglio.search.limits import limits_for, user_limits
from taglio.search.unseen import Unseen, accepted, rejection, share_worse, unseen_note
from tests.models import Sketch
from tests.support.gaining import gaining

LIMIT = 0.05


def test_both_parts_keep_the_limit_and_the_upper_end_is_near_it() -> None:
    assert accepted(0.01, 0.01, None, 0.2)  # too few inputs to keep some: as measured
    assert not accepted(0.01, 0.011, None, None)
    assert accepted(0.01, 0.009, 0.01, 0.011)
    assert accepted(0.01, 0.009, 0.01, None)  # a metric without an upper end
    assert not accepted(0.01, 0.009, 0.0101, 0.0105)
    assert not accepted(0.01, 0.009, 0.0095, 0.0111)
    assert not accepted(0.01, 0.0101, 0.005, 0.009)


def test_the_share_of_new_inputs_that_may_be_worse() -> None:
    assert share_worse(16) == pytest.approx(0.134, abs=5e-4)
    assert (1.0 - share_worse(16)) ** 16 == pytest.approx(0.1)
    note = unseen_note(Unseen(16, 0.009, 0.013, share_worse(16), 1), RELATIVE)
    assert str(note) == (
        "if new inputs are like these: worst of 16 unseen inputs 1.30%; with 90 % confidence at most 13% of new ones "
        "are worse"
    )
    assert unseen_note(Unseen(16, 0.009, 0.013, None, 2), RELATIVE) is None


def test_a_rejected_plan_says_its_speed_and_why() -> None:
    on_unseen = rejection(1.62, 0.0095, 0.013, 0.012)
    assert on_unseen.note(RELATIVE, 0.01).text == (
        "a faster plan (about 1.62 ×, not confirmed) was rejected on unseen inputs: error 1.30% (1.00% allowed)"
    )
    assert "error 1.004% (1.000% allowed)" in rejection(1.62, 0.0095, 0.01004, 0.012).note(RELATIVE, 0.01).text
    assert on_unseen.needed == 0.013 and on_unseen.room < 0.8
    assert rejection(1.62, 0.008, 0.012, 0.0085, room=0.8).room == pytest.approx(0.64)
    at_end = rejection(1.5, 0.0099, None, 0.0121)
    assert (
        "on other inputs its error may reach 1.21% (1.00% allowed; one-sided 80 %)" in at_end.note(RELATIVE, 0.01).text
    )
    assert at_end.needed == pytest.approx(0.011)
    assert at_end.room == pytest.approx(0.97 * 1.1 * 99 / 121)


def dense() -> Any:
    """Wide products, which int8 makes faster."""
    g = Sketch(5)
    x = g.op("Relu", g.op("Gemm", g.input("x", 1, 512), g.weight(512, 1024)))
    x = g.op("Relu", g.op("Gemm", x, g.weight(1024, 1024)))
    return g.model(g.rename(g.op("Gemm", x, g.weight(1024, 16)), "y"))


def held_out(count: int = 30, gain: float = 1.0) -> np.ndarray:
    """Inputs in order, of which every third is kept unseen; those are `gain` times as large."""
    data = np.random.default_rng(1).normal(0.0, 1.0, (count, 512)).astype(np.float32)
    data[2::3] *= gain
    return data


CALIBRATION = {"x": np.random.default_rng(2).normal(0.0, 1.0, (16, 512)).astype(np.float32)}
FAST: dict[str, Any] = {"threads": 1, "runtime": "onnxruntime"}
QUICK: dict[str, Any] = {"effort": 0.02, "scheme": "qdq-u8s8-asym-pc-rr", **FAST}


def optimized(count: int = 30, gain: float = 1.0, limit: float = LIMIT, **options: Any) -> Outcome:
    """The outcome with those held-out inputs."""
    given: dict[str, Any] = {"calibration": CALIBRATION, "max_error": limit, **QUICK, **options}
    result = gaining(lambda: taglio.optimize(dense(), {"x": held_out(count, gain)}, **given))
    assert result.table is not None
    return result.table


@pytest.fixture(scope="module")
def like() -> Iterator[Outcome]:
    """Where the unseen inputs are like the others, and the race shows a gain."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Speedup, "replaces_float", True)
        yield optimized()


def test_the_search_does_not_see_a_third_of_the_held_out_inputs() -> None:
    data = held_out()
    work = Model(dense(), {"x": data}, calibration=CALIBRATION, **FAST)
    assert work.data.unseen is not None
    assert [each["x"].ravel().tolist() for each in work.data.unseen.samples] == data[2::3].tolist()
    assert len(work.data.held_out.samples) == 20
    assert len([*work.all_float_answers()]) == 30 == len(work.digests[1])
    assert len(work.reference(30).samples) == 20
    few = Model(dense(), {"x": data[:23]}, calibration=CALIBRATION, **FAST)
    assert few.data.unseen is None and len(few.data.held_out.samples) == 23


@pytest.mark.whole
def test_a_plan_that_keeps_the_limit_on_unseen_inputs_is_delivered_with_its_figures(like: Outcome) -> None:
    assert like.unseen is not None
    assert like.plan.int8_blocks and like.plan.error <= LIMIT
    assert (like.unseen.inputs, like.held_out_samples) == (10, 30) and 1 <= like.unseen.candidates <= 3
    is_first = like.unseen.candidates == 1  # else it was selected on the unseen inputs, too
    assert like.unseen.share_worse == (pytest.approx(share_worse(10)) if is_first else None)
    assert len(like.input_errors) == 30
    assert like.unseen.worst == max(like.input_errors[-10:]) <= max(like.input_errors) == like.plan.worst_input
    assert like.plan.error_upper is not None and like.plan.error < like.plan.error_upper < 1.1 * LIMIT
    assert any("worst of 10 unseen inputs" in note.text for note in like.notes) == is_first


@pytest.mark.whole
@pytest.mark.usefixtures("gain_confirmed")
def test_a_plan_that_breaks_the_limit_on_unseen_inputs_alone_is_rejected() -> None:
    """The unseen inputs are far beyond the calibrated ranges: int8 clips them, and only them."""
    table = optimized(gain=6.0)
    assert table.unseen is not None
    assert table.plan.error <= LIMIT
    rejected = [str(note) for note in table.notes if note.kind is Kind.REJECTED_PLAN]
    assert "was rejected on unseen inputs: error" in rejected[0] and "not confirmed" in rejected[0]
    assert 1 <= table.unseen.candidates <= 3
    # Every candidate was rejected and said, but for the plan if it is one.
    assert table.unseen.candidates - bool(table.plan.int8_blocks) == len(rejected)
    assert not any("with 90 % confidence" in note.text for note in table.notes)


@pytest.mark.whole
@pytest.mark.usefixtures("gain_confirmed")
def test_with_few_inputs_it_says_that_the_error_was_selected() -> None:
    table = optimized(count=12)
    assert table.unseen is None and table.plan.int8_blocks
    assert any("was selected on the same 12 held-out inputs" in note.text for note in table.notes)


@pytest.mark.whole
def test_a_limit_on_the_worst_input_bounds_every_input(like: Outcome) -> None:
    """All int8 keeps the limit on the pool, but not on every input."""
    assert like.int8.worst_input is not None
    limit = 0.5 * (like.int8.error + like.int8.worst_input)
    assert like.int8.holds(limit)
    table = optimized(limit=limit, limit_on="worst-input")
    assert table.metric.worst_input and not table.int8.holds(limit)
    assert table.plan.error == table.plan.worst_input == max(table.input_errors) <= limit
    assert table.int8.error == table.int8.worst_input and table.plan.error_upper is None


def test_metrics_without_a_value_by_input_are_refused_for_the_worst_input() -> None:
    work = Model(
        dense(), {"x": held_out()}, calibration=CALIBRATION, metric="similarity", limit_on="worst-input", **FAST
    )
    with pytest.raises(BadOption, match="`limit_on` worst-input: similarity has no value for one input: limit"):
        limits_for(work, user_limits(max_drop=0.01))
    work = Model(dense(), {"x": held_out()}, calibration=CALIBRATION, limit_on="worst-input", **FAST)
    assert limits_for(work, user_limits(0.01)).metric.worst_input
    with pytest.raises(BadOption, match="worst-input: similarity has no value"):
        limits_for(work, user_limits(0.01, max_drop={"similarity": 0.01}))
    with pytest.raises(BadOption, match="unknown `limit_on` median: use pool or worst-input"):
        Model(dense(), {"x": held_out()}, limit_on="median", **FAST)
